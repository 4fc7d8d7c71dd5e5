"""Argument checks of the public ops: what was expected, what came, for which argument. No device sync, no launch."""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from recoverssm.errors import DeviceError, DtypeError, ShapeError, StrideError
from recoverssm.types import MAX_SPEC_QUERY_LEN, GateParams, LayerTable, Records

STATE_DTYPES = (torch.float32, torch.bfloat16)
ACTIVATION_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FLOAT32 = (torch.float32,)
INT32 = (torch.int32,)
DEVICE_TYPES = (
    ("cuda", "cpu") if triton.knobs.runtime.interpret else ("cuda",)
)  # decided at import, as @triton.jit does


def check_tensor(
    name: str,
    tensor: Tensor,
    dims: str,
    shape: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
    hint: str = "",
) -> None:
    """Check one tensor; ``dims`` names its dimensions ("P H V K"), None in ``shape`` accepts any size.

    Raises:
        ShapeError, DtypeError, DeviceError.
    """
    expected = ", ".join(d if n is None else f"{d}={n}" for d, n in zip(dims.split(), shape, strict=True))
    if tensor.dim() != len(shape) or any(n is not None and n != m for n, m in zip(shape, tensor.shape, strict=False)):
        raise ShapeError(f"{name}: expected [{expected}], got {list(tensor.shape)}" + (f"; {hint}" if hint else ""))
    if tensor.dtype not in dtypes:
        names = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise DtypeError(f"{name}: expected {names}, got {str(tensor.dtype).removeprefix('torch.')}")
    if tensor.device != device:
        raise DeviceError(f"{name}: expected {device} like the first argument, got {tensor.device}")


def check_device(name: str, device: torch.device) -> None:
    """Raises DeviceError for a device that cannot run kernels: the CPU can only under Triton's interpreter."""
    if device.type not in DEVICE_TYPES:
        raise DeviceError(
            f"{name}: expected a CUDA device, got {device}; to try kernels on the CPU, set TRITON_INTERPRET=1 before "
            "Python starts"
        )


def check_dense_after(name: str, tensor: Tensor, dim: int) -> None:
    """Check that all dimensions after ``dim`` are packed in order, so that only ``dim`` has a free stride.

    Raises:
        StrideError.
    """
    expected = 1
    for i in range(tensor.dim() - 1, dim, -1):
        if tensor.shape[i] != 1 and tensor.stride(i) != expected:
            raise StrideError(
                f"{name}: expected dimensions {dim + 1}.. to be contiguous, got strides {tensor.stride()} "
                f"for shape {list(tensor.shape)}; call .contiguous() or allocate it so"
            )
        expected *= tensor.shape[i]


def check_head_dim(name: str, size: int) -> None:
    """Kernels index channels without masks, which needs powers of two.

    Raises:
        ShapeError.
    """
    if size < 16 or size & (size - 1):
        raise ShapeError(f"{name}: expected a power of two of at least 16, got {size}")


def check_spec_query_len(name: str, length: int) -> None:
    """Raises ShapeError unless 1 <= length <= 16."""
    if not 1 <= length <= MAX_SPEC_QUERY_LEN:
        raise ShapeError(f"{name}: expected 1 to {MAX_SPEC_QUERY_LEN} tokens (1 + draft tokens), got {length}")


