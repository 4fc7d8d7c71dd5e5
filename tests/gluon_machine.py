"""The machine under an emulated Gluon kernel: which program runs, its loads and stores, and what it has in flight."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tests.gluon_memory import Copy, Descriptor, PendingProduct, Region, SharedMemory
from tests.gluon_ops import BUILTINS, check_product, known_ptx, product_of
from tests.gluon_values import (
    RAW,
    Array,
    MemoryFault,
    Tensor,
    broadcast_all,
    cast,
    decode,
    encode,
    poison,
    rounded,
    to_tensor,
)

VECTOR_LOAD = re.compile(r"ld\.global(\.L[12]::\w+)*\.v4\.b32 \{\$0, \$1, \$2, \$3\}, \[\$4\];")


class Machine:
    """Global memory, the program that runs, and what it has in flight."""

    def __init__(
        self,
        grid: tuple[int, ...],
        *,
        num_warps: int,
        asm: dict[str, Any],
        check_races: bool,
        read_early: Collection[str] | None,
    ) -> None:
        self.grid, self.num_warps, self.check_races = (*grid, 1, 1)[:3], num_warps, check_races
        self.read_early = read_early  # arguments that may be read before gdc_wait; None: launched without PDL
        self.asm = {" ".join(source.split()): emulate for source, emulate in asm.items()}
        self.regions: list[Region] = []
        self.roots = itertools.count()
        self.builtins = BUILTINS | {
            name.removeprefix("do_"): getattr(self, name) for name in dir(self) if name.startswith("do_")
        }
        self.start((0, 0, 0))

    def start(self, pid: tuple[int, ...]) -> None:
        self.pid = pid
        self.number = int(np.ravel_multi_index(pid, self.grid))
        self.has_waited = self.read_early is None
        self.unfenced: set[int] = set()
        self.in_flight: list[int] = []
        self.products: list[list[int]] = []
        self.copies: list[list[Copy]] = [[]]  # groups of cp.async, the last one open
        self.awaited: dict[int, list[Copy]] = {}  # copies that end at the barrier of this address

    def finish(self) -> None:
        if any(self.copies) or any(self.awaited.values()):
            raise MemoryFault("the program ends with asynchronous copies that nobody waited for")
        if not self.has_waited:
            raise MemoryFault(
                f"program {self.pid} ends without gdc_wait: who waits for it has not waited for those before"
            )

    def do_gdc_launch_dependents(self) -> None:
        """A hint; what runs beside this kernel is not emulated."""

    def do_gdc_wait(self) -> None:
        self.has_waited = True

    def _touch(self, region: Region, deed: str, allowed: Collection[str]) -> None:
        if not self.has_waited and region.name not in allowed:
            raise MemoryFault(f"program {self.pid} {deed} {region.name} before gdc_wait")

    def do_program_id(self, axis: int) -> Tensor:
        return Tensor(np.int32(self.pid[axis]), tl.int32)

    def do_num_programs(self, axis: int) -> Tensor:
        return Tensor(np.int32(self.grid[axis]), tl.int32)

    def do_num_warps(self) -> int:
        return self.num_warps

    def do_num_ctas(self) -> int:
        return 1

    def argument(self, name: str, value: Any) -> Any:
        """A launch argument as the kernel sees it; tensors become regions."""
        if isinstance(value, torch.Tensor):
            region = Region(name, value)
            self.regions.append(region)
            return Tensor(np.int64(region.address), tl.pointer_type(region.dtype), region=region)
        if isinstance(value, TensorDescriptor):
            base = self.argument(name, value.base)
            return Descriptor(base, value.shape, value.strides, value.block_shape, value.layout)
        if isinstance(value, (tuple, list)):
            return tuple(self.argument(f"{name}[{i}]", v) for i, v in enumerate(value))
        return None if value is None else to_tensor(value)

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
        itemsize = np.dtype(RAW[pointer.dtype.element_ty.name]).itemsize
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
            self._touch(region, "reads", self.read_early or ())
            index = region.indices(pointer.data[lanes], result.itemsize)
            result[lanes] = region.elements(result.dtype.type)[index]
            if self.check_races:
                region.note_read(index, result.itemsize, self.number)
        return result

    def _write(self, pointer: Tensor, mask: Array, raw: Array, *, atomic: bool = False) -> None:
        for region, lanes in self._locate(pointer, mask):
            self._touch(region, "writes", ())
            index, values = region.indices(pointer.data[lanes], raw.itemsize), raw[lanes]
            memory = region.elements(raw.dtype.type)
            if self.check_races and not atomic:
                region.note_write(index, raw.itemsize, self.number, differs(memory[index], values))
            memory[index] = values
            if differs(memory[index], values).any():
                raise MemoryFault(f"program {self.pid}: lanes of one store put different values into {region.name}")

    def do_load(self, pointer: Tensor, mask: Any = None, other: Any = None, **_: Any) -> Tensor:
        assert mask is not None or other is None, "`other` cannot be provided without `mask`"
        dtype = pointer.dtype.element_ty
        others = [] if other is None else [cast(other, dtype)]
        pointer, lanes, others = self._lanes(pointer, mask, *others)
        result = encode(others[0].data if others else poison(pointer.shape, dtype), dtype)
        return Tensor(decode(self._read(pointer, lanes, np.array(result)), dtype), dtype, pointer.known_layout)

    def _load_vectors(self, pointer: Tensor, pack: int) -> Tensor:
        """16 bytes from the first of every ``pack`` pointers in a row."""
        groups = pointer.data.reshape(-1, pack)
        itemsize = pointer.dtype.element_ty.primitive_bitwidth // 8
        if pack * itemsize != 16 or (groups != groups[:, :1] + np.arange(pack) * itemsize).any():
            raise MemoryFault(f"a load of 16 bytes: expected {16 // itemsize} pointers to items side by side a thread")
        if (groups[:, 0] % 16).any():
            raise MemoryFault("a load of 16 bytes does not begin at a multiple of 16 bytes")
        return self.do_load(pointer)

    def do_store(self, pointer: Tensor, value: Any, mask: Any = None, **_: Any) -> None:
        shape, dtype = pointer.shape, pointer.dtype.element_ty
        pointer, lanes, (value,) = self._lanes(pointer, mask, cast(value, dtype))
        if pointer.shape != shape:
            raise ValueError(f"expected pointer argument to have shape {pointer.shape} but got {shape}")
        self._write(pointer, lanes, encode(value.data, dtype))

    def _atomic(self, pointer: Tensor, value: Any, mask: Any, op: Callable[[Any, Any], Any]) -> Tensor:
        """Lanes one after another, in logical order."""
        dtype = pointer.dtype.element_ty
        pointer, lanes, (value,) = self._lanes(pointer, mask, cast(value, dtype))
        old = poison(pointer.shape, dtype)
        for lane in zip(*np.nonzero(lanes), strict=True) if pointer.data.ndim else [()] * bool(lanes):
            one = Tensor(pointer.data[lane], pointer.dtype, region=pointer.region)
            raw = self._read(one, np.array(True), np.zeros((), RAW[dtype.name]))
            old[lane] = decode(raw, dtype)
            new = np.asarray(op(old[lane], value.data[lane]), old.dtype)
            self._write(one, np.array(True), encode(new, dtype), atomic=True)
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

    def do_allocate_shared_memory(self, dtype: tl.dtype, shape: Any, layout: Any, value: Any = None) -> SharedMemory:
        memory = SharedMemory(self, encode(poison(shape, dtype), dtype), dtype, layout, next(self.roots))
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
        check_product(a, b, old)
        (rows, columns), depth_bytes = old.shape, a.shape[-1] * a.dtype.primitive_bitwidth // 8
        if rows % 64 or columns % 8 or depth_bytes % 32:
            raise ValueError(f"wgmma takes M of 64, N of 8, K of 32 bytes; got {a.shape} and {b.shape} of {a.dtype}")
        shape = getattr(old.known_layout, "instr_shape", None)
        if shape is not None and shape[2] * a.dtype.primitive_bitwidth != 256:
            raise ValueError(f"instr_shape {shape}: a wgmma takes 32 bytes of K at a time, here of {a.dtype}")
        roots = [operand.root for operand in (a, b) if isinstance(operand, SharedMemory)]
        if not isinstance(b, SharedMemory) or self.unfenced & set(roots):
            raise MemoryFault("operand b of a wgmma lies in shared memory, with fence_async_shared after its store")
        left, right = (v.load().data if isinstance(v, SharedMemory) else v.data for v in (a, b))
        product = product_of(left, right, a.dtype, None if precision == "ieee" else precision)
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
        copy = self._tma_copy if isinstance(args[0], Descriptor) else self._cp_async
        copy(*args, **kwargs)

    def _cp_async(self, memory: SharedMemory, pointer: Tensor, mask: Any = None, **_: Any) -> None:
        shape, dtype = pointer.shape, pointer.dtype.element_ty
        pointer, lanes, _others = self._lanes(pointer, mask)
        if not memory.shape == shape == pointer.shape or memory.dtype != dtype:
            raise ValueError(f"copy of {dtype}{pointer.shape} to shared {memory.dtype}{memory.shape}")
        self.copies[-1].append((memory, self._read(pointer, lanes, np.zeros(pointer.shape, memory.data.dtype))))
        memory.data[...] = encode(poison(shape, dtype), dtype)

    do_async_load = _cp_async  # from Triton 3.9 on
    do_reinterpret = do__reinterpret = staticmethod(SharedMemory.reinterpret)

    def do_commit_group(self) -> None:
        self.copies.append([])

    def do_wait_group(self, num_outstanding: int = 0) -> None:
        done = max(len(self.copies) - 1 - num_outstanding, 0)
        for memory, raw in itertools.chain(*self.copies[:done]):
            memory.data[...] = raw
            self.unfenced.add(memory.root)
        self.copies = self.copies[done:]

    def do_mbarrier_arrive(self, barrier: SharedMemory, increment_count: bool = True) -> None:
        self.awaited.setdefault(barrier.address, []).extend(itertools.chain(*self.copies))
        self.copies = [[]]

    def _tma_copy(self, box: Descriptor, coord: Any, barrier: Any, memory: SharedMemory, pred: Any = True) -> None:
        if pred:
            pointer, inside = box.lanes(coord)
            raw = self._read(pointer, inside.data, np.zeros(box.block_shape, memory.data.dtype))
            self.awaited.setdefault(barrier.address, []).append((memory, raw.reshape(memory.shape)))
            memory.data[...] = encode(poison(memory.shape, memory.dtype), memory.dtype)

    def do_wait(self, barrier: SharedMemory, phase: Any, pred: Any = True, deps: Any = ()) -> None:
        """mbarrier.wait: its copies are there; counts and phases are not followed."""
        for memory, raw in self.awaited.pop(barrier.address, ()) if pred else ():
            memory.data[...] = raw

    def do_async_copy_shared_to_global(self, box: Descriptor, coord: Any, memory: SharedMemory) -> None:
        if memory.root in self.unfenced:
            raise MemoryFault("TMA reads shared memory that was stored without fence_async_shared")
        pointer, inside = box.lanes(coord)
        self._write(pointer, inside.data, memory.data.reshape(box.block_shape))

    def do_make_tensor_descriptor(
        self, base: Tensor, shape: Any, strides: Any, block_shape: Any, layout: Any, padding_option: str = "zero"
    ) -> Descriptor:
        return Descriptor(base, shape, strides, block_shape, layout)

    def do_inline_asm_elementwise(
        self, asm: str, constraints: str, args: Sequence[Any], dtype: Any, is_pure: bool, pack: int
    ) -> Any:
        source = " ".join(asm.split())
        if VECTOR_LOAD.fullmatch(source):
            return self._load_vectors(args[0], pack)
        inputs = broadcast_all(*(to_tensor(a) for a in args)) if args else []
        emulate = self.asm.get(source) or known_ptx(source, len(inputs))
        if emulate is None:
            raise NotImplementedError(f"give run() asm={{...: function of arrays}} for: {source}")
        results = emulate(*(t.data for t in inputs))
        layout = inputs[0].known_layout if inputs else None
        if isinstance(dtype, (tuple, list)):
            return tuple(Tensor(rounded(np.asarray(r), d), d, layout) for r, d in zip(results, dtype, strict=True))
        return Tensor(rounded(np.asarray(results), dtype), dtype, layout)


def differs(a: Array, b: Array) -> Array:
    return np.asarray((a != b) & ~((a != a) & (b != b)))  # noqa: PLR0124 - NaN is what differs from itself
