"""RecoverSSM: verify from one checkpoint and records, then commit over all layers; what is measured and checked."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

import recoverssm
from recoverssm import cost, layout, reference
from recoverssm.types import CommitPlan, GateParams, LayerTable, Records

from .. import inputs
from ..cases import BenchCase
from ..checks import Checklist, num_non_finite
from ..harness.records import Contract
from ..harness.restore import SavedMemory
from ..inputs import NUM_UNOWNED_SLOTS, LayerSet
from .bare import host_series, num_programs
from .base import Call, Prepared, Series, activation_bytes, layer_sizes, ragged_query_start_loc
from .recoverssm_calls import RecoverSSMCalls, count_sets

STATE_LAUNCH = 1  # a commit launches its plan, states and conv windows, in this order


class RecoverSSMProvider:
    """Verify and commit of this library."""

    name = "recoverssm"
    series_names: tuple[tuple[str, Contract], ...] = (
        ("verify", "graph-cold"),
        ("commit_plan", "graph-cold"),
        ("commit_state", "graph-cold"),
        ("conv", "graph-cold"),
        ("commit", "graph-cold"),
        ("step", "graph-cold"),
        ("verify", "host-dispatch"),
        ("verify_launch", "host-dispatch"),
        ("commit", "host-dispatch"),
        ("commit_launch", "host-dispatch"),
    )

    def cache_bytes(self, case: BenchCase) -> int:
        return self._bytes(case, num_unowned_slots=0).total

    def needed_bytes(self, case: BenchCase, l2_bytes: int) -> int:
        one_set = self._bytes(case, num_unowned_slots=NUM_UNOWNED_SLOTS)
        num_sets, num_conv_sets = count_sets(case, l2_bytes)
        float64_pool = 8 * (case.num_requests + NUM_UNOWNED_SLOTS) * _state_elements(case)
        sets = num_sets * one_set.total + (num_conv_sets - num_sets) * one_set.conv_state
        return (
            2 * sets  # once more to restore from; records need no restoring
            + activation_bytes(case)
            + 10 * float64_pool  # the reference of two layers and its temporaries
        )

    def prepare(self, case: BenchCase, device: torch.device, seed: int, l2_bytes: int) -> Prepared:
        return PreparedRecoverSSM(case, device, seed, l2_bytes, self.set_bytes(case))

    def set_bytes(self, case: BenchCase) -> int:
        """Bytes that one set of all layers' caches should take, slots that nobody owns included."""
        return self._bytes(case, num_unowned_slots=NUM_UNOWNED_SLOTS).total

    def _bytes(self, case: BenchCase, *, num_unowned_slots: int) -> layout.StateBytes:
        return layout.state_bytes(
            case.shape,
            case.num_requests,
            case.num_layers,
            inputs.STATE_DTYPES[case.state_dtype],
            scheme="recoverssm",
            activation_dtype=inputs.ACTIVATION_DTYPE,
            num_unowned_slots=num_unowned_slots,
        )


