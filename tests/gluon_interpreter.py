"""Runs a ``@gluon.jit`` kernel on CPU tensors as plain Python, since Gluon has no interpreter of its own.

The kernel's function is called once per program, with every Gluon builtin that it or its device functions name replaced
by one of NumPy. Arithmetic has Triton's types and rounds where they do (fp32 in float32, bf16 to nearest even, operands
of tf32 products cut to 10 bits). Caught: addresses outside the arguments, two programs or two lanes at odds about one
element, int32 overflow, a wgmma operand without its fence or overwritten in flight, a cp.async read before its wait.
Masked-off lanes and fresh shared memory hold NaN or -999. Layouts are accepted, not obeyed: what depends on them
(legality, speed, order of sums) only the compiler and a GPU can tell. Programs run one after another.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import inspect
import itertools
import operator
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime.jit import ConstexprFunction

Array = np.ndarray[Any, Any]
POISON = -999  # what an integer lane holds that the kernel must not look at; floats hold NaN
LAUNCH_OPTIONS = {
    *"num_warps num_stages num_ctas maxnreg launch_pdl launch_cooperative_grid enable_fp_fusion debug".split()
}
_RAW = {
    "int1": np.int8,
    "bf16": np.uint16,
    "fp16": np.float16,
    "fp32": np.float32,
    "fp64": np.float64,
    **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}").type for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_VALUE = {**_RAW, "int1": np.bool_, "bf16": np.float32}


class MemoryFault(IndexError):
    """An access outside the arguments of the kernel, or two accesses whose order nothing decides."""


def _round_bf16(x: Array) -> Array:
    """fp32 values rounded to the nearest bf16, ties to even; NaN stays."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), x, rounded.reshape(np.shape(x)))


def _cut_tf32(x: Array) -> Array:
    """fp32 values without the 13 low bits, which tensor cores ignore."""
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).reshape(np.shape(x))


def _round_tf32(x: Array) -> Array:
    """fp32 values rounded to 10 bits of mantissa, ties away from zero (cvt.rna)."""
    return _cut_tf32(
        (np.ascontiguousarray(x).view(np.uint32) + np.uint32(0x1000)).view(np.float32).reshape(np.shape(x))
    )


def _decode(raw: Array, dtype: tl.dtype) -> Array:
    if dtype.is_bf16():
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw != 0 if dtype.is_int1() else raw


def _encode(value: Array, dtype: tl.dtype) -> Array:
    if dtype.is_bf16():
        return (np.ascontiguousarray(value).view(np.uint32) >> 16).astype(np.uint16).reshape(np.shape(value))
    return value.astype(_RAW[dtype.name])


def _poison(shape: Sequence[int], dtype: tl.dtype) -> Array:
    kind = np.dtype(_VALUE[dtype.name])
    if kind.kind == "f":
        return np.full(shape, np.nan, kind)
    return np.full(shape, max(np.iinfo(kind).min, POISON) if kind.kind == "i" else np.array(-1).astype(kind), kind)


def _value_dtype(dtype: tl.dtype) -> type:
    return np.int64 if dtype.is_ptr() else _VALUE[dtype.name]


class Tensor:
    """A block or, without dimensions, a scalar; pointers hold byte addresses and the argument they came from."""

    __array_ufunc__ = None  # NumPy scalars leave the operators to this class

    def __init__(self, data: Any, dtype: tl.dtype, layout: Any = None, region: Region | None = None) -> None:
        self.data: Array = np.asarray(data)
        assert self.data.dtype == _value_dtype(dtype), f"{self.data.dtype} values for a tensor of {dtype}"
        self.dtype, self.known_layout, self.region = dtype, layout, region

    @property
    def shape(self) -> list[int]:
        return list(self.data.shape)

    @property
    def numel(self) -> int:
        return self.data.size

    @property
    def type(self) -> Tensor:
        return self

    @property
    def scalar(self) -> tl.dtype:
        return self.dtype

    element_ty = scalar

    @property
    def layout(self) -> Any:
        if self.known_layout is None:
            raise NotImplementedError("the layout of this tensor is the compiler's to infer; convert_layout names one")
        return self.known_layout

    @property
    def T(self) -> Tensor:  # noqa: N802 - Triton's name
        return permute(self, 1, 0)

    def __getattr__(self, name: str) -> Any:
        name = {"to": "cast", "view": "reshape", "logical_and": "and_", "logical_or": "or_"}.get(name, name)
        if name not in _MEMBERS:
            raise AttributeError(f"tensor.{name} is unknown to the emulator")
        return lambda *args, **kwargs: _PURE[name](self, *args, **kwargs)

    def __getitem__(self, index: Any) -> Tensor:
        index = index if isinstance(index, tuple) else (index,)
        if any(i is not None and i != slice(None) for i in index):
            raise TypeError(f"a tensor is indexed by None and ':' alone, not {index}")
        return Tensor(self.data[index], self.dtype, _parent(self.known_layout), self.region)

    def __bool__(self) -> bool:
        return bool(self._scalar())

    def __index__(self) -> int:
        return operator.index(self._scalar())

    def __int__(self) -> int:
        return int(self._scalar())

    def __float__(self) -> float:
        return float(self._scalar())

    def _scalar(self) -> Any:
        if self.data.ndim:
            raise TypeError(f"control flow needs a scalar, got a tensor of shape {self.shape}")
        return self.data.item()

    def __repr__(self) -> str:
        return f"Tensor({self.dtype}, {self.data})"

    __hash__ = object.__hash__


def _parent(layout: Any) -> Any:
    return getattr(layout, "parent", None) if isinstance(layout, gl.SliceLayout) else None


