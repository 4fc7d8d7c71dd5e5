"""What a candidate must get right before it is timed: one op on ragged rows, held against the float64 reference.

Inputs are those of the measured cases but for the rows: the first has no slot, the second a single token, the last is a
token short (where there are so many). All that an op writes is poisoned before each call.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

import recoverssm
from recoverssm import reference
from recoverssm.launch import Form
from recoverssm.ops.commit_state import FORMS as COMMIT_STATE
from recoverssm.ops.full_state import FORMS as FULL_STATE
from recoverssm.ops.verify import FORMS as VERIFY
from recoverssm.types import CommitPlan, GateParams, KDAShape, LayerTable, Records

from . import inputs
from .cases import BenchCase
from .checks import COMPILED, INTERPRETED, Checklist, failure_reason
from .providers.bare import Launched, launches_of
from .providers.base import Call
from .tuning_journal import Point
from .tuning_space import MEAN_ACCEPTED

FORMS: Mapping[str, Mapping[str, Form]] = {
    "verify": VERIFY,
    "full_state_verify": FULL_STATE,
    "commit_state": COMMIT_STATE,
}

CHECKED_LAYERS = 3  # of a commit: more than one, and neither 1 nor a multiple of 16, which compile differently

_BITS = {2: torch.int16, 4: torch.int32}


def case_of(point: Point, *, num_layers: int | None = None) -> BenchCase:
    """The workload that a point is timed on; its name is in no set."""
    accepted = MEAN_ACCEPTED.get(point.spec_query_len, min(4.0, float(point.spec_query_len)))
    case = BenchCase(
        name=point.name,
        stands_for="a row of the launch table",
        shape=KDAShape(num_heads=point.num_heads, spec_query_len=point.spec_query_len),
        num_requests=point.num_requests,
        mean_accepted=accepted,
        state_dtype=point.state_dtype,
    )
    return case if num_layers is None else replace(case, num_layers=num_layers)


class CheckProblem(ABC):
    """One op on memory of its own; ``launched`` is what the op launches on it by default.

    Args:
        case: few layers; its acceptance does not count here.
    """

    op: str

    def __init__(self, case: BenchCase, device: torch.device, seed: int) -> None:
        self._case, self._device = case, device
        generator = torch.Generator(device).manual_seed(seed)
        self._generator, self._seed = generator, seed
        self._step = inputs.build_step(case, device, generator)
        self._lens = ragged_lens(case.num_requests, case.shape.spec_query_len)
        starts = torch.tensor([0, *self._lens], dtype=torch.int32, device=device)
        self._query_start_loc = starts.cumsum(0, dtype=torch.int32)
        self._call = self._prepare()  # kept: a launch may know memory by its address alone
        self.launched: Launched
        (self.launched,) = launches_of(self._call)

    @abstractmethod
    def _prepare(self) -> Call:
        """Build all memory and the expected results; the call runs the op through its public function."""

    @abstractmethod
    def reset(self) -> None:
        """Poison what the op writes; give back what it changes."""

    @abstractmethod
    def _compare(self, checklist: Checklist) -> None:
        """Hold what is in memory now against the reference."""

    @property
    @abstractmethod
    def results(self) -> Sequence[Tensor]:
        """All that the op writes."""

    def wrong(self) -> str:
        """What is not as the reference has it; empty when all is."""
        limits = COMPILED if self._device.type == "cuda" else INTERPRETED
        checklist = Checklist(self._case.name, "candidate", limits)
        self._compare(checklist)
        return failure_reason(checklist.checks)

    def _compare_poisoned(
        self, checklist: Checklist, name: str, actual: Tensor, expected: Tensor, limit: float
    ) -> None:
        """Where NaN is expected nothing may have been written."""
        written = ~expected.isnan()
        checklist.error(self.op, name, actual[written], expected[written], limit, name)
        checklist.count(self.op, f"{name} written past a row", int((~actual[~written].isnan()).sum()), name)

    def _slots(self, num_owned: int) -> tuple[Tensor, int]:
        """Distinct slots, and how many a pool has for them."""
        num_slots = num_owned + inputs.NUM_UNOWNED_SLOTS
        return inputs.shuffled_slots(num_slots, num_owned, self._device, self._seed), num_slots

    def _gate(self, layer: int = 0) -> GateParams:
        return self._step.layer_gates[layer]

    def _tokens(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        step = self._step
        return step.q, step.k, step.v, step.raw_gate, step.raw_beta


class VerifyProblem(CheckProblem):
    op = "verify"

    def _prepare(self) -> Call:
        case, device = self._case, self._device
        slots, num_slots = self._slots(case.num_requests)
        slots[: case.num_requests > 1] = 0
        (state,) = inputs.build_state_pools(case, 1, num_slots, device, self._generator)
        records, expected = inputs.build_records(case.shape, 2, case.num_requests, device)
        self._records, self._state, self._before = records, state, state.clone()
        self._expected = Records(expected.correction.double(), expected.key_gate)
        self._out = torch.full_like(self._step.v, math.nan)
        self._expected_out = self._out.double()
        rows = (self._query_start_loc, slots)
        reference.verify(*self._tokens(), state, self._expected, self._gate(), *rows, out=self._expected_out)

        def call() -> None:
            recoverssm.verify(*self._tokens(), state, records, self._gate(), *rows, out=self._out)

        return call

    def reset(self) -> None:
        for tensor in self.results:
            tensor.fill_(math.nan)

    def _compare(self, checklist: Checklist) -> None:
        limits, records = checklist.limits, self._records
        self._compare_poisoned(checklist, "out", self._out, self._expected_out, limits.out)
        self._compare_poisoned(checklist, "u", records.correction, self._expected.correction, limits.fp32)
        checklist.equal(self.op, "key and raw gate", records.key_gate, self._expected.key_gate, "records")
        checklist.equal(self.op, "checkpoint", self._state, self._before, "must stay")

    @property
    def results(self) -> Sequence[Tensor]:
        return self._out, self._records.correction, self._records.key_gate


class FullStateProblem(CheckProblem):
    op = "full_state_verify"

    def _prepare(self) -> Call:
        case, window = self._case, self._case.shape.spec_query_len
        slots, num_slots = self._slots(case.num_requests * window)
        slots = slots.view(case.num_requests, window)
        slots[: case.num_requests > 1] = 0
        (self._pool,) = inputs.build_state_pools(case, 1, num_slots, self._device, self._generator)
        self._before, expected = self._pool.clone(), self._pool.double()
        self._out = torch.full_like(self._step.v, math.nan)
        self._expected_out = self._out.double()
        rows = (self._query_start_loc, slots, self._step.num_sampled)
        reference.full_state_verify(*self._tokens(), expected, self._gate(), *rows, out=self._expected_out)
        written = [int(slots[row, t]) for row, num in enumerate(self._lens) for t in range(num)]
        self._written = torch.zeros(num_slots, dtype=torch.bool, device=self._device)
        self._written[[slot for slot in written if slot > 0]] = True
        self._expected = expected[self._written]

        def call() -> None:
            recoverssm.full_state_verify(*self._tokens(), self._pool, self._gate(), *rows, out=self._out)

        return call

    def reset(self) -> None:
        self._out.fill_(math.nan)
        self._pool.copy_(self._before)

    def _compare(self, checklist: Checklist) -> None:
        limit = checklist.limits.state(self._case.state_dtype)
        self._compare_poisoned(checklist, "out", self._out, self._expected_out, checklist.limits.out)
        checklist.error(self.op, "state", self._pool[self._written], self._expected, limit, "all tokens' states")
        unwritten = ~self._written
        checklist.equal(self.op, "other slots", self._pool[unwritten], self._before[unwritten], "must stay")

    @property
    def results(self) -> Sequence[Tensor]:
        return self._out, self._pool


class CommitStateProblem(CheckProblem):
    op = "commit_state"

    def _prepare(self) -> Call:
        case, device = self._case, self._device
        num_rows, window = case.num_requests, case.shape.spec_query_len
        slots, num_slots = self._slots(num_rows)
        slots[: num_rows > 1] = 0
        states = inputs.build_state_pools(case, case.num_layers, num_slots, device, self._generator)
        records = inputs.build_records(case.shape, case.num_layers, num_rows, device)
        for layer, (state, record) in enumerate(zip(states, records, strict=True)):
            rows = (self._query_start_loc, slots)
            reference.verify(*self._tokens(), state, record, self._gate(layer), *rows)
        # Every length from the whole window down to nothing; a single row keeps all.
        sampled = [window - row % (window + 1) for row in range(num_rows)]
        plan = CommitPlan(*torch.zeros((3, num_rows), dtype=torch.int32, device=device).unbind())
        num_sampled = torch.tensor(sampled, dtype=torch.int32, device=device)
        reference.commit_plan(num_sampled, self._query_start_loc, slots, plan, spec_query_len=window)
        self._states, self._before = states, [state.clone() for state in states]
        expected = [state.double() for state in states]
        reference.commit_state(expected, records, plan, self._step.gate)
        self._changed = torch.zeros(num_slots, dtype=torch.bool, device=device)
        self._changed[plan.final_slots[plan.commit_lens > 0].long()] = True
        self._expected = [state[self._changed] for state in expected]
        tables = (
            LayerTable.of("checkpoint_states", states),
            LayerTable.of("corrections", [record.correction for record in records]),
            LayerTable.of("key_gates", [record.key_gate for record in records]),
        )
        return partial(recoverssm.commit_state, *tables, plan, self._step.gate)

    def reset(self) -> None:
        for state, before in zip(self._states, self._before, strict=True):
            state.copy_(before)

    def _compare(self, checklist: Checklist) -> None:
        limit, unchanged = checklist.limits.state(self._case.state_dtype), ~self._changed
        for layer, state in enumerate(self._states):
            where = f"layer {layer}"
            checklist.error(self.op, "state", state[self._changed], self._expected[layer], limit, where)
            checklist.equal(self.op, "other slots", state[unchanged], self._before[layer][unchanged], where)

    @property
    def results(self) -> Sequence[Tensor]:
        return self._states


PROBLEMS: Mapping[str, type[CheckProblem]] = {
    problem.op: problem for problem in (VerifyProblem, FullStateProblem, CommitStateProblem)
}


def ragged_lens(num_rows: int, spec_query_len: int) -> list[int]:
    """Tokens of each row: all but the second and the last have a full window."""
    lens = [spec_query_len] * num_rows
    if num_rows > 1:
        lens[-1] = spec_query_len - 1
    if num_rows > 2:
        lens[1] = 1
    return lens


def digest(tensors: Sequence[Tensor]) -> str:
    """A number that is equal for equal bits; for others it differs, but for a chance of one in 2^64."""
    total = 0
    for tensor in tensors:
        bits = tensor.detach().contiguous().view(_BITS[tensor.element_size()]).flatten().to(torch.int64)
        weights = torch.arange(1, bits.numel() + 1, device=bits.device)
        mixed = (bits + weights) * 0x5851F42D4C957F2D  # an odd multiplier; products wrap around
        mixed = (mixed ^ (mixed >> 29)) * (2 * weights + 1)
        total = (31 * total + int(mixed.sum())) % 2**64
    return f"{total:016x}"
