"""RecoverSSM's commit in cache mode "align": nobody reaches the end of a block, or everybody does, once."""

from functools import partial

import torch

import recoverssm
from recoverssm import cost, layout, reference
from recoverssm.types import AlignInputs, AlignPlan, GateParams

from .. import inputs
from ..cases import BenchCase
from ..checks import Checklist, num_non_finite
from ..harness.records import Contract
from ..harness.restore import SavedMemory
from ..inputs import NUM_UNOWNED_SLOTS
from .bare import num_programs
from .base import Call, Prepared, Provider, Series, layer_sizes
from .recoverssm import STATE_LAUNCH

CASES = frozenset({"kimi_k3_tp8_b32_t8_a3.84_fp32", "kimi_k3_tp8_b32_t8_a3.84_bf16"})
"""The only cases that it is measured on: what a boundary costs beside the commit of ``recoverssm`` on the same case."""

BLOCK_SIZE = 1536  # of an engine that gives Kimi-K3's KDA layers pages as long as those of its FP8 MLA cache
CROSSED_AT = 2
"""Tokens of the window up to the boundary: fewer than any request accepts, so that there are two states to write."""


class RecoverSSMAlignProvider:
    """Plan, state and conv with a block table. ``align`` is the plan, ``commit`` crosses nothing."""

    name = "recoverssm_align"
    series_names: tuple[tuple[str, Contract], ...] = (
        ("align", "graph-cold"),
        ("commit", "graph-cold"),
        ("commit_crossing", "graph-cold"),
    )

    def cache_bytes(self, case: BenchCase) -> int:
        return self._bytes(case, num_slots=2 * case.num_requests)

    def needed_bytes(self, case: BenchCase, l2_bytes: int) -> int:
        pools = self._bytes(case, num_slots=_num_slots(case))
        state_itemsize = inputs.STATE_DTYPES[case.state_dtype].itemsize
        return 2 * pools + 10 * pools // case.num_layers * 8 // state_itemsize  # saved once, and two layers' checks

    def prepare(self, case: BenchCase, device: torch.device, seed: int, l2_bytes: int) -> Prepared:
        """One set of memory: that of all layers is many times an L2."""
        return PreparedAlign(case, device, seed)

    def _bytes(self, case: BenchCase, *, num_slots: int) -> int:
        """Records are counted for as many rows as there are slots, which is more than there are."""
        return layout.state_bytes(
            case.shape,
            num_slots,
            case.num_layers,
            inputs.STATE_DTYPES[case.state_dtype],
            scheme="recoverssm",
            activation_dtype=inputs.ACTIVATION_DTYPE,
        ).total


