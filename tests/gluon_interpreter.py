"""Runs a ``@gluon.jit`` kernel on CPU tensors as plain Python, since Gluon has no interpreter of its own.

The kernel's function is called once per program, with every Gluon builtin that it or its device functions name replaced
by one of NumPy. Arithmetic has Triton's types and rounds where they do (fp32 in float32, bf16 to nearest even, operands
of tf32 products cut to 10 bits). Caught: addresses outside the arguments, two programs or two lanes at odds about one
element, int32 overflow, a wgmma operand without its fence or overwritten in flight, a cp.async read before its wait, a
programmatic dependent launch that touches memory of the kernel before too early, or never waits for it.
Masked-off lanes and fresh shared memory hold NaN or -999. Layouts are accepted, not obeyed: what depends on them
(legality, speed, order of sums) only the compiler and a GPU can tell. Programs run one after another.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import types
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.jit import ConstexprFunction

from tests.gluon_machine import Machine
from tests.gluon_memory import SharedMemory
from tests.gluon_ops import BUILTINS, nothing
from tests.gluon_values import MemoryFault, Tensor

__all__ = ["Emulated", "MemoryFault", "run"]

LAUNCH_OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl", "launch_cooperative_grid", "debug"}
LAUNCH_OPTIONS |= {"enable_fp_fusion"}


class _Names:
    """What the names in a kernel stand for while it is emulated."""

    def __init__(self, builtins_: dict[str, Callable[..., Any]]) -> None:
        self.builtins = builtins_
        self.translated: dict[int, Any] = {}

    def translate(self, value: Any) -> Any:
        """What a global, an attribute of a module or a compile-time argument is inside the kernel."""
        if isinstance(value, tl.constexpr):
            return self.translate(value.value)
        if isinstance(value, tuple) and type(value) is tuple:
            return tuple(self.translate(v) for v in value)
        if isinstance(value, type):
            return _CLASSES.get(value, value)
        is_jitted = hasattr(value, "fn") and not isinstance(value, ConstexprFunction)
        if not (is_jitted or isinstance(value, types.ModuleType) or getattr(value, "__triton_builtin__", False)):
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


class _Module:
    """A module whose attributes are translated when the kernel names them."""

    def __init__(self, names: _Names, module: types.ModuleType) -> None:
        self._names, self._module = names, module

    def __getattr__(self, name: str) -> Any:
        return self._names.translate(getattr(self._module, name))


class _Missing:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{self.name} is not emulated; tests/gluon_interpreter.py is where to add it")


class _Function:
    """A device function or kernel with its globals and closure translated when it is first called."""

    def __init__(self, names: _Names, fn: Any) -> None:
        self.names, self.fn = names, fn
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
        fn, translate = self.fn, self.names.translate
        used = _used_names(fn.__code__)
        scope = {name: translate(value) for name, value in fn.__globals__.items() if name in used}
        scope["__builtins__"] = {**vars(builtins), "range": _range, "min": _least, "max": _greatest, "print": nothing}
        cells = tuple(types.CellType(translate(cell.cell_contents)) for cell in fn.__closure__ or ())
        defaults = tuple(translate(value) for value in fn.__defaults__ or ())
        emulated = types.FunctionType(fn.__code__, scope, fn.__name__, defaults, cells)
        emulated.__kwdefaults__ = {name: translate(value) for name, value in (fn.__kwdefaults__ or {}).items()}
        return emulated


def _used_names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*(_used_names(c) for c in inner))


def _range(*bounds: Any, **_: Any) -> Any:
    """The loop counter is an int32 tensor, as in a compiled loop."""
    return (Tensor(np.int32(i), tl.int32) for i in range(*(int(b) for b in bounds)))


def _least(*values: Any) -> Any:
    return functools.reduce(BUILTINS["minimum"], values) if _any_tensor(values) else min(*values)


def _greatest(*values: Any) -> Any:
    return functools.reduce(BUILTINS["maximum"], values) if _any_tensor(values) else max(*values)


def _any_tensor(values: Sequence[Any]) -> bool:
    return any(isinstance(v, Tensor) for v in values)


_CLASSES: dict[type, Any] = {
    tl.constexpr: lambda x: x,
    tl.tensor: Tensor,
    tl.static_range: range,
    tl.range: _range,
    tl.tuple: tuple,
}


def run(
    kernel: Any,
    grid: Any,
    *args: Any,
    memory: Sequence[torch.Tensor] = (),
    asm: dict[str, Callable[..., Any]] | None = None,
    check_races: bool = True,
    read_early: Collection[str] = (),
    **kwargs: Any,
) -> None:
    """Launch a Gluon kernel on CPU tensors, program after program; tensors are changed in place.

    Args:
        kernel: what ``@gluon.jit`` returned; grid: tuple of up to three ints, or a function of the arguments' dict.
        memory: tensors that the kernel reaches by other ways than its arguments, as through a table of addresses.
        asm: for inline assembly that is not in the table, its text to a function from arrays to an array or a tuple.
        check_races: refuse two programs of which one changes what the other has read or written.
        read_early: arguments that a launch with launch_pdl may read before gdc_wait; it writes none before, and every
            program waits.
        kwargs: the kernel's arguments, and launch options, of which only num_warps and launch_pdl have an effect.
    Raises:
        MemoryFault: an access that a GPU would not answer for; ValueError, TypeError: what Gluon refuses.
    """
    function = inspect.signature(kernel.fn)
    options = {name: kwargs.pop(name) for name in LAUNCH_OPTIONS - set(function.parameters) if name in kwargs}
    bound = function.bind(*args, **kwargs)
    bound.apply_defaults()
    if callable(grid):
        grid = grid(dict(bound.arguments))
    machine = Machine(
        tuple(grid),
        num_warps=options.get("num_warps", 4),
        asm=asm or {},
        check_races=check_races,
        read_early=read_early if options.get("launch_pdl") else None,
    )
    for i, tensor in enumerate(memory):
        machine.argument(f"memory[{i}]", tensor)
        machine.regions[-1].is_extra = True
    names = _Names(machine.builtins)
    emulated = _Function(names, kernel.fn)
    values = {
        name: names.translate(value) if name in emulated.constexprs else machine.argument(name, value)
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
