"""A verify that commits the step before in the same pass, against float64: emulated on the CPU."""

from dataclasses import dataclass

import pytest
import torch

from recoverssm import GateParams, RecordRows, Records, reference
from recoverssm.kernels.verify_wgmma import _verify_wgmma_kernel
from recoverssm.reference.commit_state import committed_state
from recoverssm.reference.recurrence import delta_step, kda_log_decay, scaled_query, unit_key
from tests.folding import folding_verify
from tests.forms import ASSEMBLY, READ_EARLY, WAITING
from tests.gluon_interpreter import Emulated
from tests.test_commit_state_async import assert_rounded
from tests.test_verify_wgmma import U_TOL
from tests.windows import assert_matches, int32, relative_error, storage_bits, tol

FP32_TOL = 5e-7
EMULATED = Emulated(_verify_wgmma_kernel, asm=ASSEMBLY, read_early=READ_EARLY | WAITING)
GATES = {"mixed": (-8.0, 1.0), "slow": (-14.0, -8.0), "strong": (2.0, 12.0)}


@dataclass
class Life:
    """Requests with a slot each, their states, and records: of two steps by turns, in halves of one pool."""

    num_rows: int
    length: int
    dtype: torch.dtype
    gate_kind: str = "mixed"
    lower_bound: float | None = -5.0
    num_heads: int = 1
    seed: int = 0
    std: float = 1.0

    def __post_init__(self):
        self.generator = torch.Generator().manual_seed(self.seed)
        low, high = GATES[self.gate_kind]
        dt_bias = torch.rand(self.num_heads, 128, generator=self.generator) * (high - low) + low
        self.gate = GateParams(self.draw(self.num_heads) / 2, dt_bias, self.lower_bound)
        self.states = (self.draw(2 * self.num_rows + 2, self.num_heads, 128, 128) * self.std).to(self.dtype)
        self.records, self.half = self.pool(), 0
        self.slots = torch.randperm(self.num_rows, generator=self.generator).int() + 1
        self.rows = torch.full((self.num_rows,), -1, dtype=torch.int32)
        self.accepted = torch.zeros(self.num_rows, dtype=torch.int32)

    def draw(self, *shape):
        return torch.randn(*shape, generator=self.generator)

    def pool(self):
        shape = (2 * self.num_rows, self.num_heads, self.length)
        return Records(torch.full((*shape, 128), torch.nan), torch.full((*shape, 256), torch.nan, dtype=torch.bfloat16))

    def tokens(self, lens):
        drawn = [self.draw(sum(lens), self.num_heads, 128).to(torch.bfloat16) for _ in range(4)]
        return [*drawn, self.draw(sum(lens), self.num_heads).to(torch.bfloat16)]

    @property
    def record_rows(self):
        """This step writes one half, what waits stands in the other one, in row ``rows`` of it."""
        written = torch.arange(self.num_rows, dtype=torch.int32) + self.half * self.num_rows
        before = torch.where(self.rows < 0, -1, self.rows + (1 - self.half) * self.num_rows)
        return RecordRows(written, before, self.accepted)

    def committed(self):
        """What the records make of the states in its slots: [N, H, V, K] float64, and their terms' magnitudes."""
        rows = self.record_rows.waiting.clamp(min=0).long()
        correction, key_gate = self.records.correction[rows].double(), self.records.key_gate[rows].double()
        lens = torch.where(self.rows < 0, 0, self.accepted).clamp(max=self.length)
        source = self.states[self.slots.long()].double()
        sizes = torch.cat((key_gate[..., :128].abs(), key_gate[..., 128:]), -1)
        return (
            committed_state(source, correction, key_gate, lens, self.gate),
            committed_state(source.abs(), correction.abs(), sizes, lens, self.gate),
        )

    def step(self, lens, **changed):
        """One launch: its outputs, records and states against float64; the halves change places."""
        activations, starts = self.tokens(lens), int32([0, *torch.tensor(lens).cumsum(0).tolist()], "cpu")
        slots, rows = self.slots, self.record_rows
        expected, sizes = self.committed()
        own = slice(self.half * self.num_rows, (self.half + 1) * self.num_rows)
        for held in (self.records.correction, self.records.key_gate):
            held[own] = torch.nan
        before, waiting = storage_bits(self.states), self.records.correction.clone()
        out = torch.full_like(activations[2], torch.nan)
        folding_verify(EMULATED, activations, self.states, self.records, rows, self.gate, starts, slots, out, **changed)
        is_alive = (slots > 0) & (torch.tensor(lens) > 0)
        alive = slots[is_alive].long()
        waiting[own] = self.records.correction[own]
        assert torch.equal(storage_bits(self.records.correction), storage_bits(waiting))
        if self.dtype == torch.bfloat16:
            assert_rounded(self.states[alive], expected[is_alive], sizes[is_alive])
        else:
            assert_matches("state", self.states[alive], expected[is_alive], FP32_TOL)
        unchanged = torch.ones(self.states.shape[0], dtype=torch.bool)
        unchanged[alive] = False
        assert torch.equal(storage_bits(self.states)[self.pool_rows(unchanged)], before[self.pool_rows(unchanged)])
        self.check_records(activations, starts, own, out)
        self.half = 1 - self.half
        return activations, starts, out

    def pool_rows(self, mask):
        return mask.repeat_interleave(self.states[0].numel())

    def check_records(self, activations, starts, own, out):
        """u and outputs against the reference on the state as it was stored."""
        correction, key_gate = self.records.correction[own], self.records.key_gate[own]
        wanted = Records(*(torch.full_like(x, torch.nan, dtype=torch.float64) for x in (correction, key_gate)))
        expected = reference.verify(
            *(x.double() for x in activations),
            self.states.double(),
            wanted,
            self.gate,
            starts,
            self.slots,
            out=torch.full(out.shape, torch.nan, dtype=torch.float64),
        )
        assert_matches("out", out, expected, tol(torch.bfloat16, "cpu"))
        assert_matches("correction", correction, wanted.correction, U_TOL[self.dtype])
        assert_matches("key_gate", key_gate, wanted.key_gate, 0.0)


