"""Gluon builtins that need neither memory nor a program: math, shapes, reductions, products, and a table of PTX."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
import triton.language as tl
from triton.experimental.gluon import language as gl

from tests.gluon_values import (
    MEMBERS,
    OPERATORS,
    Array,
    MemoryFault,
    Tensor,
    binary,
    broadcast_all,
    cast,
    common_dtype,
    parent_layout,
    rounded,
    to_tensor,
)

Builtin = TypeVar("Builtin", bound=Callable[..., Any])
BUILTINS: dict[str, Callable[..., Any]] = {"cast": cast, "to_tensor": to_tensor}


def builtin(fn: Builtin) -> Builtin:
    """Enters a function under its name, which is Gluon's."""
    BUILTINS[fn.__name__] = fn
    return fn


def _cut_tf32(x: Array) -> Array:
    """fp32 values without the 13 low bits, which tensor cores ignore."""
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).reshape(np.shape(x))


def _round_tf32(x: Array) -> Array:
    """fp32 values rounded to 10 bits of mantissa, ties away from zero (cvt.rna)."""
    return _cut_tf32(
        (np.ascontiguousarray(x).view(np.uint32) + np.uint32(0x1000)).view(np.float32).reshape(np.shape(x))
    )


def _unary(op: Callable[[Array], Any]) -> Callable[[Any], Tensor]:
    def apply(x: Any) -> Tensor:
        x = to_tensor(x)
        return Tensor(rounded(np.asarray(op(x.data)), x.dtype), x.dtype, x.known_layout)

    return apply


@builtin
def fma(x: Any, y: Any, z: Any) -> Tensor:
    """One rounding: the product of two fp32 is exact in float64."""
    x, y, z = broadcast_all(to_tensor(x), to_tensor(y), to_tensor(z))
    return Tensor(rounded(x.data.astype(np.float64) * y.data + z.data, x.dtype), x.dtype, x.known_layout)


@builtin
def where(condition: Any, x: Any, y: Any) -> Tensor:
    condition = cast(condition, tl.int1)
    if isinstance(x, Tensor) and x.dtype.is_ptr():
        dtype, region = x.dtype, x.region if x.region is y.region else None
    else:
        dtype, region = common_dtype(x, y), None
    condition, x, y = broadcast_all(condition, cast(x, dtype), cast(y, dtype))
    return Tensor(np.where(condition.data, x.data, y.data), dtype, condition.known_layout, region)


def _extremum(op: Callable[[Any, Any], Any], nan_op: Callable[[Any, Any], Any]) -> Callable[..., Tensor]:
    def apply(x: Any, y: Any, propagate_nan: Any = None) -> Tensor:
        if not isinstance(x, Tensor) and not isinstance(y, Tensor):
            return op(x, y).item()  # type: ignore[no-any-return]
        return binary(nan_op if propagate_nan == tl.PropagateNan.ALL else op)(x, y)

    return apply


def _shape_of(args: tuple[Any, ...]) -> list[int]:
    return list(args[0] if len(args) == 1 and not isinstance(args[0], int) else args)


@builtin
def permute(x: Tensor, *dims: Any) -> Tensor:
    return Tensor(np.transpose(x.data, _shape_of(dims)), x.dtype, region=x.region)


@builtin
def trans(x: Tensor, *dims: Any) -> Tensor:
    return permute(x, *(dims or (1, 0)))


@builtin
def reshape(x: Tensor, *shape: Any, can_reorder: bool = False) -> Tensor:
    assert not can_reorder, "can_reorder is not supported in gluon"
    return Tensor(x.data.reshape(_shape_of(shape)), x.dtype, region=x.region)


@builtin
def expand_dims(x: Tensor, axis: Any) -> Tensor:
    return Tensor(np.expand_dims(x.data, axis), x.dtype, parent_layout(x.known_layout), x.region)


@builtin
def broadcast_to(x: Any, *shape: Any) -> Tensor:
    x = to_tensor(x)
    if x.data.ndim not in {0, len(_shape_of(shape))}:
        raise ValueError(f"cannot broadcast, rank mismatch: {x.shape}, {_shape_of(shape)}")
    return Tensor(np.broadcast_to(x.data, _shape_of(shape)), x.dtype, x.known_layout, x.region)


@builtin
def join(a: Tensor, b: Tensor) -> Tensor:
    a, b = broadcast_all(a, b)
    return Tensor(np.stack([a.data, b.data], -1), a.dtype)


@builtin
def split(x: Tensor) -> tuple[Tensor, Tensor]:
    assert x.shape[-1] == 2, f"split takes a last dimension of 2, got {x.shape}"
    return Tensor(x.data[..., 0], x.dtype), Tensor(x.data[..., 1], x.dtype)


