"""Argument checks of the public ops: what was expected, what came, for which argument.

They see metadata alone, so that one that passed holds for every call with the same (dispatch.py).
"""

from collections.abc import Sequence

import torch

from recoverssm.dispatch import TensorMeta
from recoverssm.errors import DeviceError, DtypeError, ShapeError, StrideError
from recoverssm.triton_compat import INTERPRETED
from recoverssm.types import MAX_SPEC_QUERY_LEN, Device

STATE_DTYPES = (torch.float32, torch.bfloat16)
ACTIVATION_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FLOAT32 = (torch.float32,)
INT32 = (torch.int32,)
DEVICE_TYPES = ("cuda", "cpu") if INTERPRETED else ("cuda",)


def check_tensor(
    name: str,
    tensor: TensorMeta,
    dims: str,
    shape: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
    device: Device,
    hint: str = "",
) -> None:
    """Check one tensor; ``dims`` names its dimensions ("P H V K"), None in ``shape`` accepts any size.

    Raises:
        ShapeError, DtypeError, DeviceError.
    """
    expected = ", ".join(d if n is None else f"{d}={n}" for d, n in zip(dims.split(), shape, strict=True))
    sizes = tensor.shape
    if len(sizes) != len(shape) or any(n is not None and n != m for n, m in zip(shape, sizes, strict=True)):
        raise ShapeError(f"{name}: expected [{expected}], got {list(sizes)}" + (f"; {hint}" if hint else ""))
    if tensor.dtype not in dtypes:
        names = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise DtypeError(f"{name}: expected {names}, got {str(tensor.dtype).removeprefix('torch.')}")
    if tensor.device != device:
        raise DeviceError(f"{name}: expected {device} like the first argument, got {tensor.device}")


def check_device(name: str, device: Device) -> None:
    """Raises DeviceError for a device that cannot run kernels: the CPU can only under Triton's interpreter."""
    if device.type not in DEVICE_TYPES:
        raise DeviceError(
            f"{name}: expected a CUDA device, got {device}; to try kernels on the CPU, set TRITON_INTERPRET=1 before "
            "Python starts"
        )


def check_dense_after(name: str, tensor: TensorMeta, dim: int) -> None:
    """Check that all dimensions after ``dim`` are packed in order, so that only ``dim`` has a free stride.

    Raises:
        StrideError.
    """
    if 0 in tensor.shape:
        return  # torch gives a tensor of nothing the strides of ones
    expected = 1
    for i in range(len(tensor.shape) - 1, dim, -1):
        if tensor.shape[i] != 1 and tensor.strides[i] != expected:
            raise StrideError(
                f"{name}: expected dimensions {dim + 1}.. to be contiguous, got strides {tensor.strides} "
                f"for shape {list(tensor.shape)}; call .contiguous() or allocate it so"
            )
        expected *= tensor.shape[i]


def check_no_overlap(name: str, tensor: TensorMeta) -> None:
    """Check that no two elements of a tensor that is written are one.

    Raises:
        StrideError.
    """
    last = 0  # element of all dimensions so far, the densest first
    for stride, size in sorted(zip(tensor.strides, tensor.shape, strict=True)):
        if size > 1 and stride <= last:
            raise StrideError(
                f"{name}: expected elements that share no memory, got strides {tensor.strides} for shape "
                f"{list(tensor.shape)}; an expanded view cannot be written"
            )
        last += stride * max(size - 1, 0)


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


def check_history_len(name: str, length: int) -> None:
    """Raises ShapeError unless 0 <= length <= 16."""
    if not 0 <= length <= MAX_SPEC_QUERY_LEN:
        raise ShapeError(f"{name}: expected 0 to {MAX_SPEC_QUERY_LEN} tokens that may wait, got {length}")


def check_window(record_len: int, history_len: int) -> int:
    """Return T, what ``history_len`` leaves of the positions of an entry; raises ShapeError unless 1 <= T <= 16."""
    check_history_len("records.history_len", history_len)
    spec_query_len = record_len - history_len
    check_spec_query_len("records.correction: T" + (" = C - history_len" if history_len else ""), spec_query_len)
    return spec_query_len


def check_record_len(name: str, length: int) -> None:
    """Raises ShapeError unless 1 <= length <= 32: a window, and before it as many tokens that wait."""
    if not 1 <= length <= 2 * MAX_SPEC_QUERY_LEN:
        raise ShapeError(f"{name}: expected 1 to {2 * MAX_SPEC_QUERY_LEN} token positions, got {length}")


def check_layer(tensors: Sequence[TensorMeta], state_name: str) -> tuple[int, int, int]:
    """Check what every verify of a layer reads, whatever it writes, and return H, K and V.

    Args:
        tensors: q, k [M, H, K], v [M, H, V], raw_gate [M, H, K], raw_beta [M, H], of one dtype; A_log [H], dt_bias
            [H, K]; the states [P, H, V, K].
        state_name: what errors call the last one.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError.
    """
    q, k, v, raw_gate, raw_beta, A_log, dt_bias, state = tensors
    if len(q.shape) != 3:
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
    value_dim = v.shape[2]
    check_head_dim("q: K", key_dim)
    check_head_dim("v: V", value_dim)
    for name, tensor in (("q", q), ("k", k), ("v", v), ("raw_gate", raw_gate), ("raw_beta", raw_beta)):
        check_dense_after(name, tensor, 0)
    check_tensor(state_name, state, "P H V K", (None, num_heads, value_dim, key_dim), STATE_DTYPES, device)
    check_dense_after(state_name, state, 0)
    check_gate(A_log, dt_bias, (num_heads,), key_dim, device)
    return num_heads, key_dim, value_dim


