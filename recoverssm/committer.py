"""CommitContext: everything one commit over all layers needs, set up once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.compiler import is_compiling

from recoverssm.checks import ACTIVATION_DTYPES, check_tensor, check_window
from recoverssm.dispatch import describe
from recoverssm.errors import ArgumentError, ShapeError
from recoverssm.faults import check_counts, check_rows, check_written
from recoverssm.ops import align_plan, commit_plan, commit_state, compact_conv, defer_plan
from recoverssm.ops.verify import can_take_history
from recoverssm.types import (
    AlignInputs,
    AlignPlan,
    Boundaries,
    CommitPlan,
    GateParams,
    LayerTable,
    RecordRows,
    Records,
)

MIN_HISTORY_HEADS = 48
"""Request-heads, rows of the padded batch x heads, from which a verify takes what waits as history.

With fewer it is committed before. On an H200 history adds 0.3 to 0.4 us a layer to such a verify; the commit that it
saves in two steps of three takes 0.5 us a layer at 12 request-heads and 1.7 at 48 (docs/decisions/0032).
"""


@dataclass(frozen=True, slots=True)
class _Plans:
    """The plan of a step of so many rows, and with deferred commits the part of it that is committed now.

    Views, kept as making them costs as much as a launch. Both have the same slots.
    """

    step: AlignPlan
    now: CommitPlan
    boundaries_now: Boundaries


class CommitContext:
    """Commits a verified window in all layers by three launches: plan, then state, then conv.

    A commit allocates nothing, does not wait for the device and may be captured in a CUDA graph.

    Holds raw addresses: the tensors must neither move nor be resized while the context lives.

    Args:
        checkpoint_states: per layer [P, H, V, K] fp32 or bf16.
        records: per layer, as ``verify`` writes them; T is what ``history_len`` leaves of an entry.
        conv_states: per layer [P, conv_state_len, 3HD], all strides free as in ``compact_conv``; empty when the engine
            compacts elsewhere.
        gate: stacked over layers, A_log [L, H], dt_bias [L, H, K] fp32.
        max_num_rows: rows of the largest batch, at most R where records go by row; sizes the plan.
        conv_width: taps of the short convolution.
        block_size: tokens of a block in cache mode "align", whose states are then written where they end; else None.
        debug: wait for the device at each commit and look at what it holds, unless a CUDA graph is captured
            or torch traces.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError: layers that differ, records of too few rows, conv windows of
            too few tokens, and whatever else a later commit would refuse.
        ArgumentError: some layers' records by slot, others' by row; or with other room for what waits.
    """

    def __init__(
        self,
        checkpoint_states: Sequence[Tensor],
        records: Sequence[Records],
        conv_states: Sequence[Tensor],
        gate: GateParams,
        *,
        max_num_rows: int,
        conv_width: int = 4,
        block_size: int | None = None,
        debug: bool = False,
    ) -> None:
        for name, layers in (("records", records), ("conv_states", conv_states)):
            if layers and len(layers) != len(checkpoint_states):
                raise ShapeError(f"{name}: expected {len(checkpoint_states)} layers, got {len(layers)}")
        self._states = LayerTable.of("checkpoint_states", checkpoint_states)
        self._corrections = LayerTable.of("records.correction", [r.correction for r in records])
        self._key_gates = LayerTable.of("records.key_gate", [r.key_gate for r in records])
        self._convs = LayerTable.of("conv_states", conv_states) if conv_states else None
        _check_alike(records)
        self._by_slot = records[0].by_slot
        self._gate = gate
        self._conv_width = conv_width
        self._debug = debug
        self._num_slots = checkpoint_states[0].shape[0]
        device = checkpoint_states[0].device
        # A plan of no rows launches nothing, but is checked: no later commit fails between its launches.
        self._commit_layers(CommitPlan(*torch.zeros((3, 0), dtype=torch.int32, device=device).unbind()))
        num_records, _, record_len, _ = records[0].correction.shape
        self._history_len = records[0].history_len
        self._spec_query_len = check_window(record_len, self._history_len)
        if max_num_rows < 1 or (max_num_rows > num_records and not self._by_slot):
            raise ShapeError(f"max_num_rows: expected 1 to {num_records}, the rows of records, got {max_num_rows}")
        if conv_states:
            conv = describe(conv_states[0])
            check_tensor("conv_states", conv, "P S C", (self._num_slots, None, None), ACTIVATION_DTYPES, device)
            needed = conv_width - 1 + self._spec_query_len - 1
            if conv.shape[1] < needed:
                raise ShapeError(
                    f"conv_states: expected windows of at least {needed} tokens (conv_width - 1 + T - 1), "
                    f"got {conv.shape[1]}"
                )
        self._block_size = block_size
        window = self._spec_query_len
        self._buffer = AlignPlan.zeros(
            max_num_rows, spec_query_len=window, block_size=window if block_size is None else block_size, device=device
        )
        self._lens_now = torch.zeros_like(self._buffer.commit.commit_lens)
        self._boundary_lens_now = torch.zeros_like(self._buffer.boundaries.lens)
        self._plans: dict[int, _Plans] = {}
        takes_history = partial(can_take_history, lower_bound=gate.lower_bound)
        self._can_take_history = all(map(takes_history, checkpoint_states, records))
        self._full_entries = torch.arange(max_num_rows + 1, dtype=torch.int32, device=device) * self._history_len
        waiting = [torch.zeros(max_num_rows, dtype=torch.int32, device=device) for _ in range(6)]
        # A step's verifies and its commit may still have to read the first when what waits for others is committed.
        self._history, self._flushed = CommitPlan(*waiting[:3]), CommitPlan(*waiting[3:])

    @property
    def device(self) -> torch.device:
        """Where pools and records lie."""
        return self._states.element_type.device

    @property
    def num_records(self) -> int:
        """R, the entries of records."""
        return self._corrections.element_type.shape[0]

    @property
    def history_len(self) -> int:
        """The most tokens of an entry that may wait."""
        return self._history_len

    def takes_history(self, num_rows: int) -> bool:
        """Whether verify of so many rows, padding included, takes what waits as history; else it is committed before.

        The padded batch decides, as it does which graph runs: what a graph holds cannot change.

        Raises:
            ShapeError: more than max_num_rows.
        """
        self._check_num_rows(num_rows)
        num_heads = self._states.element_type.shape[1]
        return self._can_take_history and num_rows * num_heads >= MIN_HISTORY_HEADS

    def commit(
        self,
        num_sampled: Tensor,
        query_start_loc: Tensor,
        state_indices: Tensor,
        *,
        request_indices: Tensor | None = None,
        align: AlignInputs | None = None,
        record_rows: RecordRows | None = None,
        waiting_lens: Tensor | None = None,
    ) -> CommitPlan:
        """Commit the last verified window and return the plan, a view that the next commit overwrites.

        Arguments as in ``commit_plan``, or in ``align_plan`` where there are blocks. Runs on the current stream; may be
        captured in a CUDA graph.

        Args:
            record_rows: with deferred commits, what the step's verifies were given. ``defer_plan`` then decides what is
                committed now, and what waits. Conv windows do not wait.
            waiting_lens: [R] int32, as in ``defer_plan``.
        Raises:
            ShapeError, DtypeError, StrideError, DeviceError: before any launch.
            ArgumentError: ``align`` is missing, is of no use here, or has blocks of another size; one of record_rows
                and waiting_lens without the other; with ``debug``, a count above the tokens of its row or below 0, or a
                slot outside the pool or of two rows.
        """
        block_size = None if align is None else align.block_size
        if block_size != self._block_size:
            raise ArgumentError(f"align: expected block_size={self._block_size} as in this context, got {block_size}")
        if (record_rows is None) != (waiting_lens is None):
            raise ArgumentError("record_rows, waiting_lens: expected both, with deferred commits, or neither, got one")
        if waiting_lens is not None:
            self._check_waiting_lens(waiting_lens)
        plans = self._plans_of(state_indices.numel())
        plan, boundaries = plans.step, None if align is None else plans.step.boundaries
        rows, window = (num_sampled, query_start_loc, state_indices), self._spec_query_len
        if self._debug and not is_compiling():
            check_rows(query_start_loc, state_indices, num_slots=self._num_slots)
            check_counts(*rows, request_indices, spec_query_len=window)
        if align is None:
            commit_plan(*rows, plan.commit, spec_query_len=window, request_indices=request_indices)
        else:
            align_plan(*rows, align, plan, spec_query_len=window, request_indices=request_indices)
        if self._debug and not is_compiling():
            check_written(plan.commit, boundaries, num_slots=self._num_slots)
        if record_rows is None or waiting_lens is None:  # neither
            self._commit_layers(plan.commit, boundaries)
            return plan.commit
        now, boundaries_now = plans.now, None if align is None else plans.boundaries_now
        defer_plan(
            plan.commit,
            record_rows,
            waiting_lens,
            now.commit_lens,
            history_len=self._history_len,
            boundary_lens=None if boundaries is None else boundaries.lens,
            boundary_lens_now=None if boundaries_now is None else boundaries_now.lens,
        )
        has_history = record_rows.history_lens is not None
        if has_history or boundaries is not None or window > self._history_len:  # else everything waits
            self._commit_states(now, boundaries_now, record_rows.written)
        self._compact_convs(plan.commit, boundaries)
        return plan.commit

    def plan_waiting(self, waiting: Tensor, waiting_lens: Tensor, state_indices: Tensor) -> Tensor:
        """How many tokens wait for each row: [N] int32, at an address that depends on the number of rows alone.

        Args:
            waiting: [N] int32, entries of the records, -1 for none. state_indices: [N] int32.
            waiting_lens: [R] int32, what ``commit`` left there.
        """
        return self._plan_waiting(self._history, waiting, waiting_lens, state_indices).commit_lens

    def commit_waiting(self, waiting: Tensor, waiting_lens: Tensor, state_indices: Tensor) -> None:
        """Commit what waits for the states in slots ``state_indices``; arguments as in ``plan_waiting``."""
        self._commit_states(self._plan_waiting(self._flushed, waiting, waiting_lens, state_indices), None, waiting)

    def _plan_waiting(
        self, buffer: CommitPlan, waiting: Tensor, waiting_lens: Tensor, state_indices: Tensor
    ) -> CommitPlan:
        num_rows = state_indices.numel()
        self._check_num_rows(num_rows)
        self._check_waiting_lens(waiting_lens)
        rows = (buffer.commit_lens, buffer.source_slots, buffer.final_slots)
        plan = CommitPlan(*(row[:num_rows] for row in rows))
        starts = self._full_entries[: num_rows + 1]
        sizes = {"spec_query_len": self._history_len}
        commit_plan(waiting_lens, starts, state_indices, plan, request_indices=waiting, **sizes)
        return plan

    def shares_rows_with(self, other: "CommitContext") -> bool:
        """Whether both commit records by row from the same memory, which two steps in flight must not."""
        mine, theirs = ({x.data_ptr() for x in each._corrections.tensors} for each in (self, other))
        return not self._by_slot and not mine.isdisjoint(theirs)

    def _plans_of(self, num_rows: int) -> _Plans:
        """The fronts of the plan buffers."""
        self._check_num_rows(num_rows)
        if num_rows not in self._plans:
            step = self._buffer.front(num_rows)
            self._plans[num_rows] = _Plans(
                step,
                replace(step.commit, commit_lens=self._lens_now[:num_rows]),
                replace(step.boundaries, lens=self._boundary_lens_now[:num_rows]),
            )
        return self._plans[num_rows]

    def _check_num_rows(self, num_rows: int) -> None:
        max_num_rows = self._buffer.final_columns.numel()
        if num_rows > max_num_rows:
            raise ShapeError(f"state_indices: expected at most max_num_rows={max_num_rows} rows, got {num_rows}")

    def _check_waiting_lens(self, waiting_lens: Tensor) -> None:
        """Tokens of entries that it lacks would be forgotten."""
        if waiting_lens.numel() < self.num_records:
            raise ShapeError(f"waiting_lens: expected [R={self.num_records}], got {list(waiting_lens.shape)}")

    def _commit_layers(self, plan: CommitPlan, boundaries: Boundaries | None = None) -> None:
        self._commit_states(plan, boundaries)
        self._compact_convs(plan, boundaries)

    def _commit_states(
        self, plan: CommitPlan, boundaries: Boundaries | None = None, record_rows: Tensor | None = None
    ) -> None:
        tables = (self._states, self._corrections, self._key_gates)
        commit_state(*tables, plan, self._gate, by_slot=self._by_slot, record_rows=record_rows, boundaries=boundaries)

    def _compact_convs(self, plan: CommitPlan, boundaries: Boundaries | None) -> None:
        if self._convs is not None:
            compact_conv(self._convs, plan, conv_width=self._conv_width, boundaries=boundaries)


def _check_alike(records: Sequence[Records]) -> None:
    for (layer, record), name in product(enumerate(records), ("by_slot", "history_len")):
        expected, got = getattr(records[0], name), getattr(record, name)
        if got != expected:
            raise ArgumentError(
                f"records[{layer}]: expected {name}={expected} as in layer 0, got {got}; one launch commits all layers"
            )
