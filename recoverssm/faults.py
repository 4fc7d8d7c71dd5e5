"""Faults in what the device holds, which no check of shapes can see. Each function waits for the device.

Kernels clip or skip what they can, and trust the rest: a slot outside the pool reads somebody else's memory. These are
what ``debug`` options run before a launch; while a CUDA graph is captured there is nothing to look at, and they pass.
"""

from itertools import pairwise

import torch
from torch import Tensor

from recoverssm.checks import check_row_vector
from recoverssm.dispatch import describe
from recoverssm.errors import ArgumentError
from recoverssm.types import NULL_SLOT, Boundaries, CommitPlan, RecordRows, Records


def check_rows(
    query_start_loc: Tensor, state_indices: Tensor, *, num_slots: int, num_tokens: int | None = None
) -> None:
    """Check that every row's slot is in the pool and its own, and that its tokens exist.

    Args:
        query_start_loc: [N + 1] int32. state_indices: [N] int32, 0 or less for a row without a slot.
        num_slots: P of the pools. num_tokens: M, None where tokens are not at hand.
    Raises:
        ArgumentError: a slot outside the pool, a slot of two rows, starts that decrease or pass ``num_tokens``.
        ShapeError, DtypeError, StrideError, DeviceError: they are no such vectors.
    """
    device = state_indices.device
    check_row_vector("state_indices", describe(state_indices), None, device)
    check_row_vector("query_start_loc", describe(query_start_loc), state_indices.numel() + 1, device)
    if _is_capturing(device):
        return
    starts = query_start_loc.tolist()
    for row, (first, end) in enumerate(pairwise(starts)):
        if not 0 <= first <= end:
            raise ArgumentError(
                f"query_start_loc: expected starts from 0 on that do not decrease, got {first} to {end} for row {row}"
            )
    if num_tokens is not None and starts[-1] > num_tokens:
        raise ArgumentError(f"query_start_loc: expected to end at no more than M={num_tokens} tokens, got {starts[-1]}")
    rows_of: dict[int, int] = {}
    for row, slot in enumerate(state_indices.tolist()):
        _check_slot(f"state_indices[{row}]", slot, num_slots)
        has_tokens = starts[row] < starts[row + 1]
        if has_tokens and slot > NULL_SLOT and rows_of.setdefault(slot, row) != row:
            raise ArgumentError(
                f"state_indices: expected a slot of its own for every row, got {slot} for row {rows_of[slot]} and {row}"
            )


def check_entries(rows: RecordRows, query_start_loc: Tensor, state_indices: Tensor, records: Records) -> None:
    """Check that every live row has an entry of its own, and no more history than there is room for.

    Args:
        query_start_loc, state_indices: as for ``check_rows``, which they have passed.
    Raises:
        ArgumentError: an entry outside the records or of two rows, or history of another length.
        ShapeError, DtypeError, StrideError, DeviceError: ``rows`` are no such vectors.
    """
    device, num_rows = state_indices.device, state_indices.numel()
    for name in ("written", "history_lens"):
        if (vector := getattr(rows, name)) is not None:
            check_row_vector(f"record_rows.{name}", describe(vector), num_rows, device)
    if _is_capturing(device):
        return
    live = ((state_indices > NULL_SLOT) & (query_start_loc.diff() > 0)).tolist()
    written, num_records = rows.written.tolist(), records.correction.shape[0]
    lens = [0] * num_rows if rows.history_lens is None else rows.history_lens.tolist()
    row_of: dict[int, int] = {}
    for row in (row for row, is_live in enumerate(live) if is_live):
        entry = written[row]
        if not 0 <= entry < num_records:
            raise ArgumentError(
                f"record_rows.written[{row}]: expected 0 to {num_records - 1}, an entry of the records, got {entry}; "
                "they are what record_step gave for this step"
            )
        if row_of.setdefault(entry, row) != row:
            raise ArgumentError(
                f"record_rows.written[{row}]: expected an entry of its own, got {entry}, which row {row_of[entry]} has"
            )
        if not 0 <= lens[row] <= records.history_len:
            raise ArgumentError(
                f"record_rows.history_lens[{row}]: expected 0 to {records.history_len}, the positions in front of the "
                f"window, got {lens[row]}"
            )


def check_counts(
    num_sampled: Tensor,
    query_start_loc: Tensor,
    state_indices: Tensor,
    request_indices: Tensor | None,
    *,
    spec_query_len: int,
) -> None:
    """Check that no row with a slot has sampled more tokens than it had, or fewer than none.

    Args:
        num_sampled, query_start_loc, state_indices, request_indices, spec_query_len: as for ``commit_plan``. Rows that
            pad a CUDA graph, whose request row is negative, may have any count.
    Raises:
        ArgumentError: such a count, or a request row behind the last one.
        ShapeError, DtypeError, StrideError, DeviceError: they are no such vectors.
    """
    device = state_indices.device
    check_row_vector("num_sampled", describe(num_sampled), None, device)
    if request_indices is not None:
        check_row_vector("request_indices", describe(request_indices), state_indices.numel(), device)
    if _is_capturing(device):
        return
    slots, counts = state_indices.tolist(), num_sampled.tolist()
    requests = range(len(slots)) if request_indices is None else request_indices.tolist()
    starts = query_start_loc.tolist()
    for row, (slot, request) in enumerate(zip(slots, requests, strict=True)):
        query_len = min(starts[row + 1] - starts[row], spec_query_len)
        if slot <= NULL_SLOT or request < 0 or query_len == 0:
            continue
        if request >= len(counts):
            raise ArgumentError(
                f"num_sampled: expected a count for request row {request} of row {row}, got {len(counts)} counts"
            )
        if not 0 <= counts[request] <= query_len:
            raise ArgumentError(
                f"num_sampled[{request}]: expected 0 to {query_len}, the tokens of row {row} (state slot {slot}), "
                f"got {counts[request]}"
            )


def check_written(plan: CommitPlan, boundaries: Boundaries | None, *, num_slots: int) -> None:
    """Check that a plan writes slots of the pool alone, and none that two rows write or another row reads.

    What a row itself reads it may write as its final slot, but not as a boundary's.

    Raises:
        ArgumentError: such a slot.
    """
    if _is_capturing(plan.final_slots.device):
        return
    sources = {slot: row for row, slot in enumerate(plan.source_slots.tolist()) if slot > NULL_SLOT}
    written = [[slot] for slot in plan.final_slots.tolist()]
    if boundaries is not None:
        for row, slots in enumerate(boundaries.slots.tolist()):
            for slot in {*slots} - {*written[row]}:
                if sources.get(slot) == row:
                    raise ArgumentError(f"plan: expected no boundary of row {row} in its source slot {slot}")
            written[row] += slots
    rows_of: dict[int, int] = {}
    for row, slots in enumerate(written):
        for slot in slots:
            _check_slot(f"plan: row {row}", slot, num_slots)
            other = rows_of.setdefault(slot, row) if slot > NULL_SLOT else row
            other = sources.get(slot, row) if other == row else other
            if other != row:
                raise ArgumentError(f"plan: expected slot {slot} to be one row's, got rows {other} and {row}")


def _check_slot(name: str, slot: int, num_slots: int) -> None:
    if slot >= num_slots:
        raise ArgumentError(f"{name}: expected a slot below P={num_slots}, the pool, or 0 for none, got {slot}")


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
