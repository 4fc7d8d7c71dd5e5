"""Defer plan: which rows of a commit may wait on, and how many tokens of each entry are committed now."""

import torch
from torch import Tensor

from recoverssm.reference.windows import has_slot
from recoverssm.types import CommitPlan, RecordRows


def defer_plan(
    plan: CommitPlan,
    record_rows: RecordRows,
    waiting_lens: Tensor,
    lens_now: Tensor,
    *,
    history_len: int,
    boundary_lens: Tensor | None = None,
    boundary_lens_now: Tensor | None = None,
) -> None:
    """Split ``plan``: rows that stay in their slot, reach no boundary and have room wait, all others are committed now.

    Args:
        plan: [N]; read. record_rows: [N], the entry of each row, -1 for none, and how many of its tokens waited.
        waiting_lens: [R], written at those entries: tokens that wait from now on. lens_now: [N], written: tokens to
            commit now, those that waited among them. history_len: the most tokens that may wait.
        boundary_lens: [N, J], of the same ``align_plan`` as ``plan``. boundary_lens_now: [N, J], written: the same
            counted from the first token that waited.
    Source: docs/algorithm.md section 9.
    """
    entries, waited = record_rows.written.long(), record_rows.history_lens
    waited = torch.zeros_like(plan.commit_lens) if waited is None else waited
    together = waited + plan.commit_lens
    waits = (plan.source_slots == plan.final_slots) & has_slot(plan.source_slots) & (together <= history_len)
    if boundary_lens is not None:
        assert boundary_lens_now is not None
        waits &= (boundary_lens <= 0).all(1)
        boundary_lens_now.copy_(torch.where(boundary_lens > 0, boundary_lens + waited[:, None], 0))
    waits |= plan.commit_lens <= 0
    recorded = entries >= 0
    waiting_lens[entries[recorded]] = torch.where(waits, together, 0)[recorded].to(waiting_lens.dtype)
    lens_now.copy_(torch.where(waits | ~recorded, 0, together))
