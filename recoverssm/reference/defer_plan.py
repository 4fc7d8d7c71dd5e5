"""Defer plan: which rows of a commit may wait for their next verify, and how many tokens of them."""

import torch
from torch import Tensor

from recoverssm.reference.windows import has_slot
from recoverssm.types import Boundaries, CommitPlan


def defer_plan(
    plan: CommitPlan,
    record_rows: Tensor,
    waiting_lens: Tensor,
    lens_now: Tensor,
    *,
    boundaries: Boundaries | None = None,
) -> None:
    """Split ``plan``: rows that stay in their slot and reach no boundary wait, all others are committed now.

    Args:
        plan: [N]; read. record_rows: [N], the entry with the records of each row, -1 for none.
        waiting_lens: [R], written at those entries: tokens that wait, or 0. lens_now: [N], written: tokens to commit.
        boundaries: [N, J], from the same ``align_plan`` as ``plan``.
    Source: docs/algorithm.md section 9.
    """
    stays = (plan.source_slots == plan.final_slots) & has_slot(plan.source_slots) & (record_rows >= 0)
    if boundaries is not None:
        stays &= (boundaries.lens <= 0).all(1)
    waits = torch.where(stays, plan.commit_lens, 0)
    recorded = record_rows >= 0
    waiting_lens[record_rows[recorded].long()] = waits[recorded].to(waiting_lens.dtype)
    lens_now.copy_(plan.commit_lens - waits)
