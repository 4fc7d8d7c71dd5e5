"""State commit: folds the accepted records of every row into its checkpoint, all layers in one launch."""

import torch

from recoverssm.checks import (
    ACTIVATION_DTYPES,
    FLOAT32,
    STATE_DTYPES,
    check_dense_after,
    check_device,
    check_gate,
    check_head_dim,
    check_layers,
    check_row_vector,
    check_spec_query_len,
    check_tensor,
)
from recoverssm.errors import ShapeError
from recoverssm.kernels.commit_state import _commit_state_kernel
from recoverssm.launch import device_arch, select
from recoverssm.types import CommitPlan, GateParams, LayerTable


def commit_state(
    checkpoint_states: LayerTable,
    corrections: LayerTable,
    key_gates: LayerTable,
    plan: CommitPlan,
    gate: GateParams,
) -> None:
    """Fold the accepted records of each row into its final state, in place, in every layer.

    Each program reads its part of the source before it writes the final state, so final may equal source. Rows with
    ``commit_lens == 0`` are left bit for bit as they were. Rows must not name each other's final slots.

    Args:
        checkpoint_states: per layer [P, H, V, K] fp32 or bf16.
        corrections: per layer [R, H, T, V] fp32; key_gates: per layer [R, H, T, 2K]; row n of the plan is record row n.
        plan: from ``commit_plan`` of the same step.
        gate: A_log [L, H], dt_bias [L, H, K] fp32; the values that verify used.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError: before any launch.
    Source: docs/algorithm.md section 3; forward order as in vLLM PR 52993.
    """
    state, correction, key_gate = (t.element_type for t in (checkpoint_states, corrections, key_gates))
    device = state.device
    check_device("checkpoint_states", device)
    num_layers = checkpoint_states.num_layers
    check_tensor("checkpoint_states", state, "P H V K", (None, None, None, None), STATE_DTYPES, device)
    _, num_heads, value_dim, key_dim = state.shape
    check_head_dim("checkpoint_states: V", value_dim)
    check_head_dim("checkpoint_states: K", key_dim)
    check_tensor("corrections", correction, "R H T V", (None, num_heads, None, value_dim), FLOAT32, device)
    num_record_rows, _, spec_query_len, _ = correction.shape
    check_spec_query_len("corrections: T", spec_query_len)
    check_tensor(
        "key_gates",
        key_gate,
        "R H T 2K",
        (num_record_rows, num_heads, spec_query_len, 2 * key_dim),
        ACTIVATION_DTYPES,
        device,
    )
    for name, table in (("corrections", corrections), ("key_gates", key_gates)):
        check_layers(name, table, num_layers, device)
    for name, tensor in (("checkpoint_states", state), ("corrections", correction), ("key_gates", key_gate)):
        check_dense_after(name, tensor, 0)
    check_row_vector("plan.commit_lens", plan.commit_lens, None, device)
    num_rows = plan.commit_lens.shape[0]
    check_row_vector("plan.source_slots", plan.source_slots, num_rows, device)
    check_row_vector("plan.final_slots", plan.final_slots, num_rows, device)
    if num_record_rows < num_rows:
        raise ShapeError(f"corrections: expected at least {num_rows} rows, one per plan row, got {num_record_rows}")
    check_gate(gate, (num_layers, num_heads), key_dim, device)
    if num_rows == 0:
        return

    row = select(device_arch(device), "commit_state", state.dtype, num_rows * num_heads)
    block_v = min(row.block_v, value_dim)
    with torch.cuda.device_of(state):
        _commit_state_kernel[(num_rows * num_heads * (value_dim // block_v), num_layers)](
            checkpoint_states.addresses,
            corrections.addresses,
            key_gates.addresses,
            checkpoint_states.slot_strides,
            corrections.slot_strides,
            key_gates.slot_strides,
            state,
            key_gate,
            gate.A_log,
            gate.dt_bias,
            plan.commit_lens,
            plan.source_slots,
            plan.final_slots,
            gate.lower_bound or 0.0,
            H=num_heads,
            T=spec_query_len,
            K=key_dim,
            V=value_dim,
            BV=block_v,
            BK=min(row.inner_k, key_dim),
            BOUNDED=gate.lower_bound is not None,
            NUM_STAGES=row.num_stages,
            ALIGNED=checkpoint_states.aligned and corrections.aligned and key_gates.aligned,
            num_warps=row.num_warps,
            enable_fp_fusion=True,
        )
