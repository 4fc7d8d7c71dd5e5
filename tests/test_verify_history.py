"""A verify whose states lack accepted tokens, the history before its window, against float64: emulated on the CPU."""

from dataclasses import dataclass

import pytest
import torch

from recoverssm import GateParams, RecordRows, Records, reference
from recoverssm.kernels.verify_wgmma import _verify_wgmma_kernel
from recoverssm.reference.recurrence import delta_step, kda_log_decay, scaled_query, unit_key
from tests.forms import ASSEMBLY, HISTORY, READ_EARLY
from tests.gluon_interpreter import Emulated
from tests.history import history_verify
from tests.test_verify_wgmma import U_TOL
from tests.windows import assert_matches, int32, relative_error, storage_bits, tol

EMULATED = Emulated(_verify_wgmma_kernel, asm=ASSEMBLY, read_early=READ_EARLY | HISTORY)
GATES = {"mixed": (-8.0, 1.0), "slow": (-14.0, -8.0), "strong": (2.0, 12.0)}


@dataclass
class Life:
    """Requests with a slot and an entry of the records each; nothing is committed."""

    num_rows: int
    length: int
    dtype: torch.dtype
    gate_kind: str = "mixed"
    lower_bound: float | None = -5.0
    num_heads: int = 1
    seed: int = 0
    std: float = 1.0
    room: int = 0  # for history; 0: as much as a window

    def __post_init__(self):
        self.generator = torch.Generator().manual_seed(self.seed)
        low, high = GATES[self.gate_kind]
        dt_bias = torch.rand(self.num_heads, 128, generator=self.generator) * (high - low) + low
        self.gate = GateParams(self.draw(self.num_heads) / 2, dt_bias, self.lower_bound)
        self.room = self.room or self.length
        self.states = (self.draw(self.num_rows + 2, self.num_heads, 128, 128) * self.std).to(self.dtype)
        shape = (self.num_rows + 1, self.num_heads, self.room + self.length)
        held = [torch.full((*shape, n), torch.nan, dtype=dtype) for n, dtype in KINDS]
        self.records = Records(*held, history_len=self.room)
        self.slots = torch.randperm(self.num_rows, generator=self.generator).int() + 1
        self.entries = torch.randperm(self.num_rows, generator=self.generator).int()
        self.history = torch.zeros(self.num_rows, dtype=torch.int32)

    def draw(self, *shape):
        return torch.randn(*shape, generator=self.generator)

    def tokens(self, lens):
        drawn = [self.draw(sum(lens), self.num_heads, 128).to(torch.bfloat16) for _ in range(4)]
        return [*drawn, self.draw(sum(lens), self.num_heads).to(torch.bfloat16)]

    def step(self, lens, **changed):
        """One launch: its outputs and records against float64; states stay as they are."""
        activations, starts = self.tokens(lens), int32([0, *torch.tensor(lens).cumsum(0).tolist()], "cpu")
        rows = RecordRows(self.entries, self.history)
        before = storage_bits(self.states)
        wanted = Records(self.records.correction.double(), self.records.key_gate.double(), history_len=self.room)
        out = torch.full_like(activations[2], torch.nan)
        history_verify(
            EMULATED, activations, self.states, self.records, rows, self.gate, starts, self.slots, out, **changed
        )
        expected = reference.verify(
            *(x.double() for x in activations),
            self.states.double(),
            wanted,
            self.gate,
            starts,
            self.slots,
            out=torch.full(out.shape, torch.nan, dtype=torch.float64),
            record_rows=rows,
        )
        assert torch.equal(storage_bits(self.states), before)
        assert_matches("out", out, expected, tol(torch.bfloat16, "cpu"))
        assert_matches("correction", self.records.correction, wanted.correction, U_TOL[self.dtype])
        assert_matches("key_gate", self.records.key_gate, wanted.key_gate, 0.0)
        return activations, starts, out


KINDS = ((128, torch.float32), (256, torch.bfloat16))


def ints(*values):
    return int32(values, "cpu")


@pytest.mark.parametrize("dtype", U_TOL, ids=str)
@pytest.mark.parametrize("gate", GATES)
def test_emulated_steps_go_on_from_what_the_state_lacks(dtype, gate):
    life = Life(3, 8, dtype, gate, std=5.0, num_heads=2)
    life.step([8, 3, 8])
    life.history = ints(4, 3, 0)
    life.step([8, 8, 5])
    life.history = ints(8, 7, 1)

    life.step([8, 8, 8])


@pytest.mark.parametrize("length", [1, 2, 4, 5, 7])
def test_emulated_windows_of_other_lengths_do(length):
    for dtype in U_TOL:
        life = Life(2, length, dtype)
        life.step([length, 1])
        life.history = ints(length, 1)

        life.step([1, length], STAGED=True)


def test_emulated_history_beyond_its_room_or_below_nothing_is_clipped():
    life = Life(2, 4, torch.float32)
    life.step([4, 4])
    life.history = ints(-1, 99)

    life.step([4, 4])


