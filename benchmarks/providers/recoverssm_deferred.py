"""RecoverSSM with deferred commits: a commit is its plan and conv windows, and the next verify folds what waits.

Of a small batch a life commits what waits before the verify: so do steps here, and verifies are then plain ones.
"""

from functools import partial
from itertools import product

import torch

import recoverssm
from recoverssm import cost, layout, reference
from recoverssm.ops.verify import can_fold
from recoverssm.types import RecordRows, Records

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


class PreparedDeferred:
    """Rotated sets of all layers' caches. The second half of the entries waits, in every call; the first is written.

    Verifies fold where those of a life do, else a step begins with a flush.
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
        generator = inputs.seeded_generator(device, seed)
        self._step = step = inputs.build_step(case, device, generator)
        num_rows, num_slots = case.num_requests, case.num_requests + NUM_UNOWNED_SLOTS
        self._slots = inputs.shuffled_slots(num_slots, num_rows, device, seed)
        self._out = torch.empty_like(step.v)
        self._sets = [
            LayerSet(
                inputs.build_state_pools(case, case.num_layers, num_slots, device, generator),
                inputs.build_records(case.shape, case.num_layers, 2 * num_rows, device),
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
        entries = torch.arange(2 * num_rows, dtype=torch.int32, device=device)
        self._written, self._waiting = entries[:num_rows], entries[num_rows:].flip(0).contiguous()
        self._lens = torch.zeros_like(entries)
        self._lens[self._waiting.long()] = step.num_sampled
        lens = self._contexts[0].plan_waiting(self._waiting, self._lens, self._slots)
        self._all_rows = RecordRows(self._written, self._waiting, lens.clone())
        self._folds = self._contexts[0].folds(num_rows)
        self._rows = self._all_rows if self._folds else RecordRows(self._written)
        for each, layer in product(self._sets, range(case.num_layers)):  # real entries, whichever series comes first
            for written in (self._waiting, self._written):
                self._verify_into(each.checkpoint_states[layer], each.records[layer], layer, RecordRows(written))

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

    def _verify(self, layer_set: LayerSet, layer: int) -> None:
        chained = self._chains_verifies and layer > 0
        states, records = layer_set.checkpoint_states[layer], layer_set.records[layer]
        self._verify_into(states, records, layer, self._rows, chained=chained)

    def _commit(self, context: recoverssm.CommitContext) -> None:
        step = self._step
        rows = (step.num_sampled, step.query_start_loc, self._slots)
        context.commit(*rows, record_rows=self._written, waiting_lens=self._lens)

    def _flush(self, context: recoverssm.CommitContext) -> None:
        context.commit_waiting(self._waiting, self._lens, self._slots)

    def _step_call(self, layer_set: LayerSet, context: recoverssm.CommitContext) -> None:
        before = context.plan_waiting if self._folds else context.commit_waiting
        before(self._waiting, self._lens, self._slots)
        for layer in range(self._case.num_layers):
            self._verify(layer_set, layer)
        self._commit(context)

    def series(self) -> list[Series]:
        case, lens = self._case, self._step.accepted
        sizes, num_layers = layer_sizes(case), case.num_layers
        rows = {"num_rows": case.num_requests, "num_tokens": case.num_requests * case.shape.spec_query_len}
        verify = cost.verify_folding(sizes, lens, **rows) if self._folds else cost.verify(sizes, **rows)
        plans = cost.commit_plan(num_rows=case.num_requests, has_request_indices=True)
        flush = plans + cost.commit_state(sizes, lens).times(num_layers)
        commit = cost.commit_deferred(sizes, lens, num_layers=num_layers)
        both = list(zip(self._sets, self._contexts, strict=True))
        calls: dict[str, list[Call]] = {
            "verify": [partial(self._verify, each, layer) for each in self._sets for layer in range(num_layers)],
            "commit": [partial(self._commit, context) for context in self._contexts],
            "flush": [partial(self._flush, context) for context in self._contexts],
            "step": [partial(self._step_call, *each) for each in both],
        }
        costs = {
            "verify": verify,
            "commit": commit,
            "flush": flush,
            "step": (plans if self._folds else flush) + verify.times(num_layers) + commit,
        }
        kernels = {"verify": 1, "commit": 3, "flush": 2, "step": num_layers + (4 if self._folds else 5)}
        restores = self._restores()
        return [
            Series(op, contract, tuple(calls[op]), costs[op], kernels[op], None, restores.get(op))
            for op, contract in self._series_names
        ]

    def _restores(self) -> dict[str, Call]:
        """By op, what undoes its calls, in their order. A verify that does not fold writes no state."""
        states = [SavedMemory(each.checkpoint_states) for each in self._sets]
        convs = [SavedMemory(each.conv_states) for each in self._sets]
        both = [part for pair in zip(states, convs, strict=True) for part in pair]
        memory = {"commit": convs, "flush": states, "step": both} | ({"verify": states} if self._folds else {})
        return {op: partial(_restore_all, saved) for op, saved in memory.items()}

    # --- checks

    def check(self, checklist: Checklist) -> None:
        """First and last layer of the first set, flushed and verified; states are then what they were."""
        layer_set, context = self._sets[0], self._contexts[0]
        saved = SavedMemory([*layer_set.checkpoint_states, *layer_set.conv_states])
        layers = sorted({0, self._case.num_layers - 1})
        expected = {layer: self._by_reference(layer, self._all_rows)[0] for layer in layers}
        self._flush(context)
        self._check_states(checklist, "flush", expected)
        if self._folds:
            saved.restore()
        before = {layer: layer_set.checkpoint_states[layer].clone() for layer in layers}
        for layer in layers:
            self._out.fill_(torch.nan)
            layer_set.records[layer].correction[self._written.long()] = torch.nan
            self._verify(layer_set, layer)
            self._check_records(checklist, layer)
        if self._folds:
            self._check_states(checklist, "verify", expected)
        else:
            for layer, states in before.items():
                checklist.equal("verify", "untouched", layer_set.checkpoint_states[layer], states, f"layer {layer}")
        self._commit(context)
        checklist.equal("commit", "differing", self._lens[self._written.long()], self._step.num_sampled, "what waits")
        saved.restore()

    def _check_states(self, checklist: Checklist, op: str, expected: dict[int, torch.Tensor]) -> None:
        owned, limit = self._slots.long(), checklist.limits.state(self._case.state_dtype)
        for layer, want in expected.items():
            got = self._sets[0].checkpoint_states[layer]
            checklist.error(op, "state_error", got[owned], want[owned], limit, f"layer {layer}")

    def _by_reference(self, layer: int, rows: RecordRows) -> tuple[torch.Tensor, Records, torch.Tensor]:
        """States, records and outputs of a verify on top of the states as they are, float64."""
        step, layer_set = self._step, self._sets[0]
        states, held = layer_set.checkpoint_states[layer].double(), layer_set.records[layer]
        records = Records(held.correction.double(), held.key_gate.clone())
        out = torch.full_like(self._out, torch.nan, dtype=torch.float64)
        rest = (records, step.layer_gates[layer], step.query_start_loc, self._slots)
        reference.verify(*step.activations, states, *rest, out=out, record_rows=rows)
        return states, records, out

    def _check_records(self, checklist: Checklist, layer: int) -> None:
        """Outputs and records of a verify, against the states as they are after it."""
        _, records, out = self._by_reference(layer, RecordRows(self._written))
        where, u = f"layer {layer}", self._sets[0].records[layer].correction
        written, waiting = self._written.long(), self._waiting.long()
        checklist.error("verify", "out_error", self._out, out, checklist.limits.out, where)
        checklist.error("verify", "u_error", u[written], records.correction[written], checklist.limits.fp32, where)
        checklist.equal("verify", "untouched", u[waiting].double(), records.correction[waiting], f"{where}, waiting")

    def num_non_finite(self) -> int:
        ends = [each.checkpoint_states[layer] for each in self._sets for layer in (0, -1)]
        return num_non_finite([self._out, *ends, *(each.records[-1].correction for each in self._sets)])


def _restore_all(saved: list[SavedMemory]) -> None:
    for memory in saved:
        memory.restore()


def _num_sets(case: BenchCase, l2_bytes: int) -> int:
    return rotations(case.num_requests * case.num_layers * layer_sizes(case).state_bytes, l2_bytes)


DEFERRED = RecoverSSMDeferredProvider()
CHAINED_DEFERRED = RecoverSSMDeferredPdlProvider()


def deferred_providers(case: BenchCase, device: torch.device) -> tuple[Provider, ...]:
    """``recoverssm_deferred`` where the case gets it and verify can fold; elsewhere it is what ``recoverssm`` is.

    And ``recoverssm_deferred_pdl`` where verifies can begin early.
    """
    if case.name not in CASES or card_arch(device) == 0:
        return ()
    pool = inputs.build_state_pools(case, 1, 1, device, None)[0]
    (records,) = inputs.build_records(case.shape, 1, 1, device)
    if not can_fold(pool, records, case.lower_bound):
        return ()
    return (DEFERRED, CHAINED_DEFERRED) if can_chain(device) else (DEFERRED,)
