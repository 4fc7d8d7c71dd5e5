"""What the adapter calls of flash-linear-attention's module of this name, on the reference."""

from recoverssm import reference
from recoverssm.types import GateParams


def fused_recurrent_kda_fwd(
    q,
    k,
    v,
    g,
    beta,
    A_log,
    dt_bias,
    initial_state,
    inplace_final_state,
    state_v_first,
    cu_seqlens,
    ssm_state_indices,
    num_accepted_tokens,
    use_qk_l2norm_in_kernel,
    use_gate_in_kernel,
    use_beta_sigmoid_in_kernel,
    lower_bound,
    out,
):
    assert inplace_final_state
    assert state_v_first
    assert (use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel) == (True, True, True)
    activations = [x[0] for x in (q, k, v, g, beta)]
    rows = (cu_seqlens, ssm_state_indices, num_accepted_tokens)
    gate = GateParams(A_log, dt_bias, lower_bound)
    reference.full_state_verify(*activations, initial_state, gate, *rows, out=out[0])