@builtin
def gather(src: Tensor, index: Tensor, axis: int) -> Tensor:
    if index.data.min() < 0 or index.data.max() >= src.shape[axis]:
        raise MemoryFault(f"gather: index {index.data.min()}..{index.data.max()} on an axis of {src.shape[axis]}")
    return Tensor(np.take_along_axis(src.data, index.data.astype(np.int64), axis), src.dtype, index.known_layout)


@builtin
def arange(start: int, end: int, layout: Any = None) -> Tensor:
    assert (end - start) & (end - start - 1) == 0, f"arange's range must be a power of two, got {start}..{end}"
    return Tensor(np.arange(start, end, dtype=np.int32), tl.int32, layout)


@builtin
def full(shape: Any, value: Any, dtype: tl.dtype, layout: Any = None) -> Tensor:
    assert all(n & (n - 1) == 0 for n in shape), f"dimensions must be powers of two, got {shape}"
    return Tensor(np.broadcast_to(cast(value, dtype).data, tuple(shape)), dtype, layout)


@builtin
def full_like(x: Tensor, value: Any, shape: Any = None, dtype: Any = None, layout: Any = None) -> Tensor:
    return full(shape or x.shape, value, dtype or x.dtype, layout or x.known_layout)


@builtin
def convert_layout(x: Tensor, layout: Any, assert_trivial: bool = False) -> Tensor:
    rank = getattr(layout, "rank", x.data.ndim)
    assert rank == x.data.ndim, f"a layout of rank {rank} for a tensor of shape {x.shape}"
    return Tensor(x.data, x.dtype, layout, x.region)


def _sliced(x: Tensor, axis: int, keep_dims: bool) -> Any:
    return None if keep_dims or x.known_layout is None else gl.SliceLayout(axis % x.data.ndim, x.known_layout)


@builtin
def reduce(x: Any, axis: Any, combine_fn: Callable[..., Any], keep_dims: bool = False) -> Any:
    """Fold along an axis from its first element to its last; hardware takes another order."""
    xs = x if isinstance(x, tuple) else (x,)
    if axis is None:
        xs, axis = tuple(reshape(v, v.numel) for v in xs), 0
    total = [Tensor(np.take(v.data, 0, axis), v.dtype) for v in xs]
    for i in range(1, xs[0].shape[axis]):
        total = _as_list(combine_fn(*total, *(Tensor(np.take(v.data, i, axis), v.dtype) for v in xs)))
    if keep_dims:
        total = [expand_dims(v, axis) for v in total]
    for v in total:
        v.known_layout = _sliced(xs[0], axis, keep_dims) if v.data.ndim else None
    return tuple(total) if isinstance(x, tuple) else total[0]


@builtin
def associative_scan(x: Any, axis: int, combine_fn: Callable[..., Any], reverse: bool = False) -> Any:
    xs = x if isinstance(x, tuple) else (x,)
    order = range(xs[0].shape[axis])[:: -1 if reverse else 1]
    steps = [[Tensor(np.take(v.data, i, axis), v.dtype) for v in xs] for i in order]
    scanned = list(itertools.accumulate(steps, lambda a, b: _as_list(combine_fn(*a, *b))))[:: -1 if reverse else 1]
    results = tuple(
        Tensor(np.stack([step[n].data for step in scanned], axis), v.dtype, v.known_layout) for n, v in enumerate(xs)
    )
    return results if isinstance(x, tuple) else results[0]


