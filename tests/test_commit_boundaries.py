"""Align mode's commit: the state and the conv history at every boundary, against the reference and bit for bit."""

from dataclasses import replace

import pytest
import torch

from recoverssm import (
    AlignInputs,
    AlignPlan,
    Boundaries,
    CommitPlan,
    DtypeError,
    GateParams,
    LayerTable,
    Records,
    ShapeError,
    align_plan,
    commit_state,
    compact_conv,
    reference,
)
from tests.test_commit_state import expect_commit, fill_records, run_commit
from tests.test_commit_state_async import assert_rounded, magnitudes, use_async
from tests.windows import (
    FP32_TOL,
    RAGGED,
    Window,
    assert_gaps_untouched,
    assert_matches,
    float64_twin,
    int32,
    padded,
    storage_bits,
    tol,
)

FORMS = ["recurrence", "async"]
KINDS = [(torch.float32, -5.0), (torch.bfloat16, None)]  # of state and gate; each is compiled once for all tests
WIDTH = 4
CHANNELS = 40


def sizes_of(form):
    return {"key_dim": 128, "value_dim": 128, "num_heads": 1} if form == "async" else {"num_heads": 2}


def boundaries_of(rows, device):
    """From a list of (length, slot) a row, all equally long."""
    pairs = int32(rows, device).view(len(rows), -1, 2)
    return Boundaries(*(part.contiguous() for part in pairs.unbind(-1)))


# --- one commit of hand-made boundaries

CASE = replace(RAGGED, query_lens=(8, 8, 3, 1, 2, 8), slots=(2, 4, 6, 1, 5, 3))
ACCEPTED = [8, 5, 3, 1, 0, 8]
FINALS = [2, 8, 6, 1, 5, 9]
BOUNDARIES = [
    [(1, 10), (5, 11), (8, 2)],  # the last one is the final state, and the source
    [(0, 0), (3, 12), (0, 0)],  # the first block was dropped
    [(0, 0), (0, 0), (0, 0)],
    [(1, 13), (0, 0), (0, 0)],
    [(1, 14), (0, 0), (0, 0)],  # of a row that keeps nothing
    [(2, -1), (4, 15), (7, 7)],
]


def make_window(form, device, **changed):
    """Slots up to 14, those that no row owns full of NaN."""
    case = replace(CASE, **sizes_of(form), **changed)
    window = Window(replace(case, query_lens=(*case.query_lens, 0), slots=(*case.slots, 14)), device)
    for pool in window.checkpoint_states:
        pool[14] = float("nan")
    fill_records(window)
    return window


def plan_of(window, accepted=ACCEPTED, finals=FINALS):
    return window.plan([*accepted, 0], [*finals, 0])


def commit(window, form, plan, monkeypatch, boundaries=None):
    with monkeypatch.context() as patch:
        if form == "async":
            use_async(patch, window.device, window.checkpoint_states, window.records)
        run_commit(window, plan, boundaries)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("state_dtype", "lower_bound"), KINDS)
def test_every_boundary_gets_the_state_at_its_own_length(form, state_dtype, lower_bound, device, monkeypatch):
    window = make_window(form, device, state_dtype=state_dtype, lower_bound=lower_bound, num_layers=2)
    plan, boundaries = plan_of(window), boundaries_of([*BOUNDARIES, [(0, 0)] * 3], device)
    before = [storage_bits(state) for state in window.checkpoint_states]
    expected, scale = expect_commit(window, plan, boundaries), magnitudes(window, plan, boundaries)

    commit(window, form, plan, monkeypatch, boundaries)

    for layer, state in enumerate(window.checkpoint_states):
        if form == "async" and state_dtype == torch.bfloat16:
            assert_rounded(state, expected[layer], scale[layer])
        else:
            assert_matches("state", state, expected[layer], tol(state_dtype, device))
        assert_gaps_untouched("state", state, before[layer])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("state_dtype", "lower_bound"), KINDS)
def test_what_comes_after_a_boundary_leaves_its_bits_alone(form, state_dtype, lower_bound, device, monkeypatch):
    """More tokens accepted, more boundaries: what an engine caches must not depend on them."""
    window = make_window(form, device, state_dtype=state_dtype, lower_bound=lower_bound)
    pool = window.checkpoint_states[0]
    saved = pool.clone()

    def bits_after(accepted, boundaries):
        pool.copy_(saved)
        commit(window, form, plan_of(window, accepted), monkeypatch, boundaries_of([*boundaries, [(0, 0)] * 3], device))
        return storage_bits(pool.contiguous()).view(len(pool), -1)

    whole = bits_after(ACCEPTED, BOUNDARIES)

    for row, length, slot in [(0, 1, 10), (0, 5, 11), (1, 3, 12), (5, 4, 15)]:
        accepted = [min(count, length + 1) for count in ACCEPTED]
        until = [[(n, s) if n <= length else (0, 0) for n, s in places] for places in BOUNDARIES]
        assert torch.equal(whole[slot], bits_after(accepted, until)[slot]), (row, length)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("state_dtype", "lower_bound"), KINDS)
