"""What the adapter calls of flash-linear-attention's module of this name, on the reference's recurrence."""

import torch

from recoverssm.reference.recurrence import delta_step, kda_log_decay, scaled_query, unit_key
from recoverssm.types import GateParams


def chunk_kda(
    q,
    k,
    v,
    g,
    beta,
    initial_state,
    output_final_state,
    use_qk_l2norm_in_kernel,
    use_gate_in_kernel,
    use_beta_sigmoid_in_kernel,
    safe_gate,
    lower_bound,
    state_v_first,
    A_log,
    dt_bias,
):
    assert output_final_state
    assert state_v_first
    assert safe_gate == (lower_bound is not None)
    assert (use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel) == (True, True, True)
    log_decay = kda_log_decay(g, GateParams(A_log, dt_bias, lower_bound))
    query, key, rate, value = scaled_query(q), unit_key(k), beta.double().sigmoid(), v.double()
    state, out = initial_state.double(), torch.empty_like(v)
    for t in range(q.shape[1]):
        state, _, out[:, t] = delta_step(state, log_decay[:, t], key[:, t], query[:, t], value[:, t], rate[:, t])
    return out, state.float()
