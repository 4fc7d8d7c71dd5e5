"""State commit: folds the accepted records of every row into its checkpoint, all layers in one launch."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from recoverssm import triton_compat
from recoverssm.checks import (
    ACTIVATION_DTYPES,
    FLOAT32,
    STATE_DTYPES,
    check_boundaries,
    check_dense_after,
    check_device,
    check_gate,
    check_head_dim,
    check_layers,
    check_no_overlap,
    check_num_records,
    check_plan,
    check_record_len,
    check_row_vector,
    check_tensor,
)
from recoverssm.dispatch import Prepared, TensorMeta, describe
from recoverssm.kernels import gluon_kernel
from recoverssm.kernels.commit_state import _commit_state_kernel
from recoverssm.launch import Form, Problem, tiled_launch
from recoverssm.triton_compat import KernelLaunch
from recoverssm.types import Boundaries, CommitPlan, GateParams, LayerTable


def _fits_async(problem: Problem) -> bool:
    is_sized = problem.key_dim == problem.value_dim == 128
    return triton_compat.IS_TESTED and problem.arch >= 80 and problem.aligned and is_sized


FORMS = {"async": Form(gluon_kernel("commit_state_async"), _fits_async), "recurrence": Form(_commit_state_kernel)}
"""Neither looks at the number of rows: the bits of a row must not depend on it."""


def commit_state(
    checkpoint_states: LayerTable,
    corrections: LayerTable,
    key_gates: LayerTable,
    plan: CommitPlan,
    gate: GateParams,
    *,
    by_slot: bool = False,
    record_rows: Tensor | None = None,
    boundaries: Boundaries | None = None,
) -> None:
    """Fold the accepted records of each row into its final state, in place, in every layer, and into its boundaries'.

    Each program reads its part of the source before it writes the final state, so final may equal source. Rows with
    ``commit_lens == 0`` are left bit for bit as they were, their boundaries too. Rows must not name each other's final
    slots. What is accepted beyond a boundary, and which boundaries follow, does not change the bits that it gets.

    Args:
        checkpoint_states: per layer [P, H, V, K] fp32 or bf16.
        corrections: per layer [R, H, C, V] fp32; key_gates: per layer [R, H, C, 2K]; C token positions of an entry.
        plan: from ``commit_plan`` of the same step, or lengths of ``defer_plan``: tokens from the start of the entry.
        gate: A_log [L, H], dt_bias [L, H, K] fp32; the values that verify used.
        by_slot: as in ``Records``: the records of a row are those of its source slot, not those of the row.
        record_rows: [N] int32, the entry with the records of each row; None, unless ``by_slot``: that of the row.
        boundaries: from the same ``align_plan``, or with lengths of the same ``defer_plan``, as ``plan``, J of them a
            row; None: final states alone.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError: before any launch.
    Source: docs/algorithm.md sections 3 and 8; forward order as in vLLM PR 52993.
    """
    tables = (checkpoint_states, corrections, key_gates)
    crossed = () if boundaries is None else (boundaries.lens, boundaries.slots)
    if is_compiling():
        layers = (table.tensors for table in tables)
        rows = (plan.commit_lens, plan.source_slots, plan.final_slots)
        parameters = (gate.A_log, gate.dt_bias, gate.lower_bound)
        torch.ops.recoverssm.commit_state(*layers, *rows, record_rows, *parameters, by_slot, *(crossed or (None, None)))
        return
    _commit_state(
        (
            *(table.addresses for table in tables),
            *(table.slot_strides for table in tables),
            checkpoint_states.element_type,
            key_gates.element_type,
            gate.A_log,
            gate.dt_bias,
            plan.commit_lens,
            plan.source_slots,
            plan.final_slots,
            plan.source_slots if record_rows is None else record_rows,
            *crossed,
        ),
        gate.lower_bound,
        describe(corrections.element_type),
        tuple(table.num_layers for table in tables),
        all(table.aligned for table in tables),
        by_slot,
        record_rows is not None,
    )


@Prepared
def _commit_state(
    tensors: Sequence[TensorMeta],
    lower_bound: float | None,
    correction: TensorMeta,
    layer_counts: tuple[int, int, int],
    aligned: bool,
    by_slot: bool,
    has_record_rows: bool,
) -> KernelLaunch | None:
    _, correction_addresses, key_gate_addresses, *_, state, key_gate, A_log, dt_bias = tensors[:10]
    device = state.device
    check_device("checkpoint_states", device)
    check_tensor("checkpoint_states", state, "P H V K", (None, None, None, None), STATE_DTYPES, device)
    num_slots, num_heads, value_dim, key_dim = state.shape
    check_head_dim("checkpoint_states: V", value_dim)
    check_head_dim("checkpoint_states: K", key_dim)
    check_tensor("corrections", correction, "R H C V", (None, num_heads, None, value_dim), FLOAT32, device)
    num_records, _, record_len, _ = correction.shape
    check_record_len("corrections: C", record_len)
    expected = (num_records, num_heads, record_len, 2 * key_dim)
    check_tensor("key_gates", key_gate, "R H C 2K", expected, ACTIVATION_DTYPES, device)
    num_layers, num_correction_layers, num_key_gate_layers = layer_counts
    check_layers("corrections", num_correction_layers, correction_addresses, num_layers, device)
    check_layers("key_gates", num_key_gate_layers, key_gate_addresses, num_layers, device)
    for name, tensor in (("checkpoint_states", state), ("corrections", correction), ("key_gates", key_gate)):
        check_dense_after(name, tensor, 0)
    check_no_overlap("checkpoint_states", state)
    num_rows = check_plan(tensors[10:13], None, device)
    check_row_vector("record_rows", tensors[13], num_rows, device)
    if not has_record_rows:
        check_num_records("corrections", num_records, num_slots if by_slot else num_rows, by_slot)
    check_gate(A_log, dt_bias, (num_layers, num_heads), key_dim, device)
    boundaries = tensors[14:]
    num_boundaries = check_boundaries("boundaries", boundaries, num_rows, device) if boundaries else 0
    if num_rows == 0:
        return None
    sizes = (num_rows, record_len, lower_bound)
    return tiled_launch(
        "commit_boundaries" if num_boundaries else "commit_deferred" if has_record_rows else "commit_state",
        FORMS,
        state,
        *sizes,
        aligned=aligned,
        num_layers=num_layers,
        num_absent=0 if boundaries else 2,
        HAS_RECORD_ROWS=by_slot or has_record_rows,
        ALIGNED=aligned,
        J=num_boundaries,
    )
