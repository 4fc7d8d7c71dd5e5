"""Values of an emulated Gluon kernel: a tensor on NumPy with Triton's types, promotion, rounding and operators."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import triton.language as tl
from triton.experimental.gluon import language as gl

if TYPE_CHECKING:
    from tests.gluon_memory import Region

Array = np.ndarray[Any, Any]
POISON = -999  # what an integer lane holds that the kernel must not look at; floats hold NaN
RAW: dict[str, Any] = {
    "int1": np.int8,
    "bf16": np.uint16,
    "fp16": np.float16,
    "fp32": np.float32,
    "fp64": np.float64,
    **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}").type for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
VALUE: dict[str, Any] = {**RAW, "int1": np.bool_, "bf16": np.float32}
MEMBERS: dict[str, Callable[..., Any]] = {}  # methods of Tensor, entered by gluon_ops.py


class MemoryFault(IndexError):
    """An access outside the arguments of the kernel, or two accesses whose order nothing decides."""


def _round_bf16(x: Array) -> Array:
    """fp32 values rounded to the nearest bf16, ties to even; NaN stays."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), x, rounded.reshape(np.shape(x)))


def decode(raw: Array, dtype: tl.dtype) -> Array:
    if dtype.is_bf16():
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw != 0 if dtype.is_int1() else raw


def encode(value: Array, dtype: tl.dtype) -> Array:
    if dtype.is_bf16():
        return (np.ascontiguousarray(value).view(np.uint32) >> 16).astype(np.uint16).reshape(np.shape(value))
    return value.astype(RAW[dtype.name])


def poison(shape: Sequence[int], dtype: tl.dtype) -> Array:
    kind = np.dtype(VALUE[dtype.name])
    if kind.kind == "f":
        return np.full(shape, np.nan, kind)
    return np.full(shape, max(np.iinfo(kind).min, POISON) if kind.kind == "i" else np.array(-1).astype(kind), kind)


def value_dtype(dtype: tl.dtype) -> Any:
    return np.int64 if dtype.is_ptr() else VALUE[dtype.name]


class Tensor:
    """A block or, without dimensions, a scalar; pointers hold byte addresses and the argument they came from."""

    __array_ufunc__ = None  # NumPy scalars leave the operators to this class

    def __init__(self, data: Any, dtype: tl.dtype, layout: Any = None, region: Region | None = None) -> None:
        self.data: Array = np.asarray(data)
        assert self.data.dtype == value_dtype(dtype), f"{self.data.dtype} values for a tensor of {dtype}"
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
        return Tensor(self.data.T, self.dtype, region=self.region)

    def __getattr__(self, name: str) -> Any:
        if name not in MEMBERS:
            raise AttributeError(f"tensor.{name} is unknown to the emulator")
        return functools.partial(MEMBERS[name], self)

    def __getitem__(self, index: Any) -> Tensor:
        index = index if isinstance(index, tuple) else (index,)
        if any(i is not None and i != slice(None) for i in index):
            raise TypeError(f"a tensor is indexed by None and ':' alone, not {index}")
        return Tensor(self.data[index], self.dtype, parent_layout(self.known_layout), self.region)

    def __neg__(self) -> Tensor:
        return OPERATORS["sub"](0, self)

    def __pos__(self) -> Tensor:
        return self

    def __invert__(self) -> Tensor:
        return Tensor(~self.data, self.dtype, self.known_layout)

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


def parent_layout(layout: Any) -> Any:
    return getattr(layout, "parent", None) if isinstance(layout, gl.SliceLayout) else None


def to_tensor(x: Any) -> Tensor:
    """What Triton makes of a Python number: int32, int64 where it must, fp32, int1."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, (bool, np.bool_)):
        return Tensor(np.bool_(x), tl.int1)
    if isinstance(x, (int, np.integer)):
        dtype = tl.int32 if -(2**31) <= x < 2**31 else tl.int64
        return Tensor(VALUE[dtype.name](x), dtype)
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
        return Tensor(x.data.astype(value_dtype(dtype)), dtype, x.known_layout, region)
    if bitcast:
        raw = np.ascontiguousarray(encode(x.data, x.dtype)).view(RAW[dtype.name]).reshape(x.data.shape)
        return Tensor(decode(raw, dtype), dtype, x.known_layout)
    return Tensor(rounded(x.data, dtype), dtype, x.known_layout)


def rounded(data: Array, dtype: tl.dtype) -> Array:
    if dtype.is_int1():
        return data != 0
    return _round_bf16(data.astype(np.float32)) if dtype.is_bf16() else data.astype(VALUE[dtype.name])


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


def common_dtype(a: Any, b: Any, *, division: bool = False) -> tl.dtype:
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


def binary(op: Callable[[Any, Any], Any], *, division: bool = False, compares: bool = False) -> Callable[..., Tensor]:
    def apply(a: Any, b: Any) -> Tensor:
        for pointer, offset in ((a, b), (b, a)):
            if isinstance(pointer, Tensor) and pointer.dtype.is_ptr() and not compares:
                pointer, offset = broadcast_all(pointer, to_tensor(offset))
                step = offset.data.astype(np.int64) * (pointer.dtype.element_ty.primitive_bitwidth // 8 or 1)
                return Tensor(op(pointer.data, step), pointer.dtype, pointer.known_layout, pointer.region)
        if compares and isinstance(a, Tensor) and a.dtype.is_ptr():
            return Tensor(op(a.data, to_tensor(b).data), tl.int1)
        dtype = common_dtype(a, b, division=division)
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
        if np.any(wide != wide.astype(VALUE[dtype.name])):
            raise OverflowError(f"{op.__name__} of {dtype} leaves its range: {wide.min()}..{wide.max()}")
        return np.asarray(wide.astype(VALUE[dtype.name]))
    return np.asarray(rounded(np.asarray(op(x, y)), dtype))


def _truncated(x: Array, y: Array) -> Array:
    """Division of integers toward zero, as C does it."""
    return np.where(np.sign(x) * np.sign(y) < 0, -(np.abs(x) // np.abs(y)), np.abs(x) // np.abs(y))


OPERATORS: dict[str, Callable[..., Tensor]] = {
    "add": binary(operator.add),
    "sub": binary(operator.sub),
    "mul": binary(operator.mul),
    "truediv": binary(operator.truediv, division=True),
    "floordiv": binary(_truncated, division=True),
    "mod": binary(np.fmod, division=True),
    "and": binary(operator.and_),
    "or": binary(operator.or_),
    "xor": binary(operator.xor),
    "lshift": binary(np.left_shift),
    "rshift": binary(np.right_shift),
    **{name: binary(getattr(operator, name), compares=True) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
}
for _name, _op in OPERATORS.items():
    setattr(Tensor, f"__{_name}__", lambda self, other, op=_op: op(self, other))
    if hasattr(int, f"__r{_name}__"):
        setattr(Tensor, f"__r{_name}__", lambda self, other, op=_op: op(other, self))
