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


@pytest.mark.parametrize("by_slot", [False, True])
def test_lanes_may_share_records_by_slot_alone(by_slot):
    """A step's verify would write over those that the step before it has yet to commit."""
    config = RecoverSSMConfig(**SMALL, pipeline_parallel=2)
    states, gate = [torch.zeros(9, 1, 16, 16)], GateParams(torch.zeros(1, 1), torch.zeros(1, 1, 16), -5.0)
    records = [Records(torch.zeros(9, 1, 4, 16), torch.zeros(9, 1, 4, 32), by_slot)]
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
