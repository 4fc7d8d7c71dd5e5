"""Misuse of a life: of another builder's steps, of steps whose buffers were given back, and of counts of odd shapes."""

import pytest
import torch

from recoverssm import (
    AlignInputs,
    ArgumentError,
    CommitContext,
    ConfigError,
    GateParams,
    MetadataBuilder,
    Records,
    RecoverSSMConfig,
    RecoverSSMState,
    RequestBatch,
    SampledByRow,
    ShapeError,
    StepError,
)
from tests.windows import int32

SMALL = {"num_heads": 1, "draft_tokens": 3, "max_num_requests": 4, "key_dim": 16, "value_dim": 16}


class StandIn:
    """A committer that remembers what it was given."""

    def __init__(self):
        self.committed = []

    def commit(self, num_sampled, query_start_loc, state_indices, **_):
        self.committed.append(state_indices.tolist())


class Group:
    """A cache group: a builder, its life, and who commits."""

    def __init__(self, **options):
        self.config = RecoverSSMConfig(**SMALL | options)
        self.committers = [StandIn() for _ in range(self.config.steps_in_flight)]
        self.life = RecoverSSMState(self.config, self.committers)
        self.builder = MetadataBuilder(self.config, num_state_slots=9, device="cpu")

    def build(self, first=1):
        slots = [first, first + 1]
        return self.builder.build(RequestBatch([4, 1], [3, 0], [False, False], slots, slots))

    def record(self, first=1):
        step = self.build(first)
        self.life.record_step(step)
        return step


def ones(*shape):
    return torch.ones(shape, dtype=torch.int32)


COUNTS = SampledByRow(ones(2))


def test_another_builder_s_step_of_the_same_number_ends_nothing_here():
    """Every builder counts from 1, so that the steps of two cache groups have the same numbers."""
    mine, other = Group(), Group()
    step, foreign = mine.record(), other.record()

    for call in (
        lambda: mine.life.discard_step(foreign),
        lambda: mine.life.record_step(foreign),
        lambda: mine.life.commit_step(foreign, COUNTS),
    ):
        with pytest.raises(StepError, match=r"step 1 cannot be .*: step 1 of this life is another builder's"):
            call()
    mine.life.commit_step(step, COUNTS)
    other.life.commit_step(foreign, COUNTS)

    assert mine.committers[0].committed == other.committers[0].committed == [[1, 2]]


def test_a_step_of_a_lane_that_the_life_does_not_have_is_refused_before_its_verify():
    many, one = Group(pipeline_parallel=2), Group()
    many.build()
    step = many.build(first=5)

    with pytest.raises(ArgumentError, match=r"step 2: expected a lane below 1, .* got 1; builder and life take one c"):
        one.life.record_step(step)


def context_of(
    *, heads=1, key_dim=16, value_dim=16, window=4, rows=4, dtypes=(torch.float32, torch.bfloat16), bound=-5.0,
    history_len=0, by_slot=False, convs=(), **options,
):  # fmt: skip
    """One layer as SMALL has it, but for what is given."""
    states = [torch.zeros(9, heads, value_dim, key_dim, dtype=dtypes[0])]
    entry = (9, heads, history_len + window)
    correction, key_gate = torch.zeros(*entry, value_dim), torch.zeros(*entry, 2 * key_dim, dtype=dtypes[1])
    gate = GateParams(torch.zeros(1, heads), torch.zeros(1, heads, key_dim), bound)
    records = [Records(correction, key_gate, by_slot, history_len)]
    return CommitContext(states, records, list(convs), gate, max_num_rows=rows, **options)