def ints(*values):
    return int32(values, "cpu")


@pytest.mark.parametrize("dtype", U_TOL, ids=str)
@pytest.mark.parametrize("gate", GATES)
def test_emulated_steps_commit_the_one_before(dtype, gate):
    life = Life(3, 8, dtype, gate, std=5.0, num_heads=2)
    life.step([8, 3, 8])
    life.rows, life.accepted = ints(0, 1, 2), ints(4, 3, 0)

    life.step([8, 8, 5])


@pytest.mark.parametrize("length", [1, 2, 4, 5, 9, 10, 12, 16])
def test_emulated_windows_of_other_lengths_do(length):
    for dtype in U_TOL:
        life = Life(2, length, dtype)
        life.step([length, 1], STAGED=length > 10)
        life.rows, life.accepted = ints(0, 1), ints(length, 1)

        life.step([1, length], STAGED=length > 10)


@pytest.mark.parametrize("bound", [None, -20.0])
@pytest.mark.parametrize("gate", GATES)
def test_emulated_gates_of_any_strength_do(gate, bound):
    for length in (8, 16):
        life = Life(1, length, torch.float32, gate, lower_bound=bound)
        life.step([length], CAUSAL_BLOCKS=True)
        life.rows, life.accepted = ints(0), ints(length - 3)

        life.step([length], CAUSAL_BLOCKS=True)


@pytest.mark.parametrize("where", [0, 7])
def test_emulated_gates_beyond_what_fp32_holds_leave_nothing_of_the_state(where):
    """Also that of the last token, which nothing decays after."""
    life = Life(1, 8, torch.float32, lower_bound=None)
    life.gate.A_log.fill_(3.0)
    life.step([8], CAUSAL_BLOCKS=True)
    life.records.key_gate[0, :, where, 128:] = 3e38
    life.rows, life.accepted = ints(0), ints(8)

    life.step([8], CAUSAL_BLOCKS=True)


