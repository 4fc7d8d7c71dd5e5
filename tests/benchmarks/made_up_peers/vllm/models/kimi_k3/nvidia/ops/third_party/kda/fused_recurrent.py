"""What the adapter calls of vLLM's module of this name, on the reference."""

from vllm.platforms import current_platform
from vllm.third_party.flash_linear_attention.ops.op import exp, log
from vllm.utils.math_utils import cdiv

from recoverssm import reference
from recoverssm.types import GateParams

assert not current_platform.is_arch_support_pdl()
assert callable(exp)
assert callable(log)
assert cdiv(3, 2) == 2


def fused_recurrent_kda(
    q,
    k,
    v,
    raw_g,
    raw_beta,
    A_log,
    dt_bias,
    lower_bound,
    initial_state,
    cu_seqlens,
    ssm_state_indices,
    num_accepted_tokens,
    out,
):
    activations = [x[0] for x in (q, k, v, raw_g, raw_beta)]
    gate = GateParams(A_log, dt_bias, lower_bound)
    rows = (cu_seqlens, ssm_state_indices, num_accepted_tokens)
    reference.full_state_verify(*activations, initial_state, gate, *rows, out=out[0])
