"""Rows of a speculative batch as a padded tensor [N, T, ...], and the slots they name."""

import torch
from torch import Tensor

from recoverssm.types import NULL_SLOT, Boundaries, CommitPlan


def window_lens(query_start_loc: Tensor, max_len: int) -> Tensor:
    """Tokens of each row, [N] int64; at most ``max_len`` of a row are used."""
    return query_start_loc.diff().long().clamp(min=0, max=max_len)


def window_tokens(query_start_loc: Tensor, max_len: int) -> tuple[Tensor, Tensor]:
    """Where each row's tokens lie in the flat batch.

    Returns:
        tokens: [N, T] int64, token of row n at position t; 0 where the row has no such position.
        inside: [N, T] bool, whether it has.
    """
    positions = torch.arange(max_len, device=query_start_loc.device)
    inside = positions < window_lens(query_start_loc, max_len)[:, None]
    tokens = query_start_loc[:-1, None].long() + positions
    return torch.where(inside, tokens, 0), inside


def gather_tokens(x: Tensor, tokens: Tensor) -> Tensor:
    """[M, ...] to float64 [N, T, ...]; positions outside a window hold token 0 and must be masked or ignored."""
    return x.index_select(0, tokens.flatten()).reshape(*tokens.shape, *x.shape[1:]).double()


def gather_slots(pool: Tensor, slots: Tensor) -> Tensor:
    """[P, ...] to float64 [N, ...], a copy; rows without a slot get slot 0's content and must be ignored."""
    return pool.index_select(0, slots.long().clamp(min=NULL_SLOT)).double()


def has_slot(slots: Tensor) -> Tensor:
    """Whether a slot id names a slot: ids at or below the null slot do not."""
    return slots > NULL_SLOT


def states_to_write(plan: CommitPlan, boundaries: Boundaries | None) -> list[tuple[Tensor, Tensor]]:
    """Lengths and slots, [N] each, of what commit writes of every row: the boundaries, then the final state."""
    steps = [] if boundaries is None else list(zip(boundaries.lens.unbind(1), boundaries.slots.unbind(1), strict=True))
    return [*steps, (plan.commit_lens, plan.final_slots)]