def to_tensor(x: Any) -> Tensor:
    """What Triton makes of a Python number: int32, int64 where it must, fp32, int1."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, (bool, np.bool_)):
        return Tensor(np.bool_(x), tl.int1)
    if isinstance(x, (int, np.integer)):
        dtype = tl.int32 if -(2**31) <= x < 2**31 else tl.int64
        return Tensor(_VALUE[dtype.name](x), dtype)
    if isinstance(x, (float, np.floating)):
        return Tensor(np.float32(x), tl.float32)
    raise TypeError(f"expected a tensor or a number, got {type(x).__name__}: {x!r}")


def cast(x: Any, dtype: tl.dtype, fp_downcast_rounding: str | None = None, bitcast: bool = False) -> Tensor:
    x = to_tensor(x)
    if fp_downcast_rounding not in {None, "rtne"}:
        raise NotImplementedError(f"fp_downcast_rounding={fp_downcast_rounding}")
    if x.dtype == dtype:
        return x
    if dtype.is_ptr() or x.dtype.is_ptr():
        region = x.region if dtype.is_ptr() and x.dtype.is_ptr() else None
        return Tensor(x.data.astype(_value_dtype(dtype)), dtype, x.known_layout, region)
    if bitcast:
        raw = np.ascontiguousarray(_encode(x.data, x.dtype)).view(_RAW[dtype.name]).reshape(x.data.shape)
        return Tensor(_decode(raw, dtype), dtype, x.known_layout)
    return Tensor(_rounded(x.data, dtype), dtype, x.known_layout)


def _rounded(data: Array, dtype: tl.dtype) -> Array:
    if dtype.is_int1():
        return data != 0
    return _round_bf16(data.astype(np.float32)) if dtype.is_bf16() else data.astype(_VALUE[dtype.name])


def broadcast_all(*tensors: Tensor) -> list[Tensor]:
    """Tensors of one shape; Gluon adds no dimension by itself, so ranks agree unless one is a scalar."""
    ranks = {t.data.ndim for t in tensors} - {0}
    if len(ranks) > 1:
        raise ValueError(f"cannot broadcast, rank mismatch: {[t.shape for t in tensors]}")
    data = np.broadcast_arrays(*(t.data for t in tensors))
    layout = next((t.known_layout for t in tensors if t.data.ndim and t.known_layout is not None), None)
    return [Tensor(d, t.dtype, layout, t.region) for d, t in zip(data, tensors, strict=True)]


_KINDS = (lambda d: d.is_int1(), lambda d: d.is_int(), lambda d: d.is_floating())


def _kind(dtype: tl.dtype) -> int:
    return next(rank for rank, test in enumerate(_KINDS) if test(dtype))


def _common_dtype(a: Any, b: Any, *, division: bool = False) -> tl.dtype:
    """Triton's promotion: a Python number of no higher kind takes the tensor's type; mixed bf16 becomes fp32."""
    (x, y), is_number = (to_tensor(a).dtype, to_tensor(b).dtype), [not isinstance(v, Tensor) for v in (a, b)]
    if is_number[0] != is_number[1]:
        number, tensor = (x, y) if is_number[0] else (y, x)
        if _kind(number) <= _kind(tensor):
            return tl.float32 if division and tensor in {tl.float16, tl.bfloat16} else tensor
    for dtype in (tl.float64, tl.float32):
        if dtype in {x, y}:
            return dtype
    if tl.float16 in {x, y} or x == y == tl.bfloat16:
        return tl.float32 if division else tl.float16 if tl.float16 in {x, y} else tl.bfloat16
    if tl.bfloat16 in {x, y}:
        return tl.float32
    if x.primitive_bitwidth != y.primitive_bitwidth:
        return x if x.primitive_bitwidth > y.primitive_bitwidth else y
    return y if y.is_int_unsigned() else x


def _binary(op: Callable[[Any, Any], Any], *, division: bool = False, compares: bool = False) -> Callable[..., Tensor]:
    def apply(a: Any, b: Any) -> Tensor:
        for pointer, offset in ((a, b), (b, a)):
            if isinstance(pointer, Tensor) and pointer.dtype.is_ptr() and not compares:
                pointer, offset = broadcast_all(pointer, to_tensor(offset))
                step = offset.data.astype(np.int64) * (pointer.dtype.element_ty.primitive_bitwidth // 8 or 1)
                return Tensor(op(pointer.data, step), pointer.dtype, pointer.known_layout, pointer.region)
        if compares and isinstance(a, Tensor) and a.dtype.is_ptr():
            return Tensor(op(a.data, to_tensor(b).data), tl.int1)
        dtype = _common_dtype(a, b, division=division)
        if op is operator.truediv and dtype.is_int():
            dtype = tl.float32
        x, y = broadcast_all(cast(a, dtype), cast(b, dtype))
        if compares:
            return Tensor(op(x.data, y.data), tl.int1, x.known_layout)
        return Tensor(_checked(op, x.data, y.data, dtype), dtype, x.known_layout)

    return apply


def _checked(op: Callable[[Any, Any], Any], x: Array, y: Array, dtype: tl.dtype) -> Array:
    """op in the type's arithmetic; a signed result that does not fit in 32 bits is an error, as it never is meant."""
    if dtype.is_int_signed() and dtype.primitive_bitwidth <= 32 and op in {operator.add, operator.sub, operator.mul}:
        wide = op(x.astype(np.int64), y.astype(np.int64))
        if np.any(wide != wide.astype(_VALUE[dtype.name])):
            raise OverflowError(f"{op.__name__} of {dtype} leaves its range: {wide.min()}..{wide.max()}")
        return np.asarray(wide.astype(_VALUE[dtype.name]))
    return np.asarray(_rounded(np.asarray(op(x, y)), dtype))