@pytest.mark.parametrize(("length", "room"), [(1, 8), (4, 8), (8, 5), (8, 1)])
def test_emulated_room_for_more_or_less_history_than_a_window_does(length, room):
    life = Life(1, length, torch.float32, room=room)
    for done in range(0, room, 3):
        life.history = ints(done)
        life.step([length])
    life.history = ints(room)

    life.step([length])


@pytest.mark.parametrize("bound", [None, -20.0])
@pytest.mark.parametrize("gate", GATES)
def test_emulated_gates_of_any_strength_do(gate, bound):
    for dtype in U_TOL:
        life = Life(1, 8, dtype, gate, lower_bound=bound)
        life.step([8], CAUSAL_BLOCKS=True)
        life.history = ints(5)

        life.step([8], CAUSAL_BLOCKS=True)


@pytest.mark.parametrize("where", [0, 7])
def test_emulated_gates_beyond_what_fp32_holds_leave_nothing_of_the_state(where):
    """Also that of the last token, which nothing decays after."""
    life = Life(1, 8, torch.float32, lower_bound=None)
    life.gate.A_log.fill_(3.0)
    life.step([8], CAUSAL_BLOCKS=True)
    life.records.key_gate[0, :, where, 128:] = 3e38
    life.history = ints(8)

    life.step([8], CAUSAL_BLOCKS=True)


def test_emulated_rows_come_and_go():
    """A row without a slot, one without tokens, and new ones in the slots of others."""
    life = Life(5, 8, torch.float32)
    life.step([8, 8, 8, 8, 8])
    life.slots = ints(4, 5, 6, 0, 1)
    life.history = ints(3, 8, 7, 2, 1)

    life.step([8, 2, 5, 8, 0])


@pytest.mark.parametrize("changed", [{"BV": 64, "KC": 4}, {"KC": 1}, {"AHEAD": 2}], ids=str)
@pytest.mark.parametrize("dtype", U_TOL, ids=str)
def test_emulated_tilings_and_an_early_start_match_reference(dtype, changed):
    life = Life(1, 8, dtype)
    life.step([8])
    life.history = ints(5)

    life.step([8], **changed, PDL=True, launch_pdl=True, PREFETCH=1)


@pytest.mark.parametrize("changed", [{"PREFETCH": 2}, {"STAGED": True, "EVICT": False}], ids=str)
@pytest.mark.parametrize("dtype", U_TOL, ids=str)
def test_emulated_states_loaded_late_match_reference(dtype, changed):
    life = Life(1, 8, dtype)
    life.step([8])
    life.history = ints(5)

    life.step([8], **changed, LATE=True)


@pytest.mark.parametrize("dtype", U_TOL, ids=str)
def test_emulated_bits_of_a_row_depend_on_nothing_but_the_row(dtype):
    """Alone or among others, wherever its records stand, whatever was rejected, in whatever slots."""
    life = Life(3, 8, dtype)
    life.step([8, 8, 8])
    life.history = ints(1, 4, 7)
    slot, entry = life.slots[1:2].clone(), life.entries[1]
    history = [x[entry : entry + 1].clone() for x in (life.records.correction, life.records.key_gate)]
    for x in history:
        x[:, :, 4:] = torch.nan
    activations, _, out = life.step([5, 8, 3])
    own = [x[5:13].clone() for x in activations]
    records = Records(*(torch.cat((x * torch.nan, x)) for x in history), history_len=8)
    mine = torch.full_like(own[2], torch.nan)
    history_verify(EMULATED, own, life.states, records, RecordRows(ints(1), ints(4)), life.gate, ints(0, 8), slot, mine)

    assert torch.equal(mine, out[5:13])
    assert torch.equal(records.correction[1, :, 4:12], life.records.correction[entry, :, 4:12])


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("dtype", U_TOL, ids=str)
def test_emulated_windows_behind_each_other_are_one_recurrence(dtype, gate):
    """Two windows, of which any number was accepted, and then one that knows them as history alone."""
    for first, second in ((3, 5), (8, 0), (1, 7)):
        life = Life(1, 8, dtype, gate, seed=first)
        activations, _, _ = life.step([8])
        kept = [x[:first] for x in activations]
        life.history = ints(first)
        activations, _, _ = life.step([8])
        kept = [torch.cat((x, y[:second])) for x, y in zip(kept, activations, strict=True)]
        life.history = ints(first + second)
        activations, _, out = life.step([8])
        whole = [torch.cat((x, y)) for x, y in zip(kept, activations, strict=True)]

        outputs = run(life.states[life.slots.long()][0].double(), whole, life.gate)[first + second :]
        assert relative_error(out, outputs) <= tol(torch.bfloat16, "cpu")


def run(state, tokens, gate):
    """Outputs of a recurrence without windows."""
    q, k, v, raw_gate, raw_beta = tokens
    sequence = (kda_log_decay(raw_gate, gate), unit_key(k), scaled_query(q), v.double(), raw_beta.double().sigmoid())
    outputs = []
    for token in zip(*sequence, strict=True):
        state, _, output = delta_step(state, *token)
        outputs.append(output)
    return torch.stack(outputs)