CONV = [torch.zeros(9, 6, 48, dtype=torch.bfloat16)]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"window": 3}, r"T=4 as in the config \(draft_tokens \+ 1; what history_len=0 leaves of an entry\), got 3"),
        ({"window": 8}, r"T=4 as in .*, got 8; make states, records and context with what the life's config says"),
        ({"history_len": 4}, r"history_len=0 as in .*, got 4"),
        ({"heads": 2}, r"H=1 as in the config \(num_heads / tensor_parallel\), got 2"),
        ({"key_dim": 32}, "K=16 as in .*, got 32"),
        ({"value_dim": 32}, "V=16 as in .*, got 32"),
        ({"dtypes": [torch.bfloat16] * 2}, r"states=torch\.float32 .*\(state_dtype\), got torch\.bfloat16"),
        ({"dtypes": [torch.float32] * 2}, r"keys and gates=torch\.bfloat16 .*, got torch\.float32"),
        ({"bound": None}, r"lower_bound=-5\.0 as in .*, got None"),
        ({"block_size": 2}, "block_size=None as in .*, got 2"),
        ({"by_slot": True}, "by_slot=False as in the config .*, got True"),
        ({"convs": CONV, "conv_width": 3}, "conv_width=4 as in .*, got 3"),
        ({"convs": [CONV[0].mT]}, "conv channels=48 as in .*, got 6"),
        ({"rows": 3}, r"max_num_rows of at least config\.max_num_requests=4, got 3; a larger batch would be verified"),
    ],
)  # fmt: skip
def test_a_context_that_was_made_for_another_config_is_refused_with_the_life(made, message):
    """With three tokens of four, for one, verify said nothing and the commit forgot the last one that was accepted."""
    config = RecoverSSMConfig(**SMALL, pipeline_parallel=2)
    contexts = [context_of(convs=CONV), context_of(**made)]

    with pytest.raises(ConfigError, match=r"committers\[1\]: expected " + message):
        RecoverSSMState(config, contexts)


def test_a_context_may_have_more_rows_and_longer_conv_windows_than_its_config_asks_for():
    convs = [torch.zeros(9, 8, 48, dtype=torch.bfloat16)]

    RecoverSSMState(RecoverSSMConfig(**SMALL), [context_of(rows=9, convs=convs)])


@pytest.mark.parametrize("by_slot", [False, True])
def test_lanes_may_share_records_by_slot_alone(by_slot):
    """A step's verify would write over those that the step before it has yet to commit."""
    config = RecoverSSMConfig(**SMALL, pipeline_parallel=2, placement="page" if by_slot else "scratch")
    states, gate = [torch.zeros(9, 1, 16, 16)], GateParams(torch.zeros(1, 1), torch.zeros(1, 1, 16), -5.0)
    records = [Records(torch.zeros(9, 1, 4, 16), torch.zeros(9, 1, 4, 32, dtype=torch.bfloat16), by_slot)]
    contexts = [CommitContext(states, records, [], gate, max_num_rows=4) for _ in range(2)]

    if by_slot:
        RecoverSSMState(config, contexts)
    else:
        with pytest.raises(ConfigError, match=r"committers: expected records of its own for every lane, .* 0 and 1"):
            RecoverSSMState(config, contexts)


def test_a_step_whose_buffers_were_given_back_is_not_committed_with_what_they_hold_now():
    group = Group()
    step = group.record()
    step.release()
    later = group.record(first=5)

    with pytest.raises(StepError, match=r"step 1 cannot be committed: its staging buffers were released"):
        group.life.commit_step(step, COUNTS)
    group.life.discard_step(step)
    group.life.commit_step(later, COUNTS)

    assert group.committers[0].committed == [[5, 6]]
    group.life.check_idle()


@pytest.mark.parametrize("counts", [ones(2, 1), ones(1, 2)])
def test_debug_refuses_counts_of_another_shape_as_a_commit_does(counts):
    group = Group(debug=True)
    step = group.record()

    with pytest.raises(ShapeError, match=r"num_sampled: expected \[N\], got \[\d, \d\]"):
        group.life.commit_step(step, SampledByRow(counts))

    assert group.life.pending_steps == (1,)


@pytest.mark.parametrize("counts", [[1, 1], None])
def test_counts_on_the_host_are_refused_by_name(counts):
    group = Group()
    step = group.record()

    with pytest.raises(ArgumentError, match=r"num_sampled: expected an int32 tensor on the device of the pools, got"):
        group.life.commit_step(step, SampledByRow(counts))

    assert group.life.pending_steps == (1,)


@pytest.mark.parametrize(
    ("computed", "table", "message"),
    [
        (int32([1], "cpu"), ones(2, 4), r"align\.num_computed: expected \[N=2\], got \[1\]"),
        (ones(2, 1), ones(2, 4), r"align\.num_computed: expected \[N=2\], got \[2, 1\]"),
        (ones(2), ones(8), r"align\.block_table: expected \[B=2, C\], got \[8\]"),
        (ones(2), ones(1, 4), r"align\.block_table: expected \[B=2, C\], got \[1, 4\]"),
    ],
)
def test_debug_refuses_tables_of_another_shape_as_a_commit_does(computed, table, message):
    group = Group(debug=True, cache_mode="align", block_size=2)
    step = group.record()

    with pytest.raises(ShapeError, match=message):
        group.life.commit_step(step, COUNTS, align=AlignInputs(computed, table, 2))
