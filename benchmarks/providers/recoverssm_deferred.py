"""RecoverSSM with deferred commits: steps of a batch whose requests commit by turns, once their entries are full.

Of a small batch a life commits what waits before the verify: so do steps here, and verifies are then plain ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

import recoverssm
from recoverssm import cost, layout, reference
from recoverssm.ops.verify import can_take_history
from recoverssm.types import CommitPlan, RecordRows, Records

from .. import inputs
from ..cases import BenchCase
from ..checks import Checklist, num_non_finite
from ..harness.records import Contract
from ..harness.restore import SavedMemory
from ..inputs import NUM_UNOWNED_SLOTS, LayerSet
from .base import Call, Prepared, Provider, Series, card_arch, layer_sizes, rotations
from .recoverssm_pdl import can_chain

CASES = frozenset(
    {*(f"kimi_k3_tp8_b{batch}_t8_a3.84_fp32" for batch in (1, 8, 32, 128)), "kimi_k3_tp8_b32_t8_a3.84_bf16"}
)
"""The only cases that it is measured on: those that say when to choose it."""


class RecoverSSMDeferredProvider:
    """``verify``, ``commit``, what a step does after it, and ``flush``, which commits what waits for everybody."""

    name = "recoverssm_deferred"
    series_names: tuple[tuple[str, Contract], ...] = (
        ("verify", "graph-cold"),
        ("commit", "graph-cold"),
        ("flush", "graph-cold"),
        ("step", "graph-cold"),
    )

    def cache_bytes(self, case: BenchCase) -> int:
        return self._bytes(case, num_unowned_slots=0)

    def needed_bytes(self, case: BenchCase, l2_bytes: int) -> int:
        sets = _num_sets(case, l2_bytes) * self._bytes(case, num_unowned_slots=NUM_UNOWNED_SLOTS)
        return 2 * sets + 10 * 8 * (case.num_requests + NUM_UNOWNED_SLOTS) * layer_sizes(case).state_bytes

    def prepare(self, case: BenchCase, device: torch.device, seed: int, l2_bytes: int) -> Prepared:
        return PreparedDeferred(case, device, seed, _num_sets(case, l2_bytes), self.series_names)

    def _bytes(self, case: BenchCase, *, num_unowned_slots: int) -> int:
        return layout.state_bytes(
            case.shape,
            case.num_requests,
            case.num_layers,
            inputs.STATE_DTYPES[case.state_dtype],
            scheme="recoverssm",
            activation_dtype=inputs.ACTIVATION_DTYPE,
            num_unowned_slots=num_unowned_slots,
            commit="deferred",
        ).total


class RecoverSSMDeferredPdlProvider(RecoverSSMDeferredProvider):
    """The same where verifies are launched one after another, each beginning while the one before still runs."""

    name = "recoverssm_deferred_pdl"
    series_names: tuple[tuple[str, Contract], ...] = (("verify", "graph-cold"), ("step", "graph-cold"))

    def prepare(self, case: BenchCase, device: torch.device, seed: int, l2_bytes: int) -> Prepared:
        num_sets = _num_sets(case, l2_bytes)
        return PreparedDeferred(case, device, seed, num_sets, self.series_names, chains_verifies=True)


@dataclass(frozen=True, slots=True)
class _Phase:
    """A step of the batch: what waits as it begins, by row on the host and in the memory that its calls read.

    Attributes:
        lens: [R] int32, tokens that wait by entry; a commit writes it.
        rows: what verifies are told.
        history: tokens of them that verifies take as history, by row.
        lens_now: tokens that the step's commit puts into each row's state. waiting_after: those that wait on.
    """

    waiting: tuple[int, ...]
    lens: torch.Tensor
    rows: RecordRows
    history: tuple[int, ...]
    lens_now: tuple[int, ...]
    waiting_after: tuple[int, ...]


def waiting_lens(accepted: Sequence[int], history_len: int, phase: int) -> tuple[int, ...]:
    """Tokens that wait for each row in one of successive steps, where row i has begun i steps before.

    A row accepts the same number in each step, and commits in that step after which more than history_len would wait.
    """
    return tuple(a * ((row + phase) % (history_len // a + 1)) for row, a in enumerate(accepted))


def num_phases(accepted: Sequence[int], history_len: int) -> int:
    """Steps after which as many tokens wait for every row again."""
    return math.lcm(*(history_len // a + 1 for a in accepted))


class PreparedDeferred:
    """Rotated sets of all layers' caches, and the steps of a batch until it is where it was, each a call of its own.

    Verifies take history where those of a life do, else a step begins with a flush.
    """

    def __init__(
        self,
        case: BenchCase,
        device: torch.device,
        seed: int,
        num_sets: int,
        series_names: tuple[tuple[str, Contract], ...],
        *,
        chains_verifies: bool = False,
    ) -> None:
        self._case = case
        self._series_names = series_names
        self._chains_verifies = chains_verifies
        self._history_len = case.shape.spec_query_len  # as in RecoverSSMConfig
        generator = inputs.seeded_generator(device, seed)
        self._step = step = inputs.build_step(case, device, generator)
        num_rows, num_slots = case.num_requests, case.num_requests + NUM_UNOWNED_SLOTS
        self._slots = inputs.shuffled_slots(num_slots, num_rows, device, seed)
        self._entries = torch.arange(num_rows, dtype=torch.int32, device=device).flip(0).contiguous()
        self._out = torch.empty_like(step.v)
        self._sets = [
            LayerSet(
                inputs.build_state_pools(case, case.num_layers, num_slots, device, generator),
                inputs.build_records(case.shape, case.num_layers, num_rows, device, history_len=self._history_len),
                inputs.build_conv_states(case, case.num_layers, num_slots, device, generator),
            )
            for _ in range(num_sets)
        ]
        self._contexts = [
            recoverssm.CommitContext(
                each.checkpoint_states,
                each.records,
                each.conv_states,
                step.gate,
                max_num_rows=num_rows,
                conv_width=case.shape.conv_width,
            )
            for each in self._sets
        ]
        self._takes_history = self._contexts[0].takes_history(num_rows)
        count = num_phases(step.accepted, self._history_len) if self._takes_history else 1
        self._phases = [self._phase(phase) for phase in range(count)]
        filled = [RecordRows(self._entries, torch.full_like(self._entries, at)) for at in (0, self._history_len)]
        for each, layer, rows in product(self._sets, range(case.num_layers), filled):
            # Real entries, whichever series comes first.
            self._verify_into(each.checkpoint_states[layer], each.records[layer], layer, rows)

    def _phase(self, phase: int) -> _Phase:
        accepted = self._step.accepted
        waiting = waiting_lens(accepted, self._history_len, phase) if self._takes_history else accepted
        history = waiting if self._takes_history else (0,) * len(accepted)
        together = [before + now for before, now in zip(history, accepted, strict=True)]
        by_row = torch.tensor(waiting, dtype=torch.int32, device=self._entries.device)
        return _Phase(
            waiting,
            by_row.flip(0).contiguous(),  # by entry
            RecordRows(self._entries, by_row if self._takes_history else None),
            history,
            lens_now=tuple(n if n > self._history_len else 0 for n in together),
            waiting_after=tuple(n if n <= self._history_len else 0 for n in together),
        )

    # --- calls

    def _verify_into(
        self, states: torch.Tensor, records: Records, layer: int, rows: RecordRows, *, chained: bool = False
    ) -> None:
        step = self._step
        recoverssm.verify(
            *step.activations,
            states,
            records,
            step.layer_gates[layer],
            step.query_start_loc,
            self._slots,
            out=self._out,
            record_rows=rows,
            enable_pdl=chained,
        )

    def _verify(self, layer_set: LayerSet, layer: int, rows: RecordRows) -> None:
        chained = self._chains_verifies and layer > 0
        self._verify_into(layer_set.checkpoint_states[layer], layer_set.records[layer], layer, rows, chained=chained)

    def _commit(self, context: recoverssm.CommitContext, phase: _Phase, rows: RecordRows | None = None) -> None:
        step = self._step
        counts = (step.num_sampled, step.query_start_loc, self._slots)
        context.commit(*counts, record_rows=rows or phase.rows, waiting_lens=phase.lens)

    def _flush(self, context: recoverssm.CommitContext, phase: _Phase) -> None:
        context.commit_waiting(self._entries, phase.lens, self._slots)

    def _step_call(self, layer_set: LayerSet, context: recoverssm.CommitContext, phase: _Phase) -> None:
        if self._takes_history:
            lens = context.plan_waiting(self._entries, phase.lens, self._slots)
            rows = RecordRows(self._entries, lens)
        else:
            self._flush(context, phase)
            rows = phase.rows
        for layer in range(self._case.num_layers):
            self._verify(layer_set, layer, rows)
        self._commit(context, phase, rows)

    def series(self) -> list[Series]:
        num_layers, both = self._case.num_layers, list(zip(self._sets, self._contexts, strict=True))
        calls: dict[str, list[Call]] = {
            "verify": [
                partial(self._verify, each, layer, phase.rows)
                for phase, each, layer in product(self._phases, self._sets, range(num_layers))
            ],
            "commit": [partial(self._commit, *each) for each in product(self._contexts, self._phases)],
            "flush": [partial(self._flush, *each) for each in product(self._contexts, self._phases)],
            "step": [partial(self._step_call, *each, phase) for each, phase in product(both, self._phases)],
        }
        costs = {op: _mean([self._costs(phase)[op] for phase in self._phases]) for op in calls}
        kernels = {"verify": 1, "commit": 4 if self._takes_history else 3, "flush": 2, "step": num_layers + 5}
        restores = self._restores()
        return [
            Series(op, contract, tuple(calls[op]), costs[op], kernels[op], None, restores.get(op))
            for op, contract in self._series_names
        ]

    def _costs(self, phase: _Phase) -> dict[str, cost.Cost]:
        case, accepted = self._case, self._step.accepted
        sizes, num_layers = layer_sizes(case), case.num_layers
        windows = [case.shape.spec_query_len] * case.num_requests
        verify = cost.verify_history(sizes, phase.history, windows)
        plan = cost.commit_plan(num_rows=case.num_requests, has_request_indices=True)
        flush = plan + cost.commit_state(sizes, phase.waiting).times(num_layers)
        commit = cost.commit_deferred(sizes, accepted, phase.lens_now, num_layers=num_layers)
        step = (plan if self._takes_history else flush) + verify.times(num_layers) + commit
        return {"verify": verify, "commit": commit, "flush": flush, "step": step}

    def _restores(self) -> dict[str, Call]:
        """By op, what undoes its calls, in their order."""
        states = [SavedMemory(each.checkpoint_states) for each in self._sets]
        convs = [SavedMemory(each.conv_states) for each in self._sets]
        both = [part for pair in zip(states, convs, strict=True) for part in pair]
        waiting = SavedMemory([phase.lens for phase in self._phases])
        memory = {"commit": [*both, waiting], "flush": states, "step": [*both, waiting]}
        return {op: partial(_restore_all, saved) for op, saved in memory.items()}

    # --- checks

    def check(self, checklist: Checklist) -> None:
        """First and last layer of the first set, in every step; states are then what they were."""
        layer_set, context = self._sets[0], self._contexts[0]
        saved = SavedMemory([*layer_set.checkpoint_states, *layer_set.conv_states])
        layers = sorted({0, self._case.num_layers - 1})
        for phase in self._phases:
            waiting = SavedMemory([phase.lens])
            expected = {layer: self._committed(layer, phase.waiting) for layer in layers}
            self._flush(context, phase)
            self._check_states(checklist, "flush", expected)
            saved.restore()
            for layer in layers:
                self._check_verify(checklist, layer, phase)
            expected = {layer: self._committed(layer, phase.lens_now) for layer in layers}
            windows = {layer: self._compacted(layer) for layer in layers}
            self._commit(context, phase)
            self._check_states(checklist, "commit", expected)
            for layer, window in windows.items():
                checklist.equal("commit", "differing", layer_set.conv_states[layer], window, f"layer {layer}, conv")
            left = torch.tensor(phase.waiting_after, dtype=torch.int32, device=self._slots.device)
            checklist.equal("commit", "differing", phase.lens[self._entries.long()], left, "what waits")
            saved.restore()
            waiting.restore()

    def _check_states(self, checklist: Checklist, op: str, expected: dict[int, torch.Tensor]) -> None:
        owned, limit = self._slots.long(), checklist.limits.state(self._case.state_dtype)
        for layer, want in expected.items():
            got = self._sets[0].checkpoint_states[layer]
            checklist.error(op, "state_error", got[owned], want[owned], limit, f"layer {layer}")

    def _committed(self, layer: int, lens: Sequence[int]) -> torch.Tensor:
        """States after so many tokens of each row's entry, float64."""
        layer_set, step = self._sets[0], self._step
        held, states = layer_set.records[layer], layer_set.checkpoint_states[layer].double()
        counts = torch.tensor(lens, dtype=torch.int32, device=states.device)
        gate = step.layer_gates[layer]
        stacked = type(gate)(gate.A_log[None], gate.dt_bias[None], gate.lower_bound)
        plan = CommitPlan(counts, self._slots, self._slots)
        reference.commit_state([states], [held], plan, stacked, record_rows=self._entries)
        return states

    def _compacted(self, layer: int) -> torch.Tensor:
        """Windows of the short convolution after a commit."""
        window, plan = self._sets[0].conv_states[layer].clone(), CommitPlan(self._step.num_sampled, *[self._slots] * 2)
        reference.compact_conv([window], plan, conv_width=self._case.shape.conv_width)
        return window

    def _check_verify(self, checklist: Checklist, layer: int, phase: _Phase) -> None:
        """Outputs and records of a verify, which leaves states and history as they are."""
        step, layer_set = self._step, self._sets[0]
        states, held = layer_set.checkpoint_states[layer], layer_set.records[layer]
        before = states.clone()
        records = Records(held.correction.double(), held.key_gate.clone(), history_len=self._history_len)
        wanted = torch.full_like(self._out, torch.nan, dtype=torch.float64)
        rest = (records, step.layer_gates[layer], step.query_start_loc, self._slots)
        reference.verify(*step.activations, states.double(), *rest, out=wanted, record_rows=phase.rows)
        self._out.fill_(torch.nan)
        self._verify(layer_set, layer, phase.rows)
        where, limits = f"layer {layer}", checklist.limits
        checklist.error("verify", "out_error", self._out, wanted, limits.out, where)
        checklist.error("verify", "u_error", held.correction, records.correction, limits.fp32, where)
        checklist.equal("verify", "differing", held.key_gate, records.key_gate, f"{where}, key and raw gate")
        checklist.equal("verify", "untouched", states, before, where)

    def num_non_finite(self) -> int:
        ends = [each.checkpoint_states[layer] for each in self._sets for layer in (0, -1)]
        return num_non_finite([self._out, *ends, *(each.records[-1].correction for each in self._sets)])