def test_rows_that_cross_nothing_have_the_bits_of_a_commit_without_boundaries(
    form, state_dtype, lower_bound, device, monkeypatch
):
    crossing, without = (make_window(form, device, state_dtype=state_dtype, lower_bound=lower_bound) for _ in range(2))

    commit(crossing, form, plan_of(crossing), monkeypatch, boundaries_of([*BOUNDARIES, [(0, 0)] * 3], device))
    commit(without, form, plan_of(without), monkeypatch)

    for row in (2, 4):  # one names no boundary, one keeps nothing
        slot = FINALS[row]
        assert torch.equal(*(storage_bits(each.checkpoint_states[0][slot].clone()) for each in (crossing, without)))


@pytest.mark.parametrize("form", FORMS)
def test_no_room_for_boundaries_is_as_good_as_none(form, device, monkeypatch):
    window, other = make_window(form, device), make_window(form, device)

    commit(window, form, plan_of(window), monkeypatch, boundaries_of([[]] * 7, device))
    commit(other, form, plan_of(other), monkeypatch)

    assert torch.equal(*(storage_bits(each.checkpoint_states[0]) for each in (window, other)))


@pytest.mark.parametrize("form", FORMS)
def test_lengths_beyond_the_accepted_tokens_stop_there(form, device, monkeypatch):
    """A hand-made plan is the caller's fault; the kernels must not read records that nobody wrote."""
    window = make_window(form, device)
    rows = [[(0, 0)] * 3 for _ in range(7)]
    rows[1][2] = (99, 12)
    right = [[(0, 0)] * 3 for _ in range(7)]
    right[1][2] = (ACCEPTED[1], 12)
    expected = expect_commit(window, plan_of(window), boundaries_of(right, device))

    commit(window, form, plan_of(window), monkeypatch, boundaries_of(rows, device))

    assert_matches("state", window.checkpoint_states[0], expected[0], FP32_TOL)


def test_every_boundary_gets_the_conv_history_at_its_own_length(device):
    pools = [padded((16, WIDTH - 2 + 8, CHANNELS), torch.bfloat16, device) for _ in range(2)]
    generator = torch.Generator().manual_seed(0)
    for pool in pools:
        pool.copy_(torch.randn(pool.shape, generator=generator))
    expected = [pool.clone() for pool in pools]
    plan = CommitPlan(int32(ACCEPTED, device), int32(CASE.slots, device), int32(FINALS, device))
    boundaries = boundaries_of(BOUNDARIES, device)
    reference.compact_conv(expected, plan, conv_width=WIDTH, boundaries=boundaries)
    before = [storage_bits(pool) for pool in pools]

    compact_conv(LayerTable.of("conv_states", pools), plan, conv_width=WIDTH, boundaries=boundaries)

    for pool, want, bits in zip(pools, expected, before, strict=True):
        assert torch.equal(pool, want)
        assert_gaps_untouched("conv", pool, bits)


def test_boundaries_of_other_shapes_and_types_are_refused(device):
    window = Window(RAGGED, device)
    num_rows = len(RAGGED.slots)
    plan, two = window.plan([0] * num_rows), torch.zeros((num_rows, 2), dtype=torch.int32, device=device)

    with pytest.raises(ShapeError, match=r"boundaries\.lens: expected \[N=5, J\], got \[4, 2\]"):
        run_commit(window, plan, Boundaries(two[1:], two))
    with pytest.raises(ShapeError, match=r"boundaries\.slots: expected \[N=5, J=2\], got \[5, 1\]"):
        run_commit(window, plan, Boundaries(two, two[:, 1:]))
    with pytest.raises(DtypeError, match=r"boundaries\.slots: expected int32, got int64"):
        run_commit(window, plan, Boundaries(two, two.long()))
    pool = padded((7, 10, CHANNELS), torch.bfloat16, device)
    with pytest.raises(ShapeError, match=r"boundaries\.lens"):
        compact_conv(
            LayerTable.of("conv_states", [pool]), plan, conv_width=WIDTH, boundaries=Boundaries(two[1:], two[1:])
        )


def test_a_boundary_written_nowhere_costs_the_final_state_nothing(device, monkeypatch):
    """A plan with room for boundaries that no row crosses leaves what a plan without them leaves."""
    states = []
    for boundaries in (None, boundaries_of([[(0, 0)]] * 7, device)):
        window = make_window("async", device)
        commit(window, "async", plan_of(window), monkeypatch, boundaries)
        states.append(storage_bits(window.checkpoint_states[0]))

    assert torch.equal(*states)


# --- every place in a block


