"""What the adapter calls of vLLM's module of this name, on the reference."""

from dataclasses import dataclass
from typing import Any

from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.models.kimi_k3.nvidia.recoverssm.kernels import cute_recoverssm_commit
from vllm.triton_utils import tl, triton
from vllm.v1.attention.backends.utils import NULL_BLOCK_ID

from recoverssm import reference
from recoverssm.types import CommitPlan, GateParams, Records

KDARecoverSSMRecords = Records
assert (NULL_BLOCK_ID, is_conv_state_dim_first(), tl) == (0, False, triton.language)


def kda_recoverssm_verify(
    q, k, v, raw_g, raw_beta, A_log, dt_bias, lower_bound, state, records, query_start_loc, slots, spec_query_len, out
):
    assert records.correction.shape[2] == spec_query_len
    activations = [x[0] for x in (q, k, v, raw_g, raw_beta)]
    gate = GateParams(A_log, dt_bias, lower_bound)
    reference.verify(*activations, state, records, gate, query_start_loc, slots, out=out[0])


@dataclass
class KDARecoverSSMCommitContext:
    layers: Any
    conv_width: int
    backend: str

    @classmethod
    def create(cls, layers, *, spec_query_len, max_num_reqs, backend):
        assert layers[0].recoverssm_records.correction.shape[0] == max_num_reqs
        return cls(layers, layers[0].kv_cache[0].shape[1] - spec_query_len + 2, backend)

    def commit(self, num_accepted, slots, query_start_loc):
        plan = CommitPlan(num_accepted, slots, slots)
        reference.compact_conv([layer.kv_cache[0] for layer in self.layers], plan, conv_width=self.conv_width)
        if self.backend == "cute":
            cute_recoverssm_commit(self, slots, len(slots), align=False)
            return
        for layer in self.layers:
            assert layer.dt_bias.shape == (layer.local_num_heads, layer.head_dim)
            gate = GateParams(layer.A_log[None], layer.dt_bias[None], layer.gate_lower_bound)
            reference.commit_state([layer.kv_cache[1]], [layer.recoverssm_records], plan, gate)