def test_emulated_rows_move_come_and_go():
    """Rows in another order, one that is new, one without a slot, one without tokens."""
    life = Life(5, 8, torch.float32)
    life.slots = ints(3, 1, 5, 2, 4)
    life.step([8, 8, 8, 8, 8])
    life.rows, life.accepted = ints(4, 2, -1, 0, 1), ints(3, 8, 7, 2, 9)
    life.slots = ints(4, 5, 6, 0, 1)

    life.step([8, 2, 5, 8, 0])


@pytest.mark.parametrize("changed", [{"BV": 64, "KC": 4}, {"KC": 1}, {"AHEAD": 2}], ids=str)
@pytest.mark.parametrize("dtype", U_TOL, ids=str)
def test_emulated_tilings_and_an_early_start_match_reference(dtype, changed):
    life = Life(1, 8, dtype)
    life.step([8])
    life.rows, life.accepted = ints(0), ints(5)

    life.step([8], **changed, PDL=True, launch_pdl=True, PREFETCH=True)


@pytest.mark.parametrize("dtype", U_TOL, ids=str)
def test_emulated_bits_of_a_row_depend_on_nothing_but_the_row(dtype):
    """Alone or among others, wherever its records stand, whatever was rejected, in whatever slots."""
    life = Life(3, 8, dtype)
    life.step([8, 8, 8])
    life.rows, life.accepted = ints(2, 0, 1), ints(1, 4, 7)
    states, slot = life.states.clone(), life.slots[1:2].clone()
    waiting = [x[:1].clone() for x in (life.records.correction, life.records.key_gate)]
    for x in waiting:
        x[:, :, 4:] = torch.nan
    activations, _, out = life.step([5, 8, 3])
    alone = Life(1, 8, dtype)
    alone.gate, alone.states, alone.slots = life.gate, states, slot
    own = [x[5:13].clone() for x in activations]
    records, mine = Records(*(torch.cat((x, x * torch.nan)) for x in waiting)), torch.full_like(own[2], torch.nan)
    rows = RecordRows(ints(1), ints(0), ints(4))
    folding_verify(EMULATED, own, states, records, rows, life.gate, ints(0, 8), slot, mine)

    assert torch.equal(mine, out[5:13])
    assert torch.equal(states[slot.long()], life.states[slot.long()])
    assert torch.equal(records.correction[1], life.records.correction[4])


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("dtype", U_TOL, ids=str)
def test_emulated_chain_of_steps_keeps_the_state(dtype, gate):
    """Random numbers of accepted tokens, rows in another order each time; against float64 without interruption."""
    num_rows, num_steps = 2, 24
    life = Life(num_rows, 8, dtype, gate, seed=7)
    picks = torch.Generator().manual_seed(1)
    expected = {int(slot): life.states[slot].double() for slot in life.slots}
    kept = {}
    for _ in range(num_steps):
        activations, starts, _ = life.step([8] * num_rows)
        accepted = torch.randint(0, 9, (num_rows,), generator=picks).int()
        for row, slot in enumerate(life.slots.tolist()):
            if slot in kept:
                expected[slot] = run(expected[slot], kept[slot], life.gate)
            first = int(starts[row])
            kept[slot] = [x[first : first + int(accepted[row])] for x in activations]
        order = torch.randperm(num_rows, generator=picks)
        life.rows, life.accepted, life.slots = order.int(), accepted[order], life.slots[order]

    wanted = torch.stack([expected[int(slot)] for slot in life.slots])
    assert relative_error(life.states[life.slots.long()], wanted) <= (5e-7 if dtype == torch.float32 else 3e-2)


def run(state, tokens, gate):
    q, k, v, raw_gate, raw_beta = tokens
    sequence = (kda_log_decay(raw_gate, gate), unit_key(k), scaled_query(q), v.double(), raw_beta.double().sigmoid())
    for token in zip(*sequence, strict=True):
        state, _, _ = delta_step(state, *token)
    return state
