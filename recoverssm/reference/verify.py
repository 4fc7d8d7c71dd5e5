"""Verify: outputs and records of a window from one checkpoint per row."""

import torch
from torch import Tensor

from recoverssm.reference.commit_state import committed_state
from recoverssm.reference.recurrence import delta_step, kda_log_decay, scaled_query, unit_key
from recoverssm.reference.windows import gather_slots, gather_tokens, has_slot, window_tokens
from recoverssm.types import GateParams, RecordRows, Records


def verify(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    raw_gate: Tensor | None,
    raw_beta: Tensor,
    checkpoint_state: Tensor,
    records: Records,
    gate: GateParams,
    query_start_loc: Tensor,
    state_indices: Tensor,
    *,
    out: Tensor | None = None,
    key_gate_recorded: bool = False,
    record_rows: RecordRows | None = None,
) -> Tensor:
    """Run the recurrence over each row's window and record it; checkpoints stay as they are.

    Row n writes entry n of the records, or entry state_indices[n] where they are ``by_slot``. A row whose slot is 0 or
    less outputs zeros and records nothing; record positions past a row's tokens, and tokens of ``out`` that no row
    owns, are left as they were.

    Args:
        q, k, raw_gate: [M, H, K]; v: [M, H, V]; raw_beta: [M, H]; before norms and activations. k and raw_gate are not
            looked at with key_gate_recorded, which takes them from records.key_gate and leaves it alone.
        checkpoint_state: [P, H, V, K]. records: correction [R, H, C, V], key_gate [R, H, C, 2K]; written.
        gate: A_log [H], dt_bias [H, K].
        query_start_loc: [N + 1]; at most T tokens of a row are used. state_indices: [N].
        out: [M, H, V] or None for a new one in v's dtype, zero where no row owns a token.
        record_rows: entries of the records that rows write, behind the accepted tokens there that states lack.
    Returns:
        out.
    Source: docs/algorithm.md section 2.
    """
    out = torch.zeros_like(v) if out is None else out
    num_rows, spec_query_len = state_indices.shape[0], records.correction.shape[2] - records.history_len
    if num_rows == 0 or q.shape[0] == 0:
        return out
    tokens, inside = window_tokens(query_start_loc, spec_query_len)
    live = has_slot(state_indices)
    history_lens = torch.zeros(num_rows, dtype=torch.long, device=q.device)
    if record_rows is not None:
        entries = record_rows.written.long()
        if record_rows.history_lens is not None:
            history_lens = record_rows.history_lens.clamp(0, records.history_len).long()
    else:
        entries = state_indices.long() if records.by_slot else torch.arange(num_rows, device=q.device)
    corrections = records.correction.transpose(1, 2)  # views [R, T, H, ...]: a row's tokens first
    key_gates = records.key_gate.transpose(1, 2)
    if key_gate_recorded:
        positions = history_lens[:, None] + torch.arange(spec_query_len, device=q.device)
        raw_key, raw_gate = key_gates[entries[:, None], positions].double().chunk(2, dim=-1)
    else:
        assert k is not None
        assert raw_gate is not None
        raw_key, raw_gate = gather_tokens(k, tokens), gather_tokens(raw_gate, tokens)
    query, key = scaled_query(gather_tokens(q, tokens)), unit_key(raw_key)
    log_decay = kda_log_decay(raw_gate, gate)
    value, beta = gather_tokens(v, tokens), torch.sigmoid(gather_tokens(raw_beta, tokens))

    state = gather_slots(checkpoint_state, state_indices)
    if history_lens.any():
        lacking = (records.correction[entries].double(), records.key_gate[entries].double())
        state = committed_state(state, *lacking, torch.where(live, history_lens, 0), gate)
    for t in range(spec_query_len):
        state, correction, output = delta_step(state, log_decay[:, t], key[:, t], query[:, t], value[:, t], beta[:, t])
        here = inside[:, t]
        out[tokens[here, t]] = torch.where(live[here, None, None], output[here], 0).to(out.dtype)
        recorded = here & live
        entry, position = entries[recorded], history_lens[recorded] + t
        corrections[entry, position] = correction[recorded].to(corrections.dtype)
        if not key_gate_recorded:
            key_gates[entry, position] = torch.cat((raw_key[recorded, t], raw_gate[recorded, t]), dim=-1).to(
                key_gates.dtype
            )
    return out