class Batch:
    """One row per request (n, query_len, accepted), on the columns that a scheduler allocates; all else is NaN."""

    def __init__(self, requests, block_size, spec_query_len, form, device):
        self.requests, self.block_size, self.spec_query_len = requests, block_size, spec_query_len
        generator = torch.Generator().manual_seed(0)

        def random(*size):
            return torch.randn(*size, generator=generator).to(device)

        tables, used = [], 1
        for n, query_len, _ in requests:
            num_columns = -(-(n + query_len) // block_size)
            tables.append(list(range(used, used + num_columns)))
            used += num_columns
        sources = [table[-1] for table in tables]
        width, num_rows = max(map(len, tables)), len(requests)
        self.state_indices = int32(sources, device)
        self.align = AlignInputs(
            int32([n for n, _, _ in requests], device),
            int32([table + [1] * (width - len(table)) for table in tables], device),
            block_size,
        )
        H, V, K = (1, 128, 128) if form == "async" else (1, 16, 16)
        self.states = padded((used, H, V, K), torch.float32, device)
        self.states[sources] = random(num_rows, H, V, K)
        self.convs = padded((used, WIDTH - 2 + spec_query_len, CHANNELS), torch.bfloat16, device)
        self.convs[sources] = random(num_rows, *self.convs.shape[1:]).bfloat16()
        self.records = Records(
            random(num_rows, H, spec_query_len, V), random(num_rows, H, spec_query_len, 2 * K).bfloat16()
        )
        for row, (_, _, accepted) in enumerate(requests):
            self.records.correction[row, :, accepted:] = float("nan")
            self.records.key_gate[row, :, accepted:] = float("nan")
        self.gate = GateParams(random(1, H), random(1, H, K), -5.0)
        self.num_sampled = int32([accepted for _, _, accepted in requests], device)
        query_lens = int32([0, *(query_len for _, query_len, _ in requests)], device)
        self.query_start_loc = query_lens.cumsum(0, dtype=torch.int32)

    def plan(self, num_boundaries):
        num_rows = len(self.requests)
        rows = torch.zeros((4, num_rows), dtype=torch.int32, device=self.states.device)
        lens, slots = torch.zeros((2, num_rows, num_boundaries), dtype=torch.int32, device=self.states.device)
        plan = AlignPlan(CommitPlan(*rows[:3].unbind()), Boundaries(lens, slots), rows[3])
        align_plan(
            self.num_sampled,
            self.query_start_loc,
            self.state_indices,
            self.align,
            plan,
            spec_query_len=self.spec_query_len,
        )
        return plan

    def expect(self, plan):
        states, convs = float64_twin(self.states), self.convs.clone()
        reference.commit_state([states], [self.records], plan.commit, self.gate, boundaries=plan.boundaries)
        reference.compact_conv([convs], plan.commit, conv_width=WIDTH, boundaries=plan.boundaries)
        return states, convs

    def commit(self, plan):
        tables = [
            LayerTable.of(name, [tensor])
            for name, tensor in [
                ("checkpoint_states", self.states),
                ("corrections", self.records.correction),
                ("key_gates", self.records.key_gate),
            ]
        ]
        commit_state(*tables, plan.commit, self.gate, boundaries=plan.boundaries)
        compact_conv(
            LayerTable.of("conv_states", [self.convs]), plan.commit, conv_width=WIDTH, boundaries=plan.boundaries
        )


def every_place(block_size, spec_query_len):
    """Every n mod block_size, in a first block and in a later one, with every accepted count: fewest tokens, or all."""
    for n in range(2 * block_size):
        for accepted in range(1, spec_query_len + 1):
            for query_len in {accepted, spec_query_len}:
                yield n, query_len, accepted


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 8, 9])
def test_every_place_in_a_block_and_accepted_count_writes_what_its_blocks_need(block_size, device, monkeypatch):
    """On a GPU one kernel serves all block sizes: the plan has room for as many boundaries as tokens."""
    spec_query_len, form = (8, "async") if device == "cuda" else (4, "recurrence")
    batch = Batch(list(every_place(block_size, spec_query_len)), block_size, spec_query_len, form, device)
    plan = batch.plan(num_boundaries=spec_query_len)
    states, convs = batch.expect(plan)

    batch.commit(plan)

    assert_matches("state", batch.states, states, FP32_TOL)
    assert torch.equal(storage_bits(batch.convs.contiguous()), storage_bits(convs.contiguous()))


@pytest.mark.parametrize(("block_size", "spec_query_len"), [(1, 3), (3, 8), (4, 4), (16, 16)])
def test_places_in_a_block_in_the_async_form(block_size, spec_query_len, monkeypatch):
    requests = list(every_place(block_size, spec_query_len))[:: 1 + block_size * spec_query_len // 8]
    batch = Batch(requests, block_size, spec_query_len, "async", "cpu")
    use_async(monkeypatch, "cpu", [batch.states], [batch.records])
    plan = batch.plan(num_boundaries=-(-spec_query_len // block_size))
    states, _ = batch.expect(plan)

    batch.commit(plan)

    assert_matches("state", batch.states, states, FP32_TOL)
