"""Memory of an emulated Gluon kernel: its arguments, views of shared memory, and TMA descriptors."""

from __future__ import annotations

import builtins
import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton.language as tl
from triton._utils import canonicalize_dtype
from triton.experimental.gluon import language as gl

from tests.gluon_ops import convert_layout
from tests.gluon_values import (
    RAW,
    Array,
    MemoryFault,
    Tensor,
    decode,
    encode,
)

if TYPE_CHECKING:
    from tests.gluon_machine import Machine


class Region:
    """The memory of one argument: its bytes, which of them are elements, and which program touched which."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name, self.address, self.itemsize = name, tensor.data_ptr(), tensor.element_size()
        self.dtype, self.is_extra = tl.str_to_ty(canonicalize_dtype(tensor.dtype), None), False
        shape, strides = tuple(tensor.shape), tensor.stride()
        length = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if tensor.numel() else 0
        memory = (ctypes.c_uint8 * (length * self.itemsize)).from_address(self.address) if length else b""
        self.bytes = np.frombuffer(memory, np.uint8)
        self.is_element = np.zeros(length, bool)
        if length:
            np.lib.stride_tricks.as_strided(self.is_element, shape, strides)[...] = True
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

    @property
    def element_ty(self) -> tl.dtype:
        return self.dtype

    @property
    def address(self) -> int:
        return self.data.ctypes.data

    def _view(self, data: Array, dtype: tl.dtype | None = None, layout: Any = None) -> SharedMemory:
        assert np.shares_memory(data, self.data), (
            "this view needs a copy: its elements do not lie in the order asked for"
        )
        return SharedMemory(self.machine, data, dtype or self.dtype, layout or self.layout, self.root)

    def load(self, layout: Any = None) -> Tensor:
        return convert_layout(Tensor(decode(self.data.copy(), self.dtype), self.dtype), layout)

    def store(self, value: Tensor) -> None:
        if value.shape != self.shape or value.dtype != self.dtype:
            raise ValueError(f"store of {value.dtype}{value.shape} to shared {self.dtype}{self.shape}")
        if self.root in self.machine.in_flight:
            raise MemoryFault("a wgmma that nobody waited for still reads this shared memory")
        self.data[...] = encode(value.data, self.dtype)
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

    def reinterpret(self, dtype: tl.dtype, shape: Sequence[int], layout: Any) -> SharedMemory:
        raw = np.dtype(RAW[dtype.name])
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


Copy = tuple[SharedMemory, Array]


class PendingProduct:
    """What an asynchronous wgmma returns: no tensor before warpgroup_mma_wait."""

    def __init__(self, value: Tensor) -> None:
        self.value, self.shape, self.dtype = value, value.shape, value.dtype


class Descriptor:
    """A TMA descriptor: a box of a global tensor, elements outside it read as zero and are not written."""

    def __init__(self, base: Tensor, shape: Any, strides: Any, block_shape: Any, layout: Any) -> None:
        self.base, self.dtype, self.layout = base, base.dtype.element_ty, layout
        self.shape, self.strides, self.block_shape = ([int(n) for n in v] for v in (shape, strides, block_shape))
        self.block_type = tl.block_type(self.dtype, self.block_shape)

    def lanes(self, coord: Sequence[Any]) -> tuple[Tensor, Tensor]:
        index = [
            (int(start) + np.arange(n)).reshape([-1 if d == i else 1 for i in range(len(self.block_shape))])
            for d, (start, n) in enumerate(zip(coord, self.block_shape, strict=True))
        ]
        inside, offset = np.ones(self.block_shape, bool), np.zeros(self.block_shape, np.int64)
        for i, n, stride in zip(index, self.shape, self.strides, strict=True):
            inside, offset = inside & (i >= 0) & (i < n), offset + i * stride
        return self.base + Tensor(offset, tl.int64), Tensor(inside, tl.int1)
