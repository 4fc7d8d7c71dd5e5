"""Full-state verify, the baseline: outputs of a window and the whole state after every token."""

import torch
from torch import Tensor

from recoverssm.reference.recurrence import delta_step, kda_log_decay, scaled_query, unit_key
from recoverssm.reference.windows import gather_slots, gather_tokens, has_slot, window_tokens
from recoverssm.types import GateParams


def full_state_verify(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    raw_gate: Tensor,
    raw_beta: Tensor,
    state_pool: Tensor,
    gate: GateParams,
    query_start_loc: Tensor,
    state_indices: Tensor,
    num_accepted: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Run the recurrence over each row's window and store the state after each of its tokens.

    Row n starts from slot state_indices[n, num_accepted[n] - 1] and stores the state after token t in slot
    state_indices[n, t]; slots of 0 or less are not written. The running state is rounded only in what is stored. A
    row whose source slot is 0 or less outputs zeros and stores nothing.

    Args:
        q, k, raw_gate: [M, H, K]; v: [M, H, V]; raw_beta: [M, H]; as in ``verify``.
        state_pool: [P, H, V, K], written. gate: A_log [H], dt_bias [H, K].
        query_start_loc: [N + 1]. state_indices: [N, T].
        num_accepted: [N], accepted tokens of the previous step; taken as the nearest of 1 to T.
        out: [M, H, V] or None for a new one in v's dtype, zero where no row owns a token.
    Returns:
        out.
    Source: docs/algorithm.md section 4.
    """
    out = torch.zeros_like(v) if out is None else out
    num_rows, spec_query_len = state_indices.shape
    if num_rows == 0 or q.shape[0] == 0:
        return out
    tokens, inside = window_tokens(query_start_loc, spec_query_len)
    column = num_accepted.long().clamp(1, spec_query_len) - 1
    source_slots = state_indices.gather(1, column[:, None]).squeeze(1)
    live = has_slot(source_slots)
    query, key = scaled_query(gather_tokens(q, tokens)), unit_key(gather_tokens(k, tokens))
    log_decay = kda_log_decay(gather_tokens(raw_gate, tokens), gate)
    value, beta = gather_tokens(v, tokens), torch.sigmoid(gather_tokens(raw_beta, tokens))

    state = gather_slots(state_pool, source_slots)
    for t in range(spec_query_len):
        state, _, output = delta_step(state, log_decay[:, t], key[:, t], query[:, t], value[:, t], beta[:, t])
        here = inside[:, t]
        out[tokens[here, t]] = torch.where(live[here, None, None], output[here], 0).to(out.dtype)
        stored = here & live & has_slot(state_indices[:, t])
        state_pool[state_indices[stored, t].long()] = state[stored].to(state_pool.dtype)
    return out