def _as_list(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _reduction(op: Callable[..., Any]) -> Callable[..., Tensor]:
    """NumPy's reduction of the whole axis; bf16 and small integers are widened as Triton's own library does it."""

    def apply(x: Tensor, axis: int | None = None, keep_dims: bool = False, dtype: Any = None) -> Tensor:
        if dtype is None and x.dtype.is_int() and x.dtype.primitive_bitwidth < 32:
            dtype = tl.int32
        x = cast(x, dtype or (x.dtype if op is np.sum or not x.dtype.is_bf16() else tl.float32))
        data = np.asarray(op(x.data, axis=axis, keepdims=keep_dims))
        layout = _sliced(x, axis, keep_dims) if axis is not None and x.data.ndim > 1 else None
        return Tensor(rounded(data, x.dtype), x.dtype, layout)

    return apply


@builtin
def cumsum(x: Tensor, axis: int = 0, reverse: bool = False, dtype: Any = None) -> Tensor:
    x = cast(x, dtype or (tl.float32 if x.dtype.is_bf16() else x.dtype))
    data = np.flip(np.cumsum(np.flip(x.data, axis), axis, dtype=x.data.dtype), axis) if reverse else None
    data = np.cumsum(x.data, axis, dtype=x.data.dtype) if data is None else data
    return Tensor(data, x.dtype, x.known_layout)


def product_of(a: Array, b: Array, dtype: tl.dtype, precision: str | None) -> Array:
    """A product as tensor cores take it: exact products of rounded operands, summed in fp32."""
    if dtype.is_fp32() and precision in {None, "tf32"}:
        a, b = _cut_tf32(a), _cut_tf32(b)
    elif precision not in {None, "ieee", "tf32"} and dtype.is_fp32():
        raise NotImplementedError(f"precision {precision}: Gluon leaves this decomposition to the kernel")
    return np.matmul(a.astype(np.float32), b.astype(np.float32))


def check_product(a: Any, b: Any, acc: Tensor) -> None:
    if a.dtype != b.dtype:
        raise TypeError(f"operands of a product differ: {a.dtype}, {b.dtype}")
    if a.shape[-1] != b.shape[-2] or acc.shape != [*a.shape[:-1], b.shape[-1]]:
        raise ValueError(f"product of {a.shape} and {b.shape} into {acc.shape}")


@builtin
def mma_v2(a: Tensor, b: Tensor, acc: Tensor, input_precision: str | None = None) -> Tensor:
    check_product(a, b, acc)
    return Tensor(acc.data + product_of(a.data, b.data, a.dtype, input_precision), acc.dtype, acc.known_layout)


@builtin
def dot_fma(a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
    return mma_v2(a, b, acc, "ieee")


@builtin
def static_assert(condition: Any, message: str = "") -> None:
    assert condition, message


@builtin
def assume(condition: Any, *_: Any, **__: Any) -> None:
    assert bool(np.all(to_tensor(condition).data)), "the kernel assumes what is not so"


@builtin
def multiple_of(x: Tensor, values: Any) -> Tensor:
    if isinstance(x, Tensor) and not x.data.ndim:
        divisor = values if isinstance(values, int) else values[0]
        assert int(x) % divisor == 0, f"multiple_of: {int(x)} is no multiple of {divisor}"
    return x


def nothing(*_: Any, **__: Any) -> None:
    return None


_MATH: dict[str, Callable[[Array], Any]] = {
    **{
        name: getattr(np, name) for name in ("exp", "exp2", "log", "log2", "sqrt", "sin", "cos", "floor", "ceil", "abs")
    },
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt_rn": np.sqrt,
    "erf": lambda x: torch.erf(torch.from_numpy(np.array(x))).numpy(),
}
_PTX: dict[str, Callable[..., Any]] = {
    "cvt.rna.tf32.f32": _round_tf32,
    "ex2.approx.f32": np.exp2,
    "lg2.approx.f32": np.log2,
    "rcp.approx.f32": np.reciprocal,
    "rsqrt.approx.f32": lambda x: 1 / np.sqrt(x),
    "sqrt.approx.f32": np.sqrt,
    "tanh.approx.f32": np.tanh,
    "mov.b32": np.array,
    "mul.rn.f32": operator.mul,
    "add.rn.f32": operator.add,
    "fma.rn.f32": lambda x, y, z: (x.astype(np.float64) * y + z).astype(np.float32),
}
BUILTINS |= {
    **{name: _unary(op) for name, op in _MATH.items()},
    **{name: OPERATORS[name] for name in ("add", "sub", "mul")},
    "logical_and": OPERATORS["and"],
    "logical_or": OPERATORS["or"],
    "fdiv": OPERATORS["truediv"],
    "div_rn": OPERATORS["truediv"],
    "minimum": _extremum(np.fmin, np.minimum),
    "maximum": _extremum(np.fmax, np.maximum),
    "sum": _reduction(np.sum),
    "max": _reduction(np.fmax.reduce),
    "min": _reduction(np.fmin.reduce),
    "broadcast": lambda a, b: tuple(broadcast_all(a, b)),
    "zeros": lambda shape, dtype, layout=None: full(shape, 0, dtype, layout),
    "zeros_like": lambda x, shape=None, dtype=None, layout=None: full_like(x, 0, shape, dtype, layout),
    "set_auto_layout": convert_layout,
    "max_contiguous": lambda x, values: x,
    "max_constancy": lambda x, values: x,
    "device_assert": static_assert,
    "bank_conflicts": lambda *_: 0,
    "warpgroup_mma_init": lambda x: x,
    **dict.fromkeys(("thread_barrier", "barrier", "debug_barrier", "gdc_wait", "gdc_launch_dependents"), nothing),
    **dict.fromkeys(("static_print", "device_print", "init", "invalidate", "expect", "arrive", "store_wait"), nothing),
}
MEMBERS |= {name: fn for name, fn in BUILTINS.items() if hasattr(tl.tensor, name)}
MEMBERS |= {"to": cast, "view": reshape, "expand_dims": expand_dims, "gather": gather}


def known_ptx(source: str, num_inputs: int) -> Callable[..., Any] | None:
    """One instruction from $1, $2.. to $0, from the table; flush-to-zero is not emulated."""
    operands = r"\s*,\s*".join(rf"\${i}" for i in range(num_inputs + 1))
    match = re.fullmatch(rf"\{{?\s*([\w.]+)\s+{operands}\s*;?\s*\}}?", source)
    return _PTX.get(match[1].replace(".ftz", "")) if match else None
