"""A launch of a kernel that verifies behind history, with constants of choice, not through the library."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from recoverssm import GateParams, RecordRows, Records

CONSTANTS = {"BV": 128, "CAUSAL_BLOCKS": False, "KC": 2, "AHEAD": 1, "EVICT": True}
CONSTANTS |= {"STAGED": False, "LATE": False, "PREFETCH": 0, "GATE_FIRST": True, "DEPENDENTS": 0, "PDL": False}
CONSTANTS |= {"num_warps": 4}


def history_verify(
    kernel: Any,
    activations: Sequence[Tensor],
    states: Tensor,
    records: Records,
    rows: RecordRows,
    gate: GateParams,
    query_start_loc: Tensor,
    slots: Tensor,
    out: Tensor,
    **changed: Any,
) -> Any:
    """Verify the window behind what the states lack, in one launch of ``kernel``.

    Args:
        kernel: ``_verify_wgmma_kernel`` or what stands for it; activations: q, k, v, raw_gate, raw_beta as in verify.
        changed: constants that differ from CONSTANTS.
    """
    q, k, v, raw_gate, raw_beta = activations
    num_heads, num_positions, value_dim = records.correction.shape[1:]
    spec_query_len = num_positions - records.history_len
    constants = CONSTANTS | changed
    constants |= {
        "H": num_heads,
        "T": spec_query_len,
        "C": num_positions,
        "K": q.shape[-1],
        "V": value_dim,
        "RECORDED": False,
    }
    constants |= {"BOUNDED": gate.lower_bound is not None, "HAS_RECORD_ROWS": True, "enable_fp_fusion": True}
    strided = (q, k, v, raw_gate, raw_beta, out, states, records.correction, records.key_gate)
    scalars = (gate.lower_bound or 0.0, q.shape[-1] ** -0.5, *(x.stride(0) for x in strided))
    tensors = (*activations, gate.A_log, gate.dt_bias, states, records.correction, records.key_gate, out)
    named = (rows.written, rows.history_lens)
    grid = (slots.shape[0] * num_heads * (value_dim // constants["BV"]),)
    return kernel[grid](*tensors, query_start_loc, slots, *named, *scalars, **constants)
