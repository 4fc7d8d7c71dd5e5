"""What the adapters call of SGLang's module of this name, on the reference's recurrence."""

import torch
from sglang.kernels.jit.utils import is_arch_support_pdl
from sglang.srt.utils import get_device_sm, is_cuda, is_gfx95_supported, is_hip, is_sm90_supported

from recoverssm.reference.recurrence import delta_step, kda_log_decay, scaled_query, unit_key
from recoverssm.types import GateParams

assert get_device_sm() == 0
assert not any(ask() for ask in (is_arch_support_pdl, is_cuda, is_gfx95_supported, is_hip, is_sm90_supported))


def fused_sigmoid_gating_delta_rule_update(
    A_log,
    a,
    dt_bias,
    softplus_beta,
    softplus_threshold,
    q,
    k,
    v,
    b,
    initial_state_source,
    initial_state_indices,
    use_qk_l2norm_in_kernel,
    cu_seqlens,
    is_kda,
    lower_bound,
    disable_state_update,
    cache_steps,
    intermediate_states_buffer=None,
    intermediate_state_indices=None,
    cache_ring=False,
    replayssm_rawv=None,
    replayssm_rawk=None,
    replayssm_g=None,
    replayssm_beta=None,
):
    assert (use_qk_l2norm_in_kernel, is_kda, disable_state_update) == (True, True, True)
    log_decay, beta = kda_log_decay(a[0], GateParams(A_log, dt_bias, lower_bound)), b[0].double().sigmoid()
    query, key, out = scaled_query(q[0]), unit_key(k[0]), torch.empty_like(v)
    for row, slot in enumerate(initial_state_indices.tolist()):
        state = initial_state_source[slot].double()
        first, end = cu_seqlens[row : row + 2].tolist()
        assert end - first == cache_steps
        for t, token in enumerate(range(first, end)):
            value = v[0, token].double()
            state, _, output = delta_step(state, log_decay[token], key[token], query[token], value, beta[token])
            out[0, token] = output
            if cache_ring:
                replayssm_rawv[slot, :, t], replayssm_rawk[slot, :, t] = v[0, token], k[0, token]
                replayssm_g[slot, :, t], replayssm_beta[slot, :, t] = log_decay[token], beta[token]
            else:
                intermediate_states_buffer[intermediate_state_indices[row], t] = state
    return out