class PreparedAlign:
    """One set of all layers' caches. Requests own two slots each: of a full block, and of the one that they are in."""

    def __init__(self, case: BenchCase, device: torch.device, seed: int) -> None:
        self._case = case
        generator = inputs.seeded_generator(device, seed)
        self._step = step = inputs.build_step(case, device, generator)
        num_rows, num_slots, num_layers = case.num_requests, _num_slots(case), case.num_layers
        owned = inputs.shuffled_slots(num_slots, 2 * num_rows, device, seed)
        self._full_slots, self._slots = owned[:num_rows].contiguous(), owned[num_rows:].contiguous()
        self._states = inputs.build_state_pools(case, num_layers, num_slots, device, generator)
        self._convs = inputs.build_conv_states(case, num_layers, num_slots, device, generator)
        self._records = inputs.build_records(case.shape, num_layers, num_rows, device)
        for records in self._records:  # what a verify leaves, or as good as that for a commit
            records.correction.normal_(generator=generator)
            records.key_gate.normal_(generator=generator)
        self._context = recoverssm.CommitContext(
            self._states,
            self._records,
            self._convs,
            step.gate,
            max_num_rows=num_rows,
            conv_width=case.shape.conv_width,
            block_size=BLOCK_SIZE,
        )
        self._table = torch.stack((self._full_slots, self._slots), dim=1)
        self._running = torch.ones_like(self._slots)
        self._apart = self._align(BLOCK_SIZE + BLOCK_SIZE // 2)
        self._crossing = self._align(BLOCK_SIZE - CROSSED_AT)
        self._plan = AlignPlan.zeros(num_rows, **self._sizes, device=device)

    @property
    def _sizes(self) -> dict[str, int]:
        return {"spec_query_len": self._case.shape.spec_query_len, "block_size": BLOCK_SIZE}

    def _align(self, num_computed: int) -> AlignInputs:
        return AlignInputs(torch.full_like(self._slots, num_computed), self._table, BLOCK_SIZE, self._running)

    # --- calls

    def _fill_plan(self) -> None:
        step, window = self._step, self._case.shape.spec_query_len
        rows = (step.num_sampled, step.query_start_loc, self._slots)
        recoverssm.align_plan(*rows, self._crossing, self._plan, spec_query_len=window)

    def _commit(self, align: AlignInputs) -> None:
        self._context.commit(self._step.num_sampled, self._step.query_start_loc, self._slots, align=align)

    def _commit_nothing(self) -> None:
        none = torch.zeros_like(self._step.num_sampled)
        self._context.commit(none, self._step.query_start_loc, self._slots, align=self._apart)

    def series(self) -> list[Series]:
        lens, num_rows = self._step.accepted, self._case.num_requests
        saved = SavedMemory([part for pair in zip(self._states, self._convs, strict=True) for part in pair])
        programs = num_programs(self._commit_nothing, STATE_LAUNCH)
        plan_cost = cost.align_plan(lens, [[CROSSED_AT]] * num_rows, num_places=1)
        series = [Series("align", "graph-cold", (self._fill_plan,), plan_cost)]
        for op, align, crossed in (("commit", self._apart, []), ("commit_crossing", self._crossing, [CROSSED_AT])):
            call: Call = partial(self._commit, align)
            moved = cost.commit(
                layer_sizes(self._case), lens, num_layers=self._case.num_layers, crossed=[crossed] * num_rows
            )
            series.append(Series(op, "graph-cold", (call,), moved, 3, programs, saved.restore))
        return series

    # --- checks

    def check(self, checklist: Checklist) -> None:
        """First and last layer, crossing and not; states and windows are then what they were."""
        saved = SavedMemory([*self._states, *self._convs])
        for op, align in (("commit_crossing", self._crossing), ("commit", self._apart)):
            self._check_commit(checklist, op, align, sorted({0, self._case.num_layers - 1}))
            saved.restore()

    def _check_commit(self, checklist: Checklist, op: str, align: AlignInputs, layers: list[int]) -> None:
        step, window = self._step, self._case.shape.spec_query_len
        states, windows = ([pools[layer] for layer in layers] for pools in (self._states, self._convs))
        before = [state.clone() for state in states]
        expected, expected_windows = [state.double() for state in states], [conv.clone() for conv in windows]
        plan = AlignPlan.zeros(len(self._slots), **self._sizes, device=self._slots.device)
        rows = (step.num_sampled, step.query_start_loc, self._slots)
        reference.align_plan(*rows, align, plan, spec_query_len=window)
        gate = GateParams(step.gate.A_log[layers], step.gate.dt_bias[layers], step.gate.lower_bound)
        records, crossed = [self._records[layer] for layer in layers], plan.boundaries
        reference.commit_state(expected, records, plan.commit, gate, boundaries=crossed)
        reference.compact_conv(
            expected_windows, plan.commit, conv_width=self._case.shape.conv_width, boundaries=crossed
        )
        wanted = int(op == "commit_crossing") * len(self._slots)
        checklist.count(op, "not_crossed", abs(int((crossed.slots > 0).sum()) - wanted), "boundaries of the case")

        self._commit(align)
        self._fill_plan()
        written = torch.zeros(_num_slots(self._case), dtype=torch.bool, device=self._slots.device)
        written[plan.commit.final_slots.long()] = True
        written[crossed.slots[crossed.slots > 0].long()] = True
        limit = checklist.limits.state(self._case.state_dtype)
        for layer, state, want, old in zip(layers, states, expected, before, strict=True):
            checklist.error(op, "state_error", state[written], want[written], limit, f"layer {layer}")
            checklist.equal(op, "untouched", state[~written], old[~written], f"layer {layer}, other slots")
        for layer, conv, want in zip(layers, windows, expected_windows, strict=True):
            checklist.equal(op, "differing", conv, want, f"layer {layer}, whole windows of all slots")
        if align is self._crossing:
            for name in ("lens", "slots"):
                checklist.equal(
                    "align", "differing", getattr(self._plan.boundaries, name), getattr(crossed, name), name
                )

    def num_non_finite(self) -> int:
        return num_non_finite([self._states[0], self._states[-1], self._records[-1].correction])


def _num_slots(case: BenchCase) -> int:
    return 2 * case.num_requests + NUM_UNOWNED_SLOTS


ALIGN = RecoverSSMAlignProvider()


def align_providers(case: BenchCase) -> tuple[Provider, ...]:
    """``recoverssm_align`` where the case gets it."""
    return (ALIGN,) if case.name in CASES else ()