def check_gate(A_log: TensorMeta, dt_bias: TensorMeta, lead: tuple[int, ...], key_dim: int, device: Device) -> None:
    """Check gate parameters of shape [*lead] and [*lead, K]; ``lead`` is (H,) or (L, H).

    Raises:
        ShapeError, DtypeError, StrideError, DeviceError.
    """
    dims = " ".join(("L", "H")[-len(lead) :])
    check_tensor("gate.A_log", A_log, dims, lead, FLOAT32, device)
    check_tensor("gate.dt_bias", dt_bias, f"{dims} K", (*lead, key_dim), FLOAT32, device)
    check_dense_after("gate.A_log", A_log, -1)
    check_dense_after("gate.dt_bias", dt_bias, -1)


def check_out(out: TensorMeta, v: TensorMeta) -> None:
    """Check an output buffer against v [M, H, V].

    Raises:
        ShapeError, DtypeError, StrideError, DeviceError.
    """
    check_tensor("out", out, "M H V", tuple(v.shape), (v.dtype,), v.device)
    check_dense_after("out", out, 0)
    check_no_overlap("out", out)


def check_layers(name: str, num_layers: int, addresses: TensorMeta, expected: int, device: Device) -> None:
    """Raises ShapeError or DeviceError when a table is not of ``expected`` layers on ``device``."""
    if num_layers != expected:
        raise ShapeError(f"{name}: expected {expected} layers like the first table, got {num_layers}")
    if addresses.device != device:
        raise DeviceError(f"{name}: expected {device} like the first argument, got {addresses.device}")


def check_row_vector(name: str, tensor: TensorMeta, num_rows: int | None, device: Device) -> None:
    """Check a contiguous int32 vector over rows.

    Raises:
        ShapeError, DtypeError, StrideError, DeviceError.
    """
    check_tensor(name, tensor, "N", (num_rows,), INT32, device)
    check_dense_after(name, tensor, -1)


def check_plan(plan: Sequence[TensorMeta], num_rows: int | None, device: Device) -> int:
    """Check the tensors of a commit plan, of ``num_rows`` rows unless None, and return how many rows it has.

    Raises:
        ShapeError, DtypeError, StrideError, DeviceError.
    """
    for name, tensor in zip(("commit_lens", "source_slots", "final_slots"), plan, strict=True):
        check_row_vector(f"plan.{name}", tensor, num_rows, device)
        (num_rows,) = tensor.shape
    assert num_rows is not None
    return num_rows


def check_boundaries(name: str, boundaries: Sequence[TensorMeta], num_rows: int, device: Device) -> int:
    """Check lens and slots of boundaries, of ``num_rows`` rows, and return how many a row has.

    Raises:
        ShapeError, DtypeError, StrideError, DeviceError.
    """
    lens, slots = boundaries
    check_tensor(f"{name}.lens", lens, "N J", (num_rows, None), INT32, device)
    num_boundaries = lens.shape[1]
    check_tensor(f"{name}.slots", slots, "N J", (num_rows, num_boundaries), INT32, device)
    check_dense_after(f"{name}.lens", lens, -1)
    check_dense_after(f"{name}.slots", slots, -1)
    return num_boundaries


def check_records(
    correction: TensorMeta,
    key_gate: TensorMeta,
    num_entries: int,
    head_dims: tuple[int, int, int],
    activation_dtype: torch.dtype,
    device: Device,
    by_slot: bool,
    history_len: int = 0,
) -> int:
    """Check the records of one layer, given H, K and V, and return T.

    Args:
        history_len: positions of an entry in front of the window.
        num_entries: how many there must be at least: of the slots of the states with ``by_slot``, else of the rows.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError.
    """
    num_heads, key_dim, value_dim = head_dims
    check_tensor("records.correction", correction, "R H C V", (None, num_heads, None, value_dim), FLOAT32, device)
    held, _, num_positions, _ = correction.shape
    spec_query_len = check_window(num_positions, history_len)
    expected = (held, num_heads, num_positions, 2 * key_dim)
    check_tensor("records.key_gate", key_gate, "R H C 2K", expected, (activation_dtype,), device)
    check_dense_after("records.correction", correction, 0)
    check_dense_after("records.key_gate", key_gate, 0)
    check_num_records("records.correction", held, num_entries, by_slot)
    return spec_query_len


def check_num_records(name: str, held: int, num_entries: int, by_slot: bool) -> None:
    """Raises ShapeError where records have fewer entries than there are slots, or rows."""
    if held < num_entries:
        needed = "slots, one per slot of the states" if by_slot else "rows, one per row of the batch"
        raise ShapeError(f"{name}: expected at least {num_entries} {needed}, got {held}")