def _mean(costs: Sequence[cost.Cost]) -> cost.Cost:
    whole = sum(costs[1:], costs[0])
    count = len(costs)
    return cost.Cost(whole.read_bytes // count, whole.write_bytes // count, whole.flops // count)


def _restore_all(saved: list[SavedMemory]) -> None:
    for memory in saved:
        memory.restore()


def _num_sets(case: BenchCase, l2_bytes: int) -> int:
    return rotations(case.num_requests * case.num_layers * layer_sizes(case).state_bytes, l2_bytes)


DEFERRED = RecoverSSMDeferredProvider()
CHAINED_DEFERRED = RecoverSSMDeferredPdlProvider()


def deferred_providers(case: BenchCase, device: torch.device) -> tuple[Provider, ...]:
    """``recoverssm_deferred`` where the case gets it and verify takes history; elsewhere it is what ``recoverssm`` is.

    And ``recoverssm_deferred_pdl`` where verifies can begin early.
    """
    if case.name not in CASES or card_arch(device) == 0:
        return ()
    pool = inputs.build_state_pools(case, 1, 1, device, None)[0]
    (records,) = inputs.build_records(case.shape, 1, 1, device, history_len=case.shape.spec_query_len)
    if not can_take_history(pool, records, case.lower_bound):
        return ()
    return (DEFERRED, CHAINED_DEFERRED) if can_chain(device) else (DEFERRED,)
