"""Align plan: the commit plan of a prefix-caching engine, with the block boundaries that each row crosses."""

import torch
from torch import Tensor

from recoverssm.reference.columns import block_column, block_end
from recoverssm.reference.commit_plan import commit_plan
from recoverssm.types import NULL_SLOT, AlignInputs, AlignPlan


def align_plan(
    num_sampled: Tensor,
    query_start_loc: Tensor,
    state_indices: Tensor,
    align: AlignInputs,
    plan: AlignPlan,
    *,
    spec_query_len: int,
    request_indices: Tensor | None = None,
) -> None:
    """Fill ``plan`` in place: lengths and sources as ``commit_plan``, finals and boundaries from the block table.

    A row whose final column has no slot gets zeros; a boundary without a slot is left out, its place zero.

    Args:
        num_sampled, query_start_loc, state_indices, spec_query_len, request_indices: as for ``commit_plan``.
        align: num_computed [B], block_table [B, C], by request row; running_columns [B], written, or None.
        plan: tensors of N rows, of J boundaries each.
    Source: docs/algorithm.md section 8.
    """
    commit_plan(
        num_sampled,
        query_start_loc,
        state_indices,
        plan.commit,
        spec_query_len=spec_query_len,
        request_indices=request_indices,
    )
    commit_lens, source_slots = plan.commit.commit_lens.tolist(), plan.commit.source_slots.tolist()
    requests = range(len(commit_lens)) if request_indices is None else request_indices.tolist()
    num_boundaries = plan.boundaries.lens.shape[1]
    rows, boundaries, columns = [], [], []
    for commit_len, source_slot, request in zip(commit_lens, source_slots, requests, strict=True):
        row, crossed, column = (0, NULL_SLOT, NULL_SLOT), [], -1
        if commit_len > 0 and align.num_computed[request] >= 0:
            num_computed, table = int(align.num_computed[request]), align.block_table[request].tolist()
            final = block_column(num_computed + commit_len, align.block_size)
            if final < len(table) and table[final] > NULL_SLOT:
                row, column = (commit_len, source_slot, table[final]), final
                crossed = _boundaries(num_computed, commit_len, table, align.block_size)
                if align.running_columns is not None:
                    align.running_columns[request] = final
        rows.append(row)
        columns.append(column)
        boundaries.append((crossed + [(0, NULL_SLOT)] * num_boundaries)[:num_boundaries])

    lens, sources, finals = torch.tensor(rows, dtype=torch.int64).reshape(-1, 3).unbind(1)
    plan.commit.commit_lens.copy_(lens)
    plan.commit.source_slots.copy_(sources)
    plan.commit.final_slots.copy_(finals)
    lens, slots = torch.tensor(boundaries, dtype=torch.int64).reshape(-1, num_boundaries, 2).unbind(2)
    plan.boundaries.lens.copy_(lens)
    plan.boundaries.slots.copy_(slots)
    plan.final_columns.copy_(torch.tensor(columns))


def _boundaries(num_computed: int, commit_len: int, table: list[int], block_size: int) -> list[tuple[int, int]]:
    """Length and slot of each boundary that ``commit_len`` tokens reach, in order; 0, 0 where the block has no slot."""
    crossed = []
    column = block_column(num_computed + 1, block_size)
    while (length := block_end(column, block_size) - num_computed) <= commit_len:
        crossed.append((length, table[column]) if table[column] > NULL_SLOT else (0, NULL_SLOT))
        column += 1
    return crossed