def _truncated(x: Array, y: Array) -> Array:
    """Division of integers toward zero, as C does it."""
    return np.where(np.sign(x) * np.sign(y) < 0, -(np.abs(x) // np.abs(y)), np.abs(x) // np.abs(y))


_OPERATORS: dict[str, Callable[..., Tensor]] = {
    "add": _binary(operator.add),
    "sub": _binary(operator.sub),
    "mul": _binary(operator.mul),
    "truediv": _binary(operator.truediv, division=True),
    "floordiv": _binary(_truncated, division=True),
    "mod": _binary(np.fmod, division=True),
    "and": _binary(operator.and_),
    "or": _binary(operator.or_),
    "xor": _binary(operator.xor),
    "lshift": _binary(np.left_shift),
    "rshift": _binary(np.right_shift),
    **{name: _binary(getattr(operator, name), compares=True) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
}
for _name, _op in _OPERATORS.items():
    setattr(Tensor, f"__{_name}__", lambda self, other, op=_op: op(self, other))
    if hasattr(int, f"__r{_name}__"):
        setattr(Tensor, f"__r{_name}__", lambda self, other, op=_op: op(other, self))
Tensor.__neg__ = lambda self: _OPERATORS["sub"](0, self)  # type: ignore[attr-defined]
Tensor.__pos__ = lambda self: self  # type: ignore[attr-defined]
Tensor.__invert__ = lambda self: Tensor(~self.data, self.dtype, self.known_layout)  # type: ignore[attr-defined]


def _unary(op: Callable[[Array], Any]) -> Callable[[Any], Tensor]:
    def apply(x: Any) -> Tensor:
        x = to_tensor(x)
        return Tensor(_rounded(np.asarray(op(x.data)), x.dtype), x.dtype, x.known_layout)

    return apply


def fma(x: Any, y: Any, z: Any) -> Tensor:
    """One rounding: the product of two fp32 is exact in float64."""
    x, y, z = broadcast_all(to_tensor(x), to_tensor(y), to_tensor(z))
    return Tensor(_rounded(x.data.astype(np.float64) * y.data + z.data, x.dtype), x.dtype, x.known_layout)


def where(condition: Any, x: Any, y: Any) -> Tensor:
    condition = cast(condition, tl.int1)
    if isinstance(x, Tensor) and x.dtype.is_ptr():
        dtype, region = x.dtype, x.region if x.region is y.region else None
    else:
        dtype, region = _common_dtype(x, y), None
    condition, x, y = broadcast_all(condition, cast(x, dtype), cast(y, dtype))
    return Tensor(np.where(condition.data, x.data, y.data), dtype, condition.known_layout, region)


def _extremum(op: Callable[[Any, Any], Any], nan_op: Callable[[Any, Any], Any]) -> Callable[..., Tensor]:
    def apply(x: Any, y: Any, propagate_nan: Any = None) -> Tensor:
        if not isinstance(x, Tensor) and not isinstance(y, Tensor):
            return op(x, y).item()  # type: ignore[no-any-return]
        return _binary(nan_op if propagate_nan == tl.PropagateNan.ALL else op)(x, y)

    return apply


def _shape_of(args: tuple[Any, ...]) -> list[int]:
    return list(args[0] if len(args) == 1 and not isinstance(args[0], int) else args)


def permute(x: Tensor, *dims: Any) -> Tensor:
    return Tensor(np.transpose(x.data, _shape_of(dims)), x.dtype, region=x.region)


def trans(x: Tensor, *dims: Any) -> Tensor:
    return permute(x, *(dims or (1, 0)))


def reshape(x: Tensor, *shape: Any, can_reorder: bool = False) -> Tensor:
    assert not can_reorder, "can_reorder is not supported in gluon"
    return Tensor(x.data.reshape(_shape_of(shape)), x.dtype, region=x.region)


def expand_dims(x: Tensor, axis: Any) -> Tensor:
    return Tensor(np.expand_dims(x.data, axis), x.dtype, _parent(x.known_layout), x.region)


def broadcast_to(x: Any, *shape: Any) -> Tensor:
    x = to_tensor(x)
    if x.data.ndim not in {0, len(_shape_of(shape))}:
        raise ValueError(f"cannot broadcast, rank mismatch: {x.shape}, {_shape_of(shape)}")
    return Tensor(np.broadcast_to(x.data, _shape_of(shape)), x.dtype, x.known_layout, x.region)


def join(a: Tensor, b: Tensor) -> Tensor:
    a, b = broadcast_all(a, b)
    return Tensor(np.stack([a.data, b.data], -1), a.dtype)


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    assert x.shape[-1] == 2, f"split takes a last dimension of 2, got {x.shape}"
    return Tensor(x.data[..., 0], x.dtype), Tensor(x.data[..., 1], x.dtype)


def gather(src: Tensor, index: Tensor, axis: int) -> Tensor:
    if index.data.min() < 0 or index.data.max() >= src.shape[axis]:
        raise MemoryFault(f"gather: index {index.data.min()}..{index.data.max()} on an axis of {src.shape[axis]}")
    return Tensor(np.take_along_axis(src.data, index.data.astype(np.int64), axis), src.dtype, index.known_layout)


def arange(start: int, end: int, layout: Any = None) -> Tensor:
    assert (end - start) & (end - start - 1) == 0, f"arange's range must be a power of two, got {start}..{end}"
    return Tensor(np.arange(start, end, dtype=np.int32), tl.int32, layout)


def full(shape: Any, value: Any, dtype: tl.dtype, layout: Any = None) -> Tensor:
    assert all(n & (n - 1) == 0 for n in shape), f"dimensions must be powers of two, got {shape}"
    return Tensor(np.broadcast_to(cast(value, dtype).data, tuple(shape)), dtype, layout)


def full_like(x: Tensor, value: Any, shape: Any = None, dtype: Any = None, layout: Any = None) -> Tensor:
    return full(shape or x.shape, value, dtype or x.dtype, layout or x.known_layout)


def convert_layout(x: Tensor, layout: Any, assert_trivial: bool = False) -> Tensor:
    rank = getattr(layout, "rank", x.data.ndim)
    assert rank == x.data.ndim, f"a layout of rank {rank} for a tensor of shape {x.shape}"
    return Tensor(x.data, x.dtype, layout, x.region)


def _sliced(x: Tensor, axis: int, keep_dims: bool) -> Any:
    return None if keep_dims or x.known_layout is None else gl.SliceLayout(axis % x.data.ndim, x.known_layout)


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
        return Tensor(_rounded(data, x.dtype), x.dtype, layout)

    return apply


def cumsum(x: Tensor, axis: int = 0, reverse: bool = False, dtype: Any = None) -> Tensor:
    x = cast(x, dtype or (tl.float32 if x.dtype.is_bf16() else x.dtype))
    data = np.flip(np.cumsum(np.flip(x.data, axis), axis, dtype=x.data.dtype), axis) if reverse else None
    data = np.cumsum(x.data, axis, dtype=x.data.dtype) if data is None else data
    return Tensor(data, x.dtype, x.known_layout)


def _product(a: Array, b: Array, dtype: tl.dtype, precision: str | None) -> Array:
    """A product as tensor cores take it: exact products of rounded operands, summed in fp32."""
    if dtype.is_fp32() and precision in {None, "tf32"}:
        a, b = _cut_tf32(a), _cut_tf32(b)
    elif precision not in {None, "ieee", "tf32"} and dtype.is_fp32():
        raise NotImplementedError(f"precision {precision}: Gluon leaves this decomposition to the kernel")
    return np.matmul(a.astype(np.float32), b.astype(np.float32))


def _check_product(a: Any, b: Any, acc: Tensor) -> None:
    if a.dtype != b.dtype:
        raise TypeError(f"operands of a product differ: {a.dtype}, {b.dtype}")
    if a.shape[-1] != b.shape[-2] or acc.shape != [*a.shape[:-1], b.shape[-1]]:
        raise ValueError(f"product of {a.shape} and {b.shape} into {acc.shape}")


def mma_v2(a: Tensor, b: Tensor, acc: Tensor, input_precision: str | None = None) -> Tensor:
    _check_product(a, b, acc)
    return Tensor(acc.data + _product(a.data, b.data, a.dtype, input_precision), acc.dtype, acc.known_layout)


def dot_fma(a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
    return mma_v2(a, b, acc, "ieee")


def static_assert(condition: Any, message: str = "") -> None:
    assert condition, message


def assume(condition: Any, *_: Any, **__: Any) -> None:
    assert bool(np.all(to_tensor(condition).data)), "the kernel assumes what is not so"


def multiple_of(x: Tensor, values: Any) -> Tensor:
    if isinstance(x, Tensor) and not x.data.ndim:
        divisor = values if isinstance(values, int) else values[0]
        assert int(x) % divisor == 0, f"multiple_of: {int(x)} is no multiple of {divisor}"
    return x


def _nothing(*_: Any, **__: Any) -> None:
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
_PURE: dict[str, Callable[..., Any]] = {
    **{name: _unary(op) for name, op in _MATH.items()},
    **{
        f.__name__: f
        for f in (
            to_tensor,
            cast,
            fma,
            where,
            permute,
            trans,
            reshape,
            expand_dims,
            broadcast_to,
            join,
            split,
            gather,
            arange,
            full,
            full_like,
            convert_layout,
            reduce,
            associative_scan,
            cumsum,
            mma_v2,
            dot_fma,
            static_assert,
            assume,
            multiple_of,
        )
    },
    **{name: _OPERATORS[name] for name in ("add", "sub", "mul")},
    "and_": _OPERATORS["and"],
    "or_": _OPERATORS["or"],
    "fdiv": _OPERATORS["truediv"],
    "div_rn": _OPERATORS["truediv"],
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
    "warpgroup_mma_init": lambda x: x,
    **dict.fromkeys(
        (
            "static_print",
            "device_print",
            "thread_barrier",
            "barrier",
            "debug_barrier",
            "gdc_wait",
            "gdc_launch_dependents",
            "init",
            "invalidate",
            "expect",
            "arrive",
            "wait",
            "store_wait",
        ),
        _nothing,
    ),
}
_MEMBERS = {
    *_MATH,
    "cast",
    "permute",
    "trans",
    "reshape",
    "expand_dims",
    "broadcast_to",
    "split",
    "sum",
    "max",
    "min",
    "reduce",
    "associative_scan",
    "cumsum",
    "and_",
    "or_",
    "gather",
}


class Region:
    """The memory of one argument: its bytes, which of them are elements, and which program touched which."""

    def __init__(self, name: str, address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> None:
        self.name, self.address, self.itemsize = name, address, itemsize
        self.is_extra = False
        length = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if 0 not in shape else 0
        memory = (ctypes.c_uint8 * (length * itemsize)).from_address(address) if length else b""
        self.bytes = np.frombuffer(memory, np.uint8)
        self.is_element = np.zeros(length, bool)
        if length:
            np.lib.stride_tricks.as_strided(self.is_element, tuple(shape), tuple(strides))[...] = True
        self.reader = np.full(length, -1, np.int32)  # program that read an element, -1 none, -2 several
        self.writer = np.full(length, -1, np.int32)

    def holds(self, addresses: Array, itemsize: int) -> Array:
        first, last = addresses - self.address, addresses - self.address + itemsize - 1
        inside = (first >= 0) & (last < self.bytes.size)
        for offset in (first, last):
            inside &= self.is_element.take(offset // self.itemsize, mode="clip") if self.bytes.size else False
        return inside

    def elements(self, raw: type) -> Array:
        return self.bytes[: self.bytes.size // np.dtype(raw).itemsize * np.dtype(raw).itemsize].view(raw)

    def indices(self, addresses: Array, itemsize: int) -> Array:
        offsets = addresses - self.address
        if np.any(offsets % itemsize):
            raise MemoryFault(f"{self.name}: access of {itemsize} bytes at an address that is no multiple of it")
        return np.asarray(offsets // itemsize)

    def note_read(self, index: Array, itemsize: int, program: int) -> None:
        element = index * itemsize // self.itemsize
        writer, reader = self.writer[element], self.reader[element]
        self._refuse((writer != -1) & (writer != program), element, "reads what program", writer, program)
        self.reader[element] = np.where((reader == -1) | (reader == program), program, -2)

    def note_write(self, index: Array, itemsize: int, program: int, changes: Array) -> None:
        element = index * itemsize // self.itemsize
        writer, reader = self.writer[element], self.reader[element]
        self._refuse(changes & (writer != -1) & (writer != program), element, "changes what program", writer, program)
        self._refuse(
            changes & (reader != -1) & (reader != program), element, "changes what was read by", reader, program
        )
        self.writer[element] = program

    def _refuse(self, races: Array, element: Array, deed: str, other: Array, program: int) -> None:
        if races.any():
            raise MemoryFault(
                f"race: program {program} {deed} {other[races][0]} in {self.name}, element {element[races][0]}"
            )


class SharedMemory:
    """A view of one allocation; ``root`` says which, ``data`` holds the raw elements in logical order."""

    def __init__(self, machine: Machine, data: Array, dtype: tl.dtype, layout: Any, root: int) -> None:
        self.machine, self.data, self.dtype, self.layout, self.root = machine, data, dtype, layout, root

    @property
    def shape(self) -> list[int]:
        return list(self.data.shape)

    @property
    def rank(self) -> int:
        return self.data.ndim

    @property
    def numel(self) -> int:
        return self.data.size

    @property
    def type(self) -> SharedMemory:
        return self

    element_ty = property(lambda self: self.dtype)

    def _view(self, data: Array, dtype: tl.dtype | None = None, layout: Any = None) -> SharedMemory:
        assert np.shares_memory(data, self.data), (
            "this view needs a copy: its elements do not lie in the order asked for"
        )
        return SharedMemory(self.machine, data, dtype or self.dtype, layout or self.layout, self.root)

    def load(self, layout: Any = None) -> Tensor:
        return convert_layout(Tensor(_decode(self.data.copy(), self.dtype), self.dtype), layout)

    def store(self, value: Tensor) -> None:
        if value.shape != self.shape or value.dtype != self.dtype:
            raise ValueError(f"store of {value.dtype}{value.shape} to shared {self.dtype}{self.shape}")
        if self.root in self.machine.in_flight:
            raise MemoryFault("a wgmma that nobody waited for still reads this shared memory")
        self.data[...] = _encode(value.data, self.dtype)
        self.machine.unfenced.add(self.root)

    def index(self, index: Any) -> SharedMemory:
        if not 0 <= int(index) < self.shape[0]:
            raise MemoryFault(f"shared memory: index {int(index)} of {self.shape[0]}")
        return self._view(self.data[int(index)])

    def slice(self, start: Any, length: int, dim: int = 0) -> SharedMemory:
        if not 0 <= int(start) <= int(start) + length <= self.shape[dim]:
            raise MemoryFault(f"shared memory: slice {int(start)}+{length} of {self.shape[dim]}")
        return self._view(self.data[(builtins.slice(None),) * dim + (builtins.slice(int(start), int(start) + length),)])

    def permute(self, order: Sequence[int]) -> SharedMemory:
        return self._view(self.data.transpose(order))

    def reshape(self, shape: Sequence[int]) -> SharedMemory:
        return self._view(self.data.reshape(shape))

    def _reinterpret(self, dtype: tl.dtype, shape: Sequence[int], layout: Any) -> SharedMemory:
        raw = np.dtype(_RAW[dtype.name])
        if (raw.itemsize, shape[-1]) != (self.data.itemsize, self.shape[-1]) and not (
            _is_plain(self.layout) and _is_plain(layout)
        ):
            raise NotImplementedError(f"reinterpreting swizzled memory needs its swizzle: {self.layout} as {layout}")
        size = int(np.prod(shape)) * raw.itemsize
        assert size <= self.data.nbytes, f"reinterpreting {self.data.nbytes} bytes as {size}"
        flat = self.data.reshape(-1)
        assert np.shares_memory(flat, self.data), "only contiguous shared memory can be reinterpreted"
        return self._view(flat.view(np.uint8)[:size].view(raw).reshape(shape), dtype, layout)

    def _keep_alive(self) -> None:
        return None


def _is_plain(layout: Any) -> bool:
    """Whether elements lie in logical order: no swizzle, last dimension fastest."""
    if isinstance(layout, gl.SwizzledSharedLayout):
        return layout.max_phase == 1 and list(layout.order) == sorted(layout.order, reverse=True)
    return isinstance(layout, gl.NVMMASharedLayout) and not layout.swizzle_byte_width and not layout.transposed


class PendingProduct:
    """What an asynchronous wgmma returns: no tensor before warpgroup_mma_wait."""

    def __init__(self, value: Tensor) -> None:
        self.value, self.shape, self.dtype = value, value.shape, value.dtype


class Descriptor:
    """A TMA descriptor: a box of a global tensor, elements outside it read as zero and are not written."""

    def __init__(self, base: Tensor, shape: Any, strides: Any, block_shape: Any, layout: Any) -> None:
        self.base, self.dtype, self.layout = base, base.dtype.element_ty, layout
        self.shape, self.strides, self.block_shape = ([int(n) for n in v] for v in (shape, strides, block_shape))
        self.block_type = self

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.block_shape)) * self.dtype.primitive_bitwidth // 8

    nbytes_per_cta = nbytes

    def box(self, coord: Sequence[Any]) -> tuple[Tensor, Tensor]:
        index = [
            (int(start) + np.arange(n)).reshape([-1 if d == i else 1 for i in range(len(self.block_shape))])
            for d, (start, n) in enumerate(zip(coord, self.block_shape, strict=True))
        ]
        inside, offset = np.ones(self.block_shape, bool), np.zeros(self.block_shape, np.int64)
        for i, n, stride in zip(index, self.shape, self.strides, strict=True):
            inside, offset = inside & (i >= 0) & (i < n), offset + i * stride
        return self.base + Tensor(offset, tl.int64), Tensor(inside, tl.int1)


class Machine:
    """Global memory, the program that runs, and what it has in flight."""

    def __init__(self, grid: tuple[int, ...], *, num_warps: int, asm: dict[str, Any], check_races: bool) -> None:
        self.grid, self.num_warps, self.check_races = (*grid, 1, 1)[:3], num_warps, check_races
        self.asm = {" ".join(source.split()): emulate for source, emulate in asm.items()}
        self.regions: list[Region] = []
        self.roots = itertools.count()
        self.translated: dict[int, Any] = {}
        self.builtins = {
            **_PURE,
            **{name.removeprefix("do_"): getattr(self, name) for name in dir(self) if name.startswith("do_")},
        }
        self.start((0, 0, 0))

    def start(self, pid: tuple[int, ...]) -> None:
        self.pid = pid
        self.number = int(np.ravel_multi_index(pid, self.grid))
        self.unfenced: set[int] = set()
        self.in_flight: list[int] = []
        self.products: list[list[int]] = []
        self.copies: list[list[tuple[SharedMemory, Array]]] = [[]]

    def finish(self) -> None:
        if any(self.copies):
            raise MemoryFault("the program ends with cp.async copies that nobody waited for")

    def do_program_id(self, axis: int) -> Tensor:
        return Tensor(np.int32(self.pid[axis]), tl.int32)

    def do_num_programs(self, axis: int) -> Tensor:
        return Tensor(np.int32(self.grid[axis]), tl.int32)

    def do_num_warps(self) -> int:
        return self.num_warps

    # --- global memory

    def _lanes(self, pointer: Tensor, mask: Any, *rest: Tensor) -> tuple[Tensor, Array, list[Tensor]]:
        if not isinstance(pointer, Tensor) or not pointer.dtype.is_ptr():
            raise TypeError(f"expected a pointer, got {pointer!r}")
        if pointer.data.ndim == 0 and any(t.data.ndim for t in (*rest, to_tensor(True if mask is None else mask))):
            raise ValueError("value and mask of a scalar pointer must be scalars")
        full_mask = cast(True if mask is None else mask, tl.int1)
        pointer, full_mask, *others = broadcast_all(pointer, full_mask, *rest)
        return pointer, full_mask.data, others

    def _locate(self, pointer: Tensor, mask: Array) -> list[tuple[Region, Array]]:
        """Each region that active lanes touch, with those lanes."""
        itemsize = np.dtype(_RAW[pointer.dtype.element_ty.name]).itemsize
        own = [pointer.region] if pointer.region is not None else self.regions
        extra = [region for region in self.regions if region.is_extra]
        found, left = [], mask.copy()
        for region in dict.fromkeys([*own, *extra]):
            lanes = left & region.holds(pointer.data, itemsize)
            if lanes.any():
                found.append((region, lanes))
                left &= ~lanes
        if left.any():
            address = pointer.data[left].reshape(-1)[0]
            where_, home = "", pointer.region
            if home is not None:
                where_ = f", element {(address - home.address) / itemsize:g} of {home.name}"
            raise MemoryFault(
                f"program {self.pid}: {int(left.sum())} of {left.size} lanes touch memory outside every argument, "
                f"first {address:#x}{where_}"
            )
        return found

    def _read(self, pointer: Tensor, mask: Array, result: Array) -> Array:
        """Fills the active lanes of a raw result."""
        for region, lanes in self._locate(pointer, mask):
            index = region.indices(pointer.data[lanes], result.itemsize)
            result[lanes] = region.elements(result.dtype.type)[index]
            if self.check_races:
                region.note_read(index, result.itemsize, self.number)
        return result

    def _write(self, pointer: Tensor, mask: Array, raw: Array, *, atomic: bool = False) -> None:
        for region, lanes in self._locate(pointer, mask):
            index, values = region.indices(pointer.data[lanes], raw.itemsize), raw[lanes]
            memory = region.elements(raw.dtype.type)
            if self.check_races and not atomic:
                region.note_write(index, raw.itemsize, self.number, _differs(memory[index], values))
            memory[index] = values
            if _differs(memory[index], values).any():
                raise MemoryFault(f"program {self.pid}: lanes of one store put different values into {region.name}")

    def do_load(self, pointer: Tensor, mask: Any = None, other: Any = None, **_: Any) -> Tensor:
        assert mask is not None or other is None, "`other` cannot be provided without `mask`"
        dtype = pointer.dtype.element_ty
        others = [] if other is None else [cast(other, dtype)]
        pointer, lanes, others = self._lanes(pointer, mask, *others)
        result = _encode(others[0].data if others else _poison(pointer.shape, dtype), dtype)
        return Tensor(_decode(self._read(pointer, lanes, np.array(result)), dtype), dtype, pointer.known_layout)

    def do_store(self, pointer: Tensor, value: Any, mask: Any = None, **_: Any) -> None:
        shape, dtype = pointer.shape, pointer.dtype.element_ty
        pointer, lanes, (value,) = self._lanes(pointer, mask, cast(value, dtype))
        if pointer.shape != shape:
            raise ValueError(f"expected pointer argument to have shape {pointer.shape} but got {shape}")
        self._write(pointer, lanes, _encode(value.data, dtype))

    def _atomic(self, pointer: Tensor, value: Any, mask: Any, op: Callable[[Any, Any], Any]) -> Tensor:
        """Lanes one after another, in logical order."""
        dtype = pointer.dtype.element_ty
        pointer, lanes, (value,) = self._lanes(pointer, mask, cast(value, dtype))
        old = _poison(pointer.shape, dtype)
        for lane in zip(*np.nonzero(lanes), strict=True) if pointer.data.ndim else [()] * bool(lanes):
            one = Tensor(pointer.data[lane], pointer.dtype, region=pointer.region)
            raw = self._read(one, np.array(True), np.zeros((), _RAW[dtype.name]))
            old[lane] = _decode(raw, dtype)
            new = np.asarray(op(old[lane], value.data[lane]), old.dtype)
            self._write(one, np.array(True), _encode(new, dtype), atomic=True)
        return Tensor(old, dtype, pointer.known_layout)

    def do_atomic_add(self, pointer: Tensor, value: Any, mask: Any = None, **_: Any) -> Tensor:
        return self._atomic(pointer, value, mask, operator.add)

    def do_atomic_max(self, pointer: Tensor, value: Any, mask: Any = None, **_: Any) -> Tensor:
        return self._atomic(pointer, value, mask, max)

    def do_atomic_min(self, pointer: Tensor, value: Any, mask: Any = None, **_: Any) -> Tensor:
        return self._atomic(pointer, value, mask, min)

    def do_atomic_xchg(self, pointer: Tensor, value: Any, mask: Any = None, **_: Any) -> Tensor:
        return self._atomic(pointer, value, mask, lambda old, new: new)

    def do_atomic_cas(self, pointer: Tensor, compare: Any, value: Any, **_: Any) -> Tensor:
        return self._atomic(pointer, value, None, lambda old, new: new if old == int(compare) else old)

    # --- shared memory and what runs beside the program

    def do_allocate_shared_memory(self, dtype: tl.dtype, shape: Any, layout: Any, value: Any = None) -> SharedMemory:
        memory = SharedMemory(self, _encode(_poison(shape, dtype), dtype), dtype, layout, next(self.roots))
        if value is not None:
            memory.store(value)
        return memory

    def do_fence_async_shared(self, cluster: bool = False) -> None:
        self.unfenced.clear()

    def do_warpgroup_mma(
        self,
        a: Any,
        b: SharedMemory,
        acc: Any,
        *,
        use_acc: Any = True,
        precision: Any = None,
        max_num_imprecise_acc: Any = None,
        is_async: bool = False,
    ) -> Any:
        old = acc.value if isinstance(acc, PendingProduct) else acc
        _check_product(a, b, old)
        (rows, columns), depth_bytes = old.shape, a.shape[-1] * a.dtype.primitive_bitwidth // 8
        if rows % 64 or columns % 8 or depth_bytes % 32:
            raise ValueError(f"wgmma takes M of 64, N of 8, K of 32 bytes; got {a.shape} and {b.shape} of {a.dtype}")
        roots = [operand.root for operand in (a, b) if isinstance(operand, SharedMemory)]
        if not isinstance(b, SharedMemory) or self.unfenced & set(roots):
            raise MemoryFault("operand b of a wgmma lies in shared memory, with fence_async_shared after its store")
        left, right = (v.load().data if isinstance(v, SharedMemory) else v.data for v in (a, b))
        product = _product(left, right, a.dtype, None if precision == "ieee" else precision)
        value = Tensor(old.data + product if use_acc else product, old.dtype, old.known_layout)
        if not is_async:
            return value
        self.products.append(roots)
        self.in_flight = [root for group in self.products for root in group]
        return PendingProduct(value)

    def do_warpgroup_mma_wait(self, num_outstanding: int = 0, deps: Any = None) -> Any:
        self.products = self.products[len(self.products) - num_outstanding :] if num_outstanding else []
        self.in_flight = [root for group in self.products for root in group]
        values = tuple(d.value if isinstance(d, PendingProduct) else d for d in deps)
        return values[0] if len(values) == 1 else values

    def do_async_copy_global_to_shared(self, *args: Any, **kwargs: Any) -> None:
        """cp.async (memory, pointer, mask), or TMA (descriptor, coord, barrier, memory, pred)."""
        if isinstance(args[0], Descriptor):
            return self._tma_load(*args, **kwargs)
        memory, pointer, mask = (*args, kwargs.get("mask"))[:3]
        shape, dtype = pointer.shape, pointer.dtype.element_ty
        pointer, lanes, _ = self._lanes(pointer, mask)
        if not memory.shape == shape == pointer.shape or memory.dtype != dtype:
            raise ValueError(f"copy of {dtype}{pointer.shape} to shared {memory.dtype}{memory.shape}")
        self.copies[-1].append((memory, self._read(pointer, lanes, np.zeros(pointer.shape, memory.data.dtype))))
        memory.data[...] = _encode(_poison(shape, dtype), dtype)
        return None

    def do_commit_group(self) -> None:
        self.copies.append([])

    def do_wait_group(self, num_outstanding: int = 0) -> None:
        done = max(len(self.copies) - 1 - num_outstanding, 0)
        for memory, raw in itertools.chain(*self.copies[:done]):
            memory.data[...] = raw
            self.unfenced.add(memory.root)
        self.copies = self.copies[done:]

    def _tma_load(self, box: Descriptor, coord: Any, barrier: Any, memory: SharedMemory, pred: Any = True) -> None:
        if pred:
            pointer, inside = box.box(coord)
            raw = self._read(pointer, inside.data, np.zeros(box.block_shape, memory.data.dtype))
            memory.data[...] = raw.reshape(memory.shape)

    def do_async_copy_shared_to_global(self, box: Descriptor, coord: Any, memory: SharedMemory) -> None:
        if memory.root in self.unfenced:
            raise MemoryFault("TMA reads shared memory that was stored without fence_async_shared")
        pointer, inside = box.box(coord)
        self._write(pointer, inside.data, memory.data.reshape(box.block_shape))

    def do_make_tensor_descriptor(
        self, base: Tensor, shape: Any, strides: Any, block_shape: Any, layout: Any, padding_option: str = "zero"
    ) -> Descriptor:
        return Descriptor(base, shape, strides, block_shape, layout)

    def do_inline_asm_elementwise(
        self, asm: str, constraints: str, args: Sequence[Any], dtype: Any, is_pure: bool, pack: int
    ) -> Any:
        source = " ".join(asm.split())
        inputs = broadcast_all(*(to_tensor(a) for a in args)) if args else []
        emulate = self.asm.get(source) or _known_ptx(source, len(inputs))
        if emulate is None:
            raise NotImplementedError(f"give run() asm={{...: function of arrays}} for: {source}")
        results = emulate(*(t.data for t in inputs))
        layout = inputs[0].known_layout if inputs else None
        if isinstance(dtype, (tuple, list)):
            return tuple(Tensor(_rounded(np.asarray(r), d), d, layout) for r, d in zip(results, dtype, strict=True))
        return Tensor(_rounded(np.asarray(results), dtype), dtype, layout)

    # --- names

    def translate(self, value: Any) -> Any:
        """What a global, an attribute of a module or a compile-time argument is inside the kernel."""
        if isinstance(value, tl.constexpr):
            return self.translate(value.value)
        if isinstance(value, tuple) and type(value) is tuple:
            return tuple(self.translate(v) for v in value)
        if value in _CLASSES if isinstance(value, type) else False:
            return _CLASSES[value]
        is_jitted = hasattr(value, "fn") and not isinstance(value, ConstexprFunction)
        is_builtin = getattr(value, "__triton_builtin__", False) and not isinstance(value, type)
        if not (isinstance(value, types.ModuleType) or is_jitted or is_builtin):
            return value
        if id(value) not in self.translated:
            self.translated[id(value)] = self._emulate(value, is_jitted)
        return self.translated[id(value)]

    def _emulate(self, value: Any, is_jitted: bool) -> Any:
        if isinstance(value, types.ModuleType):
            return _Module(self, value)
        if is_jitted and not (value.fn.__module__.startswith("triton.") and value.fn.__name__ in self.builtins):
            return _Function(self, value.fn)
        name = value.fn.__name__ if is_jitted else value.__name__
        return self.builtins.get(name) or _Missing(name)

    def argument(self, name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            dtype = tl.dtype(_TORCH_NAMES[value.dtype])
            region = Region(name, value.data_ptr(), value.shape, value.stride(), value.element_size())
            self.regions.append(region)
            return Tensor(np.int64(region.address), tl.pointer_type(dtype), region=region)
        if isinstance(value, TensorDescriptor):
            base = self.argument(name, value.base)
            return Descriptor(base, value.shape, value.strides, value.block_shape, value.layout)
        if isinstance(value, (tuple, list)):
            return tuple(self.argument(f"{name}[{i}]", v) for i, v in enumerate(value))
        return None if value is None else to_tensor(value)


_CLASSES: dict[type, Any] = {
    tl.constexpr: lambda x: x,
    tl.tensor: Tensor,
    tl.static_range: range,
    tl.range: lambda *bounds, **_: _range(*bounds),
    tl.tuple: tuple,
}
_TORCH_NAMES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.bool: "int1",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
}


def _differs(a: Array, b: Array) -> Array:
    return np.asarray((a != b) & ~((a != a) & (b != b)))  # noqa: PLR0124 - NaN is what differs from itself


def _known_ptx(source: str, num_inputs: int) -> Callable[..., Any] | None:
    """One instruction from $1, $2.. to $0, from the table; flush-to-zero is not emulated."""
    operands = r"\s*,\s*".join(rf"\${i}" for i in range(num_inputs + 1))
    match = re.fullmatch(rf"\{{?\s*([\w.]+)\s+{operands}\s*;?\s*\}}?", source)
    return _PTX.get(match[1].replace(".ftz", "")) if match else None


class _Module:
    """A module whose attributes are translated when the kernel names them."""

    def __init__(self, machine: Machine, module: types.ModuleType) -> None:
        self._machine, self._module = machine, module

    def __getattr__(self, name: str) -> Any:
        return self._machine.translate(getattr(self._module, name))


class _Missing:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{self.name} is not emulated; tests/gluon_interpreter.py is where to add it")


class _Function:
    """A device function or kernel with its globals and closure translated when it is first called."""

    def __init__(self, machine: Machine, fn: Any) -> None:
        self.machine, self.fn = machine, fn
        self.signature = inspect.signature(fn)
        self.constexprs = {name for name, p in self.signature.parameters.items() if "constexpr" in str(p.annotation)}
        self.emulated: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self.signature.bind(*args, **kwargs)
        for name in self.constexprs & set(bound.arguments):
            if isinstance(bound.arguments[name], (Tensor, SharedMemory)):
                raise TypeError(f"{self.fn.__name__}: {name} is constexpr, got a value known only on the GPU")
        if self.emulated is None:
            self.emulated = self._build()
        return self.emulated(*args, **kwargs)

    def _build(self) -> Any:
        fn, translate = self.fn, self.machine.translate
        names = _names(fn.__code__)
        scope = {name: translate(value) for name, value in fn.__globals__.items() if name in names}
        scope["__builtins__"] = {**vars(builtins), "range": _range, "min": _least, "max": _greatest, "print": _nothing}
        cells = tuple(types.CellType(translate(cell.cell_contents)) for cell in fn.__closure__ or ())
        defaults = tuple(translate(value) for value in fn.__defaults__ or ())
        emulated = types.FunctionType(fn.__code__, scope, fn.__name__, defaults, cells)
        emulated.__kwdefaults__ = {name: translate(value) for name, value in (fn.__kwdefaults__ or {}).items()}
        return emulated


def _names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*(_names(c) for c in inner))


def _range(*bounds: Any, **_: Any) -> Any:
    """The loop counter is an int32 tensor, as in a compiled loop."""
    return (Tensor(np.int32(i), tl.int32) for i in range(*(int(b) for b in bounds)))


def _least(*values: Any) -> Any:
    return functools.reduce(_PURE["minimum"], values) if _any_tensor(values) else min(*values)


def _greatest(*values: Any) -> Any:
    return functools.reduce(_PURE["maximum"], values) if _any_tensor(values) else max(*values)


def _any_tensor(values: Sequence[Any]) -> bool:
    return any(isinstance(v, Tensor) for v in values)


def run(
    kernel: Any,
    grid: Any,
    *args: Any,
    memory: Sequence[torch.Tensor] = (),
    asm: dict[str, Callable[..., Any]] | None = None,
    check_races: bool = True,
    **kwargs: Any,
) -> None:
    """Launch a Gluon kernel on CPU tensors, program after program; tensors are changed in place.

    Args:
        kernel: what ``@gluon.jit`` returned; grid: tuple of up to three ints, or a function of the arguments' dict.
        memory: tensors that the kernel reaches by other ways than its arguments, as through a table of addresses.
        asm: for inline assembly that is not in the table, its text to a function from arrays to an array or a tuple.
        check_races: refuse two programs of which one changes what the other has read or written.
        kwargs: the kernel's arguments, and launch options, of which only num_warps has an effect.
    Raises:
        MemoryFault: an access that a GPU would not answer for; ValueError, TypeError: what Gluon refuses.
    """
    function = inspect.signature(kernel.fn)
    options = {name: kwargs.pop(name) for name in LAUNCH_OPTIONS - set(function.parameters) if name in kwargs}
    bound = function.bind(*args, **kwargs)
    bound.apply_defaults()
    if callable(grid):
        grid = grid(dict(bound.arguments))
    machine = Machine(tuple(grid), num_warps=options.get("num_warps", 4), asm=asm or {}, check_races=check_races)
    for i, tensor in enumerate(memory):
        machine.argument(f"memory[{i}]", tensor)
        machine.regions[-1].is_extra = True
    emulated = _Function(machine, kernel.fn)
    values = {
        name: machine.translate(value) if name in emulated.constexprs else machine.argument(name, value)
        for name, value in bound.arguments.items()
    }
    with np.errstate(all="ignore"):
        for reversed_pid in np.ndindex(*machine.grid[::-1]):
            machine.start(reversed_pid[::-1])
            emulated(**values)
            machine.finish()


class Emulated:
    """A kernel that host code launches here: ``monkeypatch.setattr(module, "_kernel", Emulated(_kernel))``."""

    def __init__(self, kernel: Any, **options: Any) -> None:
        self.kernel, self.options = kernel, options

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return functools.partial(run, self.kernel, grid, **self.options)
