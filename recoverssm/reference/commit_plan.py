"""Commit plan: which prefix of its window each row keeps, from the sampled counts."""

import torch
from torch import Tensor

from recoverssm.reference.windows import has_slot, window_lens
from recoverssm.types import NULL_SLOT, CommitPlan


def commit_plan(
    num_sampled: Tensor,
    query_start_loc: Tensor,
    state_indices: Tensor,
    plan: CommitPlan,
    *,
    spec_query_len: int,
    request_indices: Tensor | None = None,
) -> None:
    """Fill ``plan`` in place: row i keeps min(num_sampled of its request, its tokens, T) tokens.

    Row i belongs to request row request_indices[i], or i without them. A row whose request row is not one of
    ``num_sampled``'s, or without tokens, slot or sampled tokens gets zeros.

    Args:
        num_sampled: [number of request rows], sampled tokens per request, the bonus token included.
        query_start_loc: [N + 1]. state_indices: [N]. request_indices: [N] or None. plan: three tensors [N].
        spec_query_len: T of the records.
    Source: docs/algorithm.md section 3.
    """
    num_rows, num_requests = state_indices.shape[0], num_sampled.shape[0]
    if request_indices is None:
        request_indices = torch.arange(num_rows, device=state_indices.device)
    requests = request_indices.long()
    known = (requests >= 0) & (requests < num_requests)
    sampled = torch.zeros(num_rows, dtype=torch.int64, device=state_indices.device)
    sampled[known] = num_sampled[requests[known]].long()

    commit_lens = torch.minimum(sampled, window_lens(query_start_loc, spec_query_len))
    valid = has_slot(state_indices) & (commit_lens > 0)
    slots = torch.where(valid, state_indices, NULL_SLOT)
    plan.commit_lens.copy_(torch.where(valid, commit_lens, 0))
    plan.source_slots.copy_(slots)
    plan.final_slots.copy_(slots)
