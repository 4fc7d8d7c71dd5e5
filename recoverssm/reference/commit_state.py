"""State commit in direct form: the accepted records of a row as one sum on top of its checkpoint."""

from collections.abc import Sequence

import torch
from torch import Tensor

from recoverssm.reference.recurrence import kda_log_decay, unit_key
from recoverssm.reference.windows import gather_slots, has_slot, states_to_write
from recoverssm.types import Boundaries, CommitPlan, GateParams, Records


def commit_state(
    checkpoint_states: Sequence[Tensor],
    records: Sequence[Records],
    plan: CommitPlan,
    gate: GateParams,
    *,
    record_rows: Tensor | None = None,
    boundaries: Boundaries | None = None,
) -> None:
    """Fold the accepted records of each row into its final state, in place, in every layer, and into its boundaries'.

    Every source is read before any state is written, so a final slot may be any row's source. Rows with
    ``commit_lens == 0`` or a null slot are left bit for bit as they were, their boundaries too.

    Args:
        checkpoint_states: per layer [P, H, V, K]. records: per layer; row n of the plan has entry n, or
            the entry of its source slot where they are ``by_slot``, or entry record_rows[n].
        plan: from ``commit_plan`` of the same step. gate: A_log [L, H], dt_bias [L, H, K].
        boundaries: from the same ``align_plan`` as ``plan``: each slot gets the state after so many of the tokens.
    Source: docs/algorithm.md sections 3 and 8.
    """
    valid = (plan.commit_lens > 0) & has_slot(plan.source_slots) & has_slot(plan.final_slots)
    rows = valid.nonzero().squeeze(1)
    if rows.shape[0] == 0:
        return
    source_slots = plan.source_slots[rows]
    for layer, (checkpoint_state, record) in enumerate(zip(checkpoint_states, records, strict=True)):
        layer_gate = GateParams(gate.A_log[layer], gate.dt_bias[layer], gate.lower_bound)
        entries = source_slots.long() if record.by_slot else rows if record_rows is None else record_rows[rows].long()
        correction, key_gate = record.correction[entries].double(), record.key_gate[entries].double()
        source = gather_slots(checkpoint_state, source_slots)
        for lens, slots in states_to_write(plan, boundaries):
            state = committed_state(source, correction, key_gate, lens[rows], layer_gate)
            written = has_slot(slots[rows])
            checkpoint_state[slots[rows][written].long()] = state[written].to(checkpoint_state.dtype)


def committed_state(
    source: Tensor, correction: Tensor, key_gate: Tensor, commit_lens: Tensor, gate: GateParams
) -> Tensor:
    """S_n = S_0 diag(e^{L_n}) + sum_{t<n} u_t (k_t e^{L_n - L_t})^T, where L_t = g_0 + ... + g_t.

    No term depends on another through the state, and no exponent is positive.

    Args:
        source: S_0 [R, H, V, K]; correction: u [R, H, T, V]; key_gate [R, H, T, 2K], un-normalised key and raw gate.
        commit_lens: n [R]; positions from n on may hold anything.
    """
    positions = torch.arange(correction.shape[2], device=correction.device)
    accepted = (positions < commit_lens[:, None])[:, None, :, None]  # [R, 1, T, 1]
    raw_key, raw_gate = key_gate.chunk(2, dim=-1)
    # The gate's parameters are [H, K]: put tokens before heads for it, and back.
    log_decay = kda_log_decay(raw_gate.transpose(1, 2), gate).transpose(1, 2)
    log_decay = torch.where(accepted, log_decay, 0.0)
    # L_n - L_t is the sum over the tokens after t: summed from the end and moved up by one, so nothing cancels.
    from_here = log_decay.flip(2).cumsum(2).flip(2)
    following = torch.nn.functional.pad(from_here[:, :, 1:], (0, 0, 0, 1))
    total = log_decay.sum(2)
    key = torch.where(accepted, unit_key(raw_key) * following.exp(), 0.0)
    correction = torch.where(accepted, correction, 0.0)
    return source * total.exp().unsqueeze(2) + correction.transpose(2, 3) @ key
