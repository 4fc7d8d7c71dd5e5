"""Blocks of a prefix cache: the reference's commit with boundaries against the plain recurrence, step after step."""

import random
from dataclasses import dataclass, field

import pytest
import torch
from torch.testing import assert_close

from recoverssm import reference
from recoverssm.errors import ConfigError
from recoverssm.types import AlignInputs, AlignPlan, Boundaries, CommitPlan, GateParams, Records
from tests.reference import naive
from tests.reference.batches import bits, is_poison, make_batch, make_gate, poison

EXACT = {"rtol": 0, "atol": 1e-12}
H, K, V, T, C, WIDTH = 1, 4, 3, 4, 5, 4


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def stacked(gate):
    """The gate of one layer as the gate of a stack of one."""
    return GateParams(gate.A_log[None], gate.dt_bias[None], gate.lower_bound)


# --- one commit


def verified(slots):
    batch = make_batch([T] * len(slots), slots)
    verify_batch(batch)
    return batch


def verify_batch(batch):
    reference.verify(
        batch.q, batch.k, batch.v, batch.raw_gate, batch.raw_beta, batch.states, batch.records, batch.gate,
        batch.query_start_loc, batch.state_indices, out=batch.out,
    )  # fmt: skip


def commit(batch, window, plan):
    """What commit does with an align plan, of one layer."""
    gate = stacked(batch.gate)
    reference.commit_state([batch.states], [batch.records], plan.commit, gate, boundaries=plan.boundaries)
    reference.compact_conv([window], plan.commit, conv_width=WIDTH, boundaries=plan.boundaries)


def states_after(batch, n):
    state = batch.states[int(batch.state_indices[n])].tolist()
    _, _, states = naive.window(state, *batch.activations(batch, batch.rows[n]), batch.gate)
    return torch.tensor(states, dtype=torch.float64)


def plan_of(lens, sources, finals):
    return CommitPlan(*(int32(x) for x in (lens, sources, finals)))


def test_every_boundary_gets_the_state_at_its_own_length():
    batch = verified([3, 1])
    expected = [states_after(batch, n) for n in range(2)]
    boundaries = Boundaries(int32([[1, 3], [0, 2]]), int32([[5, 6], [0, 7]]))

    reference.commit_state(
        [batch.states], [batch.records], plan_of([4, 2], [3, 1], [8, 1]), stacked(batch.gate), boundaries=boundaries
    )

    for slot, (row, length) in {5: (0, 1), 6: (0, 3), 8: (0, 4), 7: (1, 2), 1: (1, 2)}.items():
        assert_close(batch.states[slot], expected[row][length - 1], **EXACT)
    assert is_poison(batch.states[[0, 2, 4]]).all()


def test_the_final_slot_may_be_the_last_boundarys_and_the_source():
    batch = verified([3])
    expected = states_after(batch, 0)

    reference.commit_state(
        [batch.states], [batch.records], plan_of([4], [3], [3]), stacked(batch.gate),
        boundaries=Boundaries(int32([[2, 4]]), int32([[5, 3]])),
    )  # fmt: skip

    assert_close(batch.states[5], expected[1], **EXACT)
    assert_close(batch.states[3], expected[3], **EXACT)


def test_a_row_that_keeps_nothing_writes_no_boundary():
    batch = verified([3])
    window = poison(7, WIDTH - 2 + T, C)
    before = bits(batch.states), bits(window)
    boundaries = Boundaries(int32([[2]]), int32([[5]]))

    for plan in (plan_of([0], [3], [3]), plan_of([4], [0], [3]), plan_of([4], [3], [0])):
        reference.commit_state([batch.states], [batch.records], plan, stacked(batch.gate), boundaries=boundaries)
        reference.compact_conv([window], plan, conv_width=WIDTH, boundaries=boundaries)

    assert torch.equal(bits(batch.states), before[0])
    assert torch.equal(bits(window), before[1])