class PreparedRecoverSSM(RecoverSSMCalls):
    """Its series and its checks."""

    def series(self) -> list[Series]:
        case, lens = self._case, self._step.accepted
        sizes, num_layers = layer_sizes(case), case.num_layers
        rows = {"num_rows": case.num_requests, "num_tokens": case.num_requests * case.shape.spec_query_len}
        costs = {
            "verify": cost.verify(sizes, **rows),
            "commit_plan": cost.commit_plan(num_rows=case.num_requests),
            "commit_state": cost.commit_state(sizes, lens).times(num_layers),
            "conv": cost.compact_conv(sizes, lens).times(num_layers),
            "commit": cost.commit(sizes, lens, num_layers=num_layers),
            "step": cost.step(sizes, lens, num_layers=num_layers, **rows),
        }
        calls: dict[str, list[Call]] = {
            "verify": [
                partial(self._verify, layer_set, layer) for layer_set in self._sets for layer in range(num_layers)
            ],
            "commit_plan": list(self._placed.calls),
            "commit_state": [self._commit_state_call(layer_set) for layer_set in self._sets],
            "conv": [
                partial(recoverssm.compact_conv, table, self._plan, conv_width=case.shape.conv_width)
                for table in self._conv_tables
            ],
            "commit": [partial(self._commit, context) for context in self._contexts],
            "step": [
                partial(self._step_call, layer_set, context)
                for layer_set, context in zip(self._sets, self._contexts, strict=True)
            ],
        }
        num_kernels = {"commit": 3, "step": num_layers + 3}
        programs = {
            "verify": num_programs(self._verify_nothing),
            "commit_state": num_programs(self._commit_nothing, STATE_LAUNCH),
        }
        programs["commit"] = programs["commit_state"]  # which moves nearly all of its bytes
        restores = self._restores()
        device_series = [
            Series(
                op,
                "graph-cold",
                tuple(calls[op]),
                costs[op],
                num_kernels.get(op, 1),
                programs.get(op),
                restores.get(op),
            )
            for op in calls
        ]
        return [
            *device_series,
            *host_series("verify", self._verify_nothing, costs["verify"]),
            *host_series("commit", self._commit_nothing, costs["commit"]),
        ]

    def _restores(self) -> dict[str, Call]:
        """By op, what undoes its calls, in their order. Verify reads what it does not write."""
        states = [SavedMemory(layer_set.checkpoint_states) for layer_set in self._sets]
        convs = [SavedMemory(conv_states) for conv_states in self._conv_sets]
        committed = [part for pair in zip(states, convs, strict=False) for part in pair]
        return {
            "commit_state": partial(_restore_all, states),
            "conv": partial(_restore_all, convs),
            "commit": partial(_restore_all, committed),
            "step": partial(_restore_all, committed),
        }

    def _commit_state_call(self, layer_set: LayerSet) -> Call:
        tables = (
            LayerTable.of("checkpoint_states", layer_set.checkpoint_states),
            LayerTable.of("corrections", [records.correction for records in layer_set.records]),
            LayerTable.of("key_gates", [records.key_gate for records in layer_set.records]),
        )
        return partial(recoverssm.commit_state, *tables, self._plan, self._step.gate)

    def check(self, checklist: Checklist) -> None:
        """First and last layer of the first set; then the rest is verified too, so that all records are real."""
        checklist.count("state", "bytes_off", self._bytes_off, "allocator's requested bytes of one set against layout")
        layers = sorted({0, self._case.num_layers - 1})
        self._check_ragged_verify(checklist, 0)
        for layer in layers:
            self._check_verify(checklist, layer)
        for number, layer_set in enumerate(self._sets):
            for layer in range(self._case.num_layers):
                if number > 0 or layer not in layers:
                    self._verify(layer_set, layer)
        self._check_commit(checklist, layers)

    def _check_verify(self, checklist: Checklist, layer: int) -> None:
        step, records, checkpoint = self._step, self._sets[0].records[layer], self._sets[0].checkpoint_states[layer]
        before = checkpoint.clone()
        self._out.fill_(torch.nan)
        self._verify(self._sets[0], layer)

        expected = torch.full_like(self._out, torch.nan, dtype=torch.float64)
        expected_records = Records(torch.empty_like(records.correction, dtype=torch.float64), records.key_gate.clone())
        reference.verify(
            step.q,
            step.k,
            step.v,
            step.raw_gate,
            step.raw_beta,
            before,
            expected_records,
            step.layer_gates[layer],
            step.query_start_loc,
            self._slots,
            out=expected,
        )
        where = f"layer {layer}"
        checklist.error("verify", "out_error", self._out, expected, checklist.limits.out, where)
        checklist.error(
            "verify", "u_error", records.correction, expected_records.correction, checklist.limits.fp32, where
        )
        checklist.equal("verify", "untouched", checkpoint, before, f"{where}, checkpoint")
        checklist.equal(
            "verify", "differing", records.key_gate, self._expected_key_gate(), f"{where}, key and raw gate"
        )

    def _expected_key_gate(self) -> Tensor:
        window = self._case.shape.spec_query_len
        key_gate = torch.cat((self._step.k, self._step.raw_gate), dim=-1)  # [M, H, 2K]
        return key_gate.view(self._case.num_requests, window, *key_gate.shape[1:]).transpose(1, 2)

    def _check_ragged_verify(self, checklist: Checklist, layer: int) -> None:
        """The last window a token shorter, and the first row (if it is another) without a slot."""
        slots = self._slots.clone()
        has_null_row = self._case.num_requests > 1
        if has_null_row:
            slots[0] = 0
        checkpoint = self._sets[0].checkpoint_states[layer]
        before = checkpoint.clone()
        records, unwritten = inputs.build_records(self._case.shape, 2, self._case.num_requests, checkpoint.device)
        out = torch.full_like(self._out, torch.nan)
        query_start_loc = ragged_query_start_loc(self._step.query_start_loc)
        self._verify_into(checkpoint, records, layer, out, query_start_loc, slots)

        where = f"layer {layer}, last window one token short"
        checklist.equal("verify", "untouched", checkpoint, before, f"{where}, checkpoint")
        checklist.equal("verify", "untouched", out[-1:], torch.full_like(out[-1:], torch.nan), f"{where}, output")
        for name in ("correction", "key_gate"):
            actual, nan = getattr(records, name), getattr(unwritten, name)
            checklist.equal("verify", "untouched", actual[-1, :, -1], nan[-1, :, -1], f"{where}, {name}")
            if has_null_row:
                checklist.equal("verify", "untouched", actual[0], nan[0], f"layer {layer}, null row, {name}")
        if has_null_row:
            window = out[: self._case.shape.spec_query_len]
            checklist.equal("verify", "differing", window, torch.zeros_like(window), f"layer {layer}, null row's zeros")

    def _check_commit(self, checklist: Checklist, layers: Sequence[int]) -> None:
        case, step, layer_set = self._case, self._step, self._sets[0]
        states = [layer_set.checkpoint_states[layer] for layer in layers]
        windows = [layer_set.conv_states[layer] for layer in layers]
        states_before = [state.clone() for state in states]
        expected_states = [state.double() for state in states]
        expected_windows = [window.clone() for window in windows]
        plan = CommitPlan(*(torch.full_like(self._slots, -1) for _ in range(3)))
        reference.commit_plan(
            step.num_sampled, step.query_start_loc, self._slots, plan, spec_query_len=case.shape.spec_query_len
        )
        gate = GateParams(step.gate.A_log[layers], step.gate.dt_bias[layers], step.gate.lower_bound)
        reference.commit_state(expected_states, [layer_set.records[layer] for layer in layers], plan, gate)
        reference.compact_conv(expected_windows, plan, conv_width=case.shape.conv_width)

        self._commit(self._contexts[0])
        self._fill_plan()
        for call in self._placed.calls:
            call()
        for name in ("commit_lens", "source_slots", "final_slots"):
            filled = torch.stack([getattr(one, name) for one in (self._plan, *self._placed.plans)])
            checklist.equal("commit_plan", "differing", filled, getattr(plan, name).expand_as(filled), name)
        owned = self._slots.long()
        unowned = torch.ones(self._num_slots, dtype=torch.bool, device=owned.device)
        unowned[owned] = False
        limit = checklist.limits.state(case.state_dtype)
        for layer, state, expected, before in zip(layers, states, expected_states, states_before, strict=True):
            checklist.error("commit_state", "state_error", state[owned], expected[owned], limit, f"layer {layer}")
            checklist.equal(
                "commit_state", "untouched", state[unowned], before[unowned], f"layer {layer}, slots nobody owns"
            )
        for layer, actual, expected in zip(layers, windows, expected_windows, strict=True):
            checklist.equal("conv", "differing", actual, expected, f"layer {layer}, whole windows of all slots")

    def num_non_finite(self) -> int:
        ends = [layer_set.checkpoint_states[layer] for layer_set in self._sets for layer in (0, -1)]
        records = [layer_set.records[-1].correction for layer_set in self._sets]
        return num_non_finite([self._out, *ends, *records])


def _restore_all(saved: Sequence[SavedMemory]) -> None:
    for memory in saved:
        memory.restore()


def _state_elements(case: BenchCase) -> int:
    return case.shape.num_heads * case.shape.value_dim * case.shape.key_dim
