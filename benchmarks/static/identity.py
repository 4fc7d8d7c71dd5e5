"""What two commits must agree in for an op to be the same work on a card: then a difference of its times is chance.

The binaries (code and constants), every argument of every launch in order, and what else the op asks torch for.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from recoverssm.triton_compat import KernelLaunch

from ..providers import Series
from ..providers.bare import launches_of


@dataclass(slots=True)
class OpFacts:
    """One op of one case: compulsory bytes of a call, and what all its calls launch, by name of the kernel's job."""

    read_bytes: int
    write_bytes: int
    launches: list[tuple[str, Any]] = field(default_factory=list)
    torch_ops: list[str] = field(default_factory=list)

    def fingerprint(self, binary_hashes: Mapping[str, str | None]) -> str | None:
        """Equal where nothing that a card sees differs; None where a kernel does not compile."""
        hashes = [binary_hashes[job] for job, _ in self.launches]
        if None in hashes:
            return None
        parts = [hashes, [arguments for _, arguments in self.launches], self.torch_ops]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class _TorchOps(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def launches_and_torch_ops(series: Series) -> tuple[list[list[tuple[KernelLaunch, Sequence[Tensor]]]], list[str]]:
    """The launches of each call of a series, and the names of all torch operations that they made beside those."""
    with _TorchOps() as seen:
        launches = [launches_of(call) for call in series.calls]
    return launches, seen.names


def arguments_of(launch: KernelLaunch, tensors: Sequence[Tensor]) -> Any:
    """All of a launch but its kernel and the addresses."""
    shapes = [[str(tensor.dtype), list(tensor.shape), list(tensor.stride())] for tensor in tensors]
    return [list(launch.grid), list(launch.scalars), sorted(launch.constants.items()), shapes]