def test_every_boundary_gets_the_conv_history_at_its_own_length():
    window = torch.arange(7 * 6 * C, dtype=torch.float64).view(7, 6, C)
    before = window.clone()

    reference.compact_conv(
        [window], plan_of([4], [2], [2]), conv_width=WIDTH, boundaries=Boundaries(int32([[1, 3]]), int32([[5, 6]]))
    )

    for slot, length in ((5, 1), (6, 3), (2, 4)):
        assert torch.equal(window[slot, :3], before[2, length - 1 : length + 2])
        assert torch.equal(window[slot, 3:], before[slot, 3:])
    assert torch.equal(window[[0, 1, 3, 4]], before[[0, 1, 3, 4]])


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("T", [1, 2, 3, 4, 5, 8])
def test_every_place_in_a_block_and_accepted_count_writes_the_states_that_its_blocks_need(block_size, T):
    """With the columns that a scheduler allocates alone; every other slot stays poison, full blocks before too."""
    requests = [(n, a) for n in range(2 * block_size) for a in range(T + 1)]
    tables, used = [], 1
    for n, _ in requests:
        num_columns = -(-(n + T) // block_size)
        tables.append(list(range(used, used + num_columns)))
        used += num_columns
    width = max(map(len, tables))
    batch = make_batch(
        [T] * len(requests),
        [table[-1] for table in tables],
        num_heads=1,
        key_dim=3,
        value_dim=2,
        spec_query_len=T,
        num_slots=used,
    )
    window = poison(used, WIDTH - 2 + T, C)
    window[batch.state_indices.long()] = torch.randn(len(requests), WIDTH - 2 + T, C, dtype=torch.float64)
    histories = window[batch.state_indices.long()]
    verify_batch(batch)
    plan = AlignPlan.zeros(len(requests), spec_query_len=T, block_size=block_size)
    tables_given = int32([table + [0] * (width - len(table)) for table in tables])
    align = AlignInputs(int32([n for n, _ in requests]), tables_given, block_size)
    expected = [states_after(batch, row) for row in range(len(requests))]

    reference.align_plan(
        int32([a for _, a in requests]), batch.query_start_loc, batch.state_indices, align, plan, spec_query_len=T
    )
    commit(batch, window, plan)

    for row, (n, accepted) in enumerate(requests):
        written = {tables[row][-1]: None}  # the source, unless something is written there
        for token in range(n, n + accepted):
            if (token + 1) % block_size == 0 or token == n + accepted - 1:
                written[tables[row][token // block_size]] = token - n + 1
        for slot in tables[row]:
            length = written.get(slot, "untouched")
            if length == "untouched":
                assert is_poison(batch.states[slot]).all(), (n, accepted)
                assert is_poison(window[slot]).all(), (n, accepted)
            elif length is not None:
                assert_close(batch.states[slot], expected[row][length - 1], **EXACT)
                assert torch.equal(window[slot, : WIDTH - 1], histories[row, length - 1 : length + WIDTH - 2])
            else:
                assert torch.equal(window[slot], histories[row])


# --- requests that live on, as a scheduler with a prefix cache runs them


@dataclass
class Request:
    """One request, with the plain recurrence beside it: the state and the raw tokens after each of its tokens."""

    num_tokens: int = 0
    running: int = -1
    table: list[int] = field(default_factory=list)
    states: list = field(default_factory=lambda: [torch.zeros(H, V, K, dtype=torch.float64)])
    raw: torch.Tensor = field(default_factory=lambda: torch.zeros(WIDTH - 1, C, dtype=torch.float64))

    def history(self, num_tokens):
        return self.raw[num_tokens : num_tokens + WIDTH - 1]


class Engine:
    """Pools that are poison where nobody wrote, a free list, and the steps that an engine would do."""

    def __init__(self, block_size, seed, num_requests=3, num_slots=400):
        self.block_size, self.random = block_size, random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.states, self.convs = poison(num_slots, H, V, K), poison(num_slots, WIDTH - 2 + T, C)
        self.free = list(range(num_slots - 1, 0, -1))
        self.gate = make_gate(H, K, -5.0, self.generator)
        self.weight = self.normal(C, WIDTH)
        self.requests = [Request() for _ in range(num_requests)]

    def normal(self, *size):
        return torch.randn(*size, generator=self.generator, dtype=torch.float64)

    def schedule(self, request, query_len):
        """Allocate the columns of the step, no more, and move the state to the last of them."""
        column = reference.block_column(request.num_tokens + query_len, self.block_size)
        while len(request.table) <= column:
            request.table.append(self.free.pop())
        slot = request.table[column]
        if request.running < 0:
            self.states[slot], self.convs[slot, : WIDTH - 1] = 0.0, 0.0
        elif request.running != column:
            source = request.table[request.running]
            self.states[slot], self.convs[slot, : WIDTH - 1] = self.states[source], self.convs[source, : WIDTH - 1]
        request.running = column
        return slot

    def step(self):
        """One step of a random batch: verify, plan, commit, and the plain recurrence beside it."""
        rows = self.random.sample(range(len(self.requests)), self.random.randint(1, len(self.requests)))
        query_lens = [self.random.randint(1, T) for _ in rows]
        sources = int32([self.schedule(self.requests[r], q) for r, q in zip(rows, query_lens, strict=True)])
        starts = int32([0, *query_lens]).cumsum(0).to(torch.int32)
        num_tokens = sum(query_lens)
        inputs = [self.normal(num_tokens, H, size) for size in (K, K, V, K)] + [self.normal(num_tokens, H)]
        raw = self.normal(num_tokens, C)
        records = Records(poison(len(rows), H, T, V), poison(len(rows), H, T, 2 * K))
        reference.verify(*inputs, self.states, records, self.gate, starts, sources)
        reference.update_conv_window(self.convs, raw, starts, sources, self.weight)

        accepted = {
            r: 0 if self.random.random() < 0.1 else self.random.randint(1, q)
            for r, q in zip(rows, query_lens, strict=True)
        }
        self.commit(rows, accepted, starts, sources, records)
        for row, r in enumerate(rows):
            first = int(starts[row])
            self.follow(self.requests[r], [x[first : first + accepted[r]] for x in inputs], raw[first:][: accepted[r]])
        for r in rows:
            if accepted[r] == 0:  # aborted between verify and commit: the next one starts from what is cached
                self.requests[r] = self.resumed(self.random.choice(self.requests))

    def resumed(self, donor):
        """A request that begins like ``donor`` and finds some of its full blocks."""
        num_blocks = self.random.randint(0, donor.num_tokens // self.block_size)
        n = num_blocks * self.block_size
        column = reference.block_column(n, self.block_size)
        return Request(n, column, donor.table[:num_blocks], donor.states[: n + 1], donor.raw[: n + WIDTH - 1])

    def commit(self, rows, accepted, starts, sources, records):
        num_columns = max(len(request.table) for request in self.requests)
        tables = [r.table + [0] * (num_columns - len(r.table)) for r in self.requests]
        counts = int32([request.num_tokens for request in self.requests])
        align = AlignInputs(counts, int32(tables), self.block_size)
        plan = AlignPlan.zeros(len(rows), spec_query_len=T, block_size=self.block_size)
        reference.align_plan(
            int32([accepted.get(r, 0) for r in range(len(self.requests))]), starts, sources, align, plan,
            spec_query_len=T, request_indices=int32(rows),
        )  # fmt: skip
        reference.commit_state([self.states], [records], plan.commit, stacked(self.gate), boundaries=plan.boundaries)
        reference.compact_conv([self.convs], plan.commit, conv_width=WIDTH, boundaries=plan.boundaries)
        for r, column in zip(rows, plan.final_columns.tolist(), strict=True):
            self.requests[r].running = column

    def follow(self, request, inputs, raw):
        """The plain recurrence over the accepted tokens."""
        states = naive.window(request.states[-1].tolist(), *(x.tolist() for x in inputs), self.gate)[2]
        request.states += [torch.tensor(state, dtype=torch.float64) for state in states]
        request.raw = torch.cat((request.raw, raw))
        request.num_tokens += len(states)

    def check(self):
        """The running block and every full one hold what a request may resume from; nobody wrote elsewhere."""
        for request in self.requests:
            if request.running >= 0:
                self.check_slot(request, request.table[request.running], request.num_tokens)
            for column in range(request.num_tokens // self.block_size):
                end = reference.block_end(column, self.block_size)
                self.check_slot(request, request.table[column], end)
        assert is_poison(self.states[[0, *self.free]]).all()
        assert is_poison(self.convs[[0, *self.free]]).all()

    def check_slot(self, request, slot, num_tokens):
        assert_close(self.states[slot], request.states[num_tokens], **EXACT)
        assert torch.equal(self.convs[slot, : WIDTH - 1], request.history(num_tokens))


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 8])
def test_every_full_block_holds_the_state_at_its_end_whatever_is_accepted(block_size):
    engine = Engine(block_size, seed=block_size)

    for _ in range(30):
        engine.step()
        engine.check()

    assert sum(request.num_tokens // block_size for request in engine.requests) > 0


def test_landing_exactly_on_a_boundary_leaves_the_state_in_the_block_that_exists():
    """Block size 8, window 4, 4 tokens before, 4 accepted, table [7, null]: slot 7 gets the state after 8 tokens."""
    batch = verified([7])
    window = poison(9, WIDTH - 2 + T, C)
    window[7] = torch.randn(WIDTH - 2 + T, C, dtype=torch.float64)
    history = window[7, T - 1 : T + WIDTH - 2].clone()
    expected = states_after(batch, 0)[T - 1]
    plan = AlignPlan.zeros(1, spec_query_len=T, block_size=8)

    reference.align_plan(
        int32([4]), int32([0, 4]), int32([7]), AlignInputs(int32([4]), int32([[7, 0]]), 8), plan, spec_query_len=T
    )
    commit(batch, window, plan)

    assert plan.commit.final_slots.tolist() == [7]
    assert plan.boundaries.slots.tolist() == [[7]]
    assert plan.boundaries.lens.tolist() == [[4]]
    assert plan.final_columns.tolist() == [0]
    assert_close(batch.states[7], expected, **EXACT)
    assert torch.equal(window[7, : WIDTH - 1], history)
    assert is_poison(batch.states[:7]).all()
    assert is_poison(window[:7]).all()


def test_a_block_needs_at_least_one_token():
    for refused in (
        lambda: AlignInputs(int32([1]), int32([[1]]), 0),
        lambda: AlignPlan.zeros(1, spec_query_len=T, block_size=0),
    ):
        with pytest.raises(ConfigError, match=r"block_size: expected at least 1, got 0"):
            refused()
