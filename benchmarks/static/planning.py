"""Which kernels the cases of a set launch on an architecture: as the ops themselves choose them, without any memory."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from linecache import getline
from typing import Any

import torch
from torch import Tensor

from recoverssm.dispatch import ALIGNMENT, planned_for
from recoverssm.triton_compat import KernelLaunch

from ..cases import BenchCase
from ..providers import PROVIDERS, Series, deferred_providers
from .identity import OpFacts, arguments_of, launches_and_torch_ops
from .lines import inside_package

CONTRACT = "graph-cold"  # its series launch whatever the others launch
MAX_DECORATOR_LINES = 8  # above a kernel's def

_POINTERS = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "i64",
    torch.int32: "i32",
}


@dataclass(slots=True)
class Job:
    """One kernel to compile, with arguments that make Triton specialise it as a launch would.

    Attributes:
        specialisation: of each argument, what the compiler is told: "*bf16:16" is a pointer that is a multiple of 16,
            "i32:1" an integer that is 1, "i32:16" one that is a multiple of 16.
        launched_by: "provider/op" of every series that launches it; cases: of their names.
    """

    arch: str
    launch: KernelLaunch
    tensors: Sequence[Tensor]
    specialisation: str
    launched_by: set[str] = field(default_factory=set)
    cases: list[str] = field(default_factory=list)

    @property
    def kernel(self) -> str:
        """The kernel's name without what all names share."""
        kernel = self.launch.kernel
        return str(getattr(kernel, "fn", kernel).__name__).removeprefix("_").removesuffix("_kernel")

    @property
    def source(self) -> str:
        """Where the kernel is defined: "recoverssm/kernels/conv.py:21"."""
        code = self.launch.kernel.fn.__code__
        decorators = range(code.co_firstlineno, code.co_firstlineno + MAX_DECORATOR_LINES)
        line = next((line for line in decorators if getline(code.co_filename, line).startswith("def ")), decorators[0])
        return f"{inside_package(code.co_filename)}:{line}"

    @property
    def constants(self) -> Mapping[str, Any]:
        return dict(sorted(self.launch.constants.items()))

    @property
    def name(self) -> str:
        """What tells it from all others, on one architecture."""
        constants = " ".join(f"{name}={value}" for name, value in self.constants.items())
        return f"{self.kernel} {constants} ({self.specialisation})"

    @property
    def id(self) -> str:
        """Short for ``name``; the same on every architecture."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:10]


@dataclass(frozen=True, slots=True)
class Plan:
    """Jobs by architecture, then kernel; how many kernels one call of a series launches, and what else is known of it.

    Both mappings are by architecture, "provider/op" and case.
    """

    jobs: tuple[Job, ...]
    num_launches: Mapping[str, Mapping[str, Mapping[str, int]]]
    ops: Mapping[str, Mapping[str, Mapping[str, OpFacts]]]


def plan(cases: Sequence[BenchCase], archs: Sequence[str]) -> Plan:
    """What every case launches on every architecture ("sm_90")."""
    jobs: dict[tuple[str, str], Job] = {}
    num_launches: dict[str, dict[str, dict[str, int]]] = {}
    ops: dict[str, dict[str, dict[str, OpFacts]]] = {}
    for arch in archs:
        counts, facts_of = num_launches.setdefault(arch, {}), ops.setdefault(arch, {})
        with planned_for(arch_number(arch)):
            for case in cases:
                for name, series in compiled_series(case, torch.device("meta")):
                    calls, torch_ops = launches_and_torch_ops(series)
                    counts.setdefault(name, {})[case.name] = len(calls[-1])
                    facts = OpFacts(series.cost.read_bytes, series.cost.write_bytes, torch_ops=torch_ops)
                    facts_of.setdefault(name, {})[case.name] = facts
                    for launch, tensors in (one for call in calls for one in call):
                        job = Job(arch, launch, tensors, specialise(launch, tensors))
                        job = jobs.setdefault((arch, job.name), job)
                        facts.launches.append((job.name, arguments_of(launch, tensors)))
                        job.launched_by.add(name)
                        if job.cases[-1:] != [case.name]:
                            job.cases.append(case.name)
    order = {arch: number for number, arch in enumerate(archs)}
    return Plan(tuple(sorted(jobs.values(), key=lambda job: (order[job.arch], job.name))), num_launches, ops)


def arch_number(arch: str) -> int:
    """Compute capability of "sm_90": 90."""
    return int(arch.removeprefix("sm_"))


def specialise(launch: KernelLaunch, tensors: Sequence[Tensor]) -> str:
    """What Triton's launch would tell the compiler of each argument."""
    pointers = [
        f"*{_POINTERS[tensor.dtype]}" + (":16" if tensor.data_ptr() % ALIGNMENT == 0 else "") for tensor in tensors
    ]
    return " ".join([*pointers, *(_scalar(scalar) for scalar in launch.scalars if scalar is not None)])


def _scalar(value: float) -> str:
    if isinstance(value, float):
        return "fp32"
    kind = "i32" if -(2**31) <= value < 2**31 else "i64"
    if value == 1:
        return f"{kind}:1"
    return f"{kind}:16" if value % ALIGNMENT == 0 else kind


def compiled_series(case: BenchCase, device: torch.device) -> list[tuple[str, Series]]:
    """Every series that is compiled for, by "provider/op", on a card or on none; its calls differ where layers do.

    Of what few cases are measured with besides ``PROVIDERS``, the verify with history: other code than all of theirs.
    """
    return [
        (f"{provider.name}/{series.op}", series)
        for provider in (*PROVIDERS, *deferred_providers(case, device)[:1])
        for series in provider.prepare(case, device, 0, 0).series()
        if series.contract == CONTRACT and (provider in PROVIDERS or series.op == "verify")
    ]