def check_activations(q: Tensor, k: Tensor, v: Tensor, raw_gate: Tensor, raw_beta: Tensor) -> None:
    """Check the activations of one layer: q, k, raw_gate [M, H, K], v [M, H, V], raw_beta [M, H], one dtype.

    Raises:
        ShapeError, DtypeError, StrideError, DeviceError.
    """
    if q.dim() != 3:
        raise ShapeError(f"q: expected [M, H, K], got {list(q.shape)}; M is the number of tokens of all rows")
    device = q.device
    check_device("q", device)
    num_tokens, num_heads, key_dim = q.shape
    check_tensor("q", q, "M H K", (None, None, None), ACTIVATION_DTYPES, device)
    dtypes = (q.dtype,)
    check_tensor("k", k, "M H K", (num_tokens, num_heads, key_dim), dtypes, device)
    check_tensor("v", v, "M H V", (num_tokens, num_heads, None), dtypes, device)
    check_tensor("raw_gate", raw_gate, "M H K", (num_tokens, num_heads, key_dim), dtypes, device)
    check_tensor("raw_beta", raw_beta, "M H", (num_tokens, num_heads), dtypes, device)
    check_head_dim("q: K", key_dim)
    check_head_dim("v: V", v.shape[2])
    for name, tensor in (("q", q), ("k", k), ("v", v), ("raw_gate", raw_gate), ("raw_beta", raw_beta)):
        check_dense_after(name, tensor, 0)


def check_gate(gate: GateParams, lead: tuple[int, ...], key_dim: int, device: torch.device) -> None:
    """Check gate parameters of shape [*lead] and [*lead, K]; ``lead`` is (H,) or (L, H).

    Raises:
        ShapeError, DtypeError, StrideError, DeviceError.
    """
    dims = " ".join(("L", "H")[-len(lead) :])
    check_tensor("gate.A_log", gate.A_log, dims, lead, FLOAT32, device)
    check_tensor("gate.dt_bias", gate.dt_bias, f"{dims} K", (*lead, key_dim), FLOAT32, device)
    check_dense_after("gate.A_log", gate.A_log, -1)
    check_dense_after("gate.dt_bias", gate.dt_bias, -1)


def check_out(out: Tensor, v: Tensor) -> None:
    """Check an output buffer against v [M, H, V].

    Raises:
        ShapeError, DtypeError, StrideError, DeviceError.
    """
    check_tensor("out", out, "M H V", tuple(v.shape), (v.dtype,), v.device)
    check_dense_after("out", out, 0)


def check_layers(name: str, table: LayerTable, num_layers: int, device: torch.device) -> None:
    """Raises ShapeError or DeviceError when a table is not of ``num_layers`` layers on ``device``."""
    if table.num_layers != num_layers:
        raise ShapeError(f"{name}: expected {num_layers} layers like the first table, got {table.num_layers}")
    if table.addresses.device != device:
        raise DeviceError(f"{name}: expected {device} like the first argument, got {table.addresses.device}")


def check_row_vector(name: str, tensor: Tensor, num_rows: int | None, device: torch.device) -> None:
    """Check a contiguous int32 vector over rows.

    Raises:
        ShapeError, DtypeError, StrideError, DeviceError.
    """
    check_tensor(name, tensor, "N", (num_rows,), INT32, device)
    check_dense_after(name, tensor, -1)


def check_records(
    records: Records,
    num_rows: int,
    num_heads: int,
    key_dim: int,
    value_dim: int,
    activation_dtype: torch.dtype,
    device: torch.device,
) -> int:
    """Check the records of one layer and return T.

    Raises:
        ShapeError, DtypeError, StrideError, DeviceError.
    """
    correction, key_gate = records.correction, records.key_gate
    check_tensor("records.correction", correction, "R H T V", (None, num_heads, None, value_dim), FLOAT32, device)
    num_record_rows, _, spec_query_len, _ = correction.shape
    check_spec_query_len("records.correction: T", spec_query_len)
    check_tensor(
        "records.key_gate",
        key_gate,
        "R H T 2K",
        (num_record_rows, num_heads, spec_query_len, 2 * key_dim),
        (activation_dtype,),
        device,
    )
    check_dense_after("records.correction", correction, 0)
    check_dense_after("records.key_gate", key_gate, 0)
    if num_record_rows < num_rows:
        raise ShapeError(
            f"records.correction: expected at least {num_rows} rows, one per batch row, got {num_record_rows}"
        )
    return spec_query_len
