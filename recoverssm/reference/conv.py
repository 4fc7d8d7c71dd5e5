"""The short convolution and its window: raw projections of q, k and v, [P, conv_state_len, 3HD] token-major."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

from recoverssm.reference.windows import gather_tokens, has_slot, states_to_write, window_lens, window_tokens
from recoverssm.types import NULL_SLOT, Boundaries, CommitPlan


def update_conv_window(
    conv_state: Tensor,
    x: Tensor,
    query_start_loc: Tensor,
    state_indices: Tensor,
    weight: Tensor,
    *,
    num_accepted: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Convolve each row's tokens after its history, and leave the rolled window in its slot, in place.

    The history h is ``width - 1`` tokens from position num_accepted[n] - 1 of the slot: position 0 for RecoverSSM,
    whose commit has compacted the window. The slot then starts [h_1, ..., h_{width-2}, x_0, ..., x_{q-1}]; what lies
    behind keeps what it held. h_0 is gone: a row that goes on must have accepted at least one token. Rows without
    tokens or slot write nothing; tokens of a row without slot output zeros.

    Args:
        conv_state: [P, conv_state_len, C], written. x: [M, C], raw projections. weight: [C, width], oldest tap first.
        query_start_loc: [N + 1]. state_indices: [N].
        num_accepted: [N], accepted tokens of the previous step, taken as the nearest of 1 to T; None: compacted.
        out: [M, C] or None for a new one in x's dtype, zero where no row owns a token.
    Returns:
        out: silu of the depthwise convolution.
    Source: docs/algorithm.md section 5.
    """
    out = torch.zeros_like(x) if out is None else out
    conv_width = weight.shape[1]
    history_len = conv_width - 1
    max_len = conv_state.shape[1] - history_len + 1
    if state_indices.shape[0] == 0 or x.shape[0] == 0:
        return out
    slots = state_indices.long().clamp(min=NULL_SLOT)
    starts = torch.zeros_like(slots) if num_accepted is None else num_accepted.long().clamp(1, max_len) - 1
    tokens, inside = window_tokens(query_start_loc, max_len)
    positions = starts[:, None] + torch.arange(history_len, device=x.device)
    history = conv_state[slots[:, None], positions]  # [N, width - 1, C]
    live = has_slot(state_indices)

    sequence = torch.cat((history.double(), gather_tokens(x, tokens)), dim=1)
    taps = sequence.unfold(1, conv_width, 1)  # [N, T, C, width]
    convolved = silu((taps * weight.double()).sum(-1))
    out[tokens[inside]] = torch.where(live[:, None, None], convolved, 0)[inside].to(out.dtype)

    # Copied, not computed: the window keeps the bits of the history and of x.
    padded = torch.cat((history, x[tokens].to(conv_state.dtype)), dim=1)[:, 1:]
    lens = window_lens(query_start_loc, max_len)
    kept = torch.where(live & (lens > 0), history_len - 1 + lens, 0)
    row, position = (torch.arange(padded.shape[1], device=x.device) < kept[:, None]).nonzero(as_tuple=True)
    conv_state[slots[row], position] = padded[row, position]
    return out


def compact_conv(
    conv_states: Sequence[Tensor], plan: CommitPlan, *, conv_width: int, boundaries: Boundaries | None = None
) -> None:
    """Copy window positions a - 1 .. a + width - 3 to positions 0 .. width - 2, a = commit_lens of the row, in place.

    Every source is read before any slot is written. Positions behind the history keep what they held; rows with
    ``commit_lens == 0`` or a null slot are left bit for bit as they were, their boundaries too.

    Args:
        conv_states: per layer [P, conv_state_len, C]. plan: from ``commit_plan`` of the same step.
        conv_width: taps of the convolution.
        boundaries: from the same ``align_plan`` as ``plan``: each slot gets the history after so many of the tokens.
    Source: docs/algorithm.md sections 5 and 8.
    """
    live = (plan.commit_lens > 0) & has_slot(plan.source_slots) & has_slot(plan.final_slots)
    offsets = torch.arange(conv_width - 1, device=plan.commit_lens.device)
    moves = []
    for lens, slots in states_to_write(plan, boundaries):
        written = live & has_slot(slots)
        sources, starts, targets = (x[written].long()[:, None] for x in (plan.source_slots, lens, slots))
        moves.append((sources, starts - 1 + offsets, targets))
    for conv_state in conv_states:
        histories = [conv_state[sources, positions] for sources, positions, _ in moves]
        for history, (_, _, targets) in zip(histories, moves, strict=True):
            conv_state[targets, offsets] = history
