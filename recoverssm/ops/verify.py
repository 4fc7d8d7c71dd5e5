"""Verify: outputs and records of a window from one checkpoint per row."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from recoverssm import triton_compat
from recoverssm.checks import check_layer, check_out, check_records, check_row_vector
from recoverssm.dispatch import Prepared, TensorMeta, describe, device_of
from recoverssm.errors import ConfigError
from recoverssm.faults import check_entries, check_rows
from recoverssm.kernels import gluon_kernel
from recoverssm.kernels.verify import _verify_kernel
from recoverssm.launch import Form, Problem, can_launch, device_arch, rows_aligned, tiled_launch
from recoverssm.triton_compat import KernelLaunch
from recoverssm.types import GateParams, RecordRows, Records

STRONGEST_BOUND = -5.0
"""Over 16 tokens this leaves e^-80, whose inverse fp32 still holds."""


def _fits_tensor_cores(problem: Problem) -> bool:
    is_sized = problem.key_dim == problem.value_dim == 128
    return triton_compat.IS_TESTED and is_sized and problem.aligned


def _is_mild(problem: Problem) -> bool:
    """Whether the decay of a window and its inverse are both numbers, whatever the gates."""
    return problem.lower_bound is not None and problem.lower_bound >= STRONGEST_BOUND


def _fits_wgmma(problem: Problem) -> bool:
    return problem.arch == 90 and _fits_tensor_cores(problem)


def _fits_mma(problem: Problem) -> bool:
    return problem.arch >= 80 and _fits_tensor_cores(problem)


FORMS = {
    "wgmma": Form(
        gluon_kernel("verify_wgmma"), lambda problem: _fits_wgmma(problem) and _is_mild(problem), has_pdl=True
    ),
    "wgmma_blocks": Form(gluon_kernel("verify_wgmma"), _fits_wgmma, has_pdl=True),
    "mma": Form(gluon_kernel("verify_mma"), lambda problem: _fits_mma(problem) and _is_mild(problem)),
    "mma_blocks": Form(gluon_kernel("verify_mma"), _fits_mma),
    "recurrence": Form(_verify_kernel),
}
"""None looks at the number of rows: the bits of a row must not depend on it."""


def _is_short(problem: Problem) -> bool:
    """Whether a window fits the eight columns of a product; with sixteen a commit before is quicker."""
    return problem.spec_query_len <= 8


HISTORY_FORMS = {
    "wgmma": FORMS["wgmma"]._replace(fits=lambda problem: FORMS["wgmma"].fits(problem) and _is_short(problem)),
    "wgmma_blocks": FORMS["wgmma_blocks"]._replace(fits=lambda problem: _fits_wgmma(problem) and _is_short(problem)),
    "recurrence": Form(_verify_kernel, lambda problem: not _fits_mma(problem)),
}
"""Those that take history. Where others verify, what waits is committed before, by launches of their own."""


def _history_forms(history_len: int) -> Mapping[str, Form]:
    """Those that hold so many tokens: on tensor cores the eight columns of a product."""
    return {name: form for name, form in HISTORY_FORMS.items() if history_len <= 8 or name == "recurrence"}


def can_take_history(state: Tensor, records: Records, lower_bound: float | None) -> bool:
    """Whether verify of a layer can do with states that lack tokens; ``CommitContext`` says in which batches it pays.

    Args:
        state: [P, H, V, K]. records: of the layer. lower_bound: of its gate.
    """
    metas = [describe(tensor) for tensor in (state, records.correction, records.key_gate)]
    _, num_heads, value_dim, key_dim = state.shape
    spec_query_len = records.correction.shape[2] - records.history_len
    sizes = (num_heads, spec_query_len, key_dim, value_dim)
    arch = device_arch(device_of(state))
    problem = Problem("verify_history", arch, state.dtype, *sizes, lower_bound, rows_aligned(*metas))
    return records.history_len > 0 and can_launch(problem, _history_forms(records.history_len))


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
    enable_pdl: bool = False,
    key_gate_recorded: bool = False,
    record_rows: RecordRows | None = None,
    debug: bool = False,
) -> Tensor:
    """Run the KDA recurrence over each row's window and record it; checkpoints stay as they are.

    Row n owns tokens query_start_loc[n] to query_start_loc[n + 1] (at most T of them are used) and reads slot
    state_indices[n]. A row whose slot is 0 or less outputs zeros and records nothing. Record positions past a row's
    tokens, and tokens of ``out`` that no row uses, are left as they were: undefined in an ``out`` allocated here.

    Args:
        q, k, raw_gate: [M, H, K]; v: [M, H, V]; raw_beta: [M, H]; bf16, fp16 or fp32. q and k are after conv and SiLU,
            not normalised; gate and beta are before their activations. Token strides are free.
        checkpoint_state: [P, H, V, K] fp32 or bf16, slot stride free.
        records: correction [R, H, C, V] fp32 and key_gate [R, H, C, 2K] in q's dtype, C = history_len + T, row strides
            free. Row n writes entry n, or state_indices[n] where they are ``by_slot``.
        gate: A_log [H], dt_bias [H, K] fp32.
        query_start_loc: [N + 1] int32, not decreasing, at most M. state_indices: [N] int32.
        out: [M, H, V] like v, or None to allocate; it may be v itself, and shares memory with nothing else.
        enable_pdl: begin while the kernel before in the stream is still running (programmatic dependent launch). Only
            where a kernel launched without it stands between whatever last wrote checkpoint_state, gate, state_indices,
            query_start_loc, record_rows or tokens that wait and this call, as the first verify of a step does when it
            is called without: docs/pdl.md.
        key_gate_recorded: take keys and raw gates from records.key_gate, where whoever made them has put them already.
            k and raw_gate are then None, and key_gate is left alone: docs/integrating.md section 1.
        record_rows: with deferred commits, what ``record_step`` gave for this step. Row n then writes the entry it
            names, behind those accepted tokens there that its checkpoint lacks, and starts from the state after them.
        debug: wait for the device and look at the rows, unless a CUDA graph is captured or torch traces.
    Returns:
        out.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError: before any launch.
        ArgumentError: with ``debug``, a slot outside the pool or of two rows, rows of tokens that are not there, an
            entry outside the records or of two rows, or more history than an entry has room for.
        ConfigError: record_rows beside records by slot, or with history where records have no room for any; k or
            raw_gate beside key_gate_recorded, or missing without it; enable_pdl where it cannot be: another card than
            sm_90, or a layer that sm_90's form is not for.
    Source: docs/algorithm.md section 2; vLLM PR 51855.
    """
    if debug and not is_compiling():
        check_rows(query_start_loc, state_indices, num_slots=checkpoint_state.shape[0], num_tokens=q.shape[0])
        if record_rows is not None:
            check_entries(record_rows, query_start_loc, state_indices, records)
    if out is None:
        out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if key_gate_recorded:
        if not (k is raw_gate is None):
            raise ConfigError(
                "k, raw_gate: expected None with key_gate_recorded, as records.key_gate has them, got tensors"
            )
        k = raw_gate = q  # in places that nothing looks at
    elif k is None or raw_gate is None:
        raise ConfigError("k, raw_gate: expected tensors, got None; only with key_gate_recorded do records hold them")
    if record_rows is not None and records.by_slot:
        raise ConfigError("record_rows: expected None with records by slot, whose entries are those of the slots")
    layer = (q, k, v, raw_gate, raw_beta, gate.A_log, gate.dt_bias, checkpoint_state)
    written = (records.correction, records.key_gate, out)
    entries = state_indices if record_rows is None else record_rows.written
    tensors = (*layer, *written, query_start_loc, state_indices, entries)
    options = (gate.lower_bound, enable_pdl, key_gate_recorded, records.history_len)
    if record_rows is None or record_rows.history_lens is None:
        _verify(tensors, *options, records.by_slot, record_rows is not None)
    elif records.history_len > 0:
        _verify_history((*tensors, record_rows.history_lens), *options)
    else:
        raise ConfigError("record_rows: expected no history_lens with records.history_len=0, got some")
    return out


@Prepared
def _verify(
    tensors: Sequence[TensorMeta],
    lower_bound: float | None,
    enable_pdl: bool,
    key_gate_recorded: bool,
    history_len: int,
    by_slot: bool,
    has_record_rows: bool,
) -> KernelLaunch | None:
    options = {"HAS_RECORD_ROWS": by_slot or has_record_rows, "RECORDED": key_gate_recorded, "enable_pdl": enable_pdl}
    return _launch("verify", FORMS, tensors, lower_bound, history_len, by_slot, **options)


@Prepared
def _verify_history(
    tensors: Sequence[TensorMeta],
    lower_bound: float | None,
    enable_pdl: bool,
    key_gate_recorded: bool,
    history_len: int,
) -> KernelLaunch | None:
    options = {"HAS_RECORD_ROWS": True, "RECORDED": key_gate_recorded, "enable_pdl": enable_pdl}
    return _launch("verify_history", _history_forms(history_len), tensors, lower_bound, history_len, False, **options)


def _launch(
    op: str,
    forms: Mapping[str, Form],
    tensors: Sequence[TensorMeta],
    lower_bound: float | None,
    history_len: int,
    by_slot: bool,
    **options: Any,
) -> KernelLaunch | None:
    q, k, v, raw_gate, raw_beta, _, _, state, correction, key_gate, out, query_start_loc, *rows = tensors
    state_indices, written, *history = rows
    head_dims = check_layer(tensors[:8], "checkpoint_state")
    check_row_vector("state_indices", state_indices, None, q.device)
    (num_rows,) = state_indices.shape
    num_entries = state.shape[0] if by_slot else num_rows
    kept = (correction, key_gate, num_entries, head_dims, q.dtype, q.device, by_slot)
    spec_query_len = check_records(*kept, history_len)
    check_row_vector("query_start_loc", query_start_loc, num_rows + 1, q.device)
    check_row_vector("record_rows.written", written, num_rows, q.device)
    for vector in history:
        check_row_vector("record_rows.history_lens", vector, num_rows, q.device)
    check_out(out, v)
    if num_rows == 0:
        return None
    strided = (q, k, v, raw_gate, raw_beta, out, state, correction, key_gate)
    scalars = (q.shape[-1] ** -0.5, *(tensor.strides[0] for tensor in strided))
    read = (q, key_gate) if options["RECORDED"] else (q, k, raw_gate)
    sizes, aligned = (num_rows, spec_query_len, lower_bound), rows_aligned(*read, v, out, state)
    if history:
        aligned = aligned and rows_aligned(correction, key_gate)
    options |= {"C": correction.shape[2], "num_absent": 1 - len(history)}
    return tiled_launch(op, forms, state, *sizes, *scalars, aligned=aligned, **options)
