"""What a provider is: an implementation of the ops, prepared case by case on memory of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from recoverssm import cost
from recoverssm.dispatch import device_of
from recoverssm.launch import device_arch

from .. import inputs
from ..cases import BenchCase
from ..checks import Checklist
from ..harness.clock import no_garbage_collection
from ..harness.cold_cache import num_rotations
from ..harness.records import Contract

Call = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Series:
    """What is timed of one op.

    Attributes:
        calls: one op call each; the state and records of a call were last touched 2x L2 of traffic before.
        cost: compulsory traffic of one call.
        num_kernels: that one call launches; None where nobody says.
        num_programs: of the launch that moves nearly all bytes of a call; None where no single one does.
        restore: gives the memory that calls write and read again the values it had before the first; None where
            calls find what they expect without it.
    """

    op: str
    contract: Contract
    calls: tuple[Call, ...]
    cost: cost.Cost
    num_kernels: int | None = 1
    num_programs: int | None = None
    restore: Call | None = None


class Prepared(Protocol):
    """One provider's memory and calls for one case."""

    def check(self, checklist: Checklist) -> None:
        """Compare with the float64 reference on the memory that will be timed, and leave it fit for timing."""

    def series(self) -> list[Series]:
        """What to time, in any order."""

    def num_non_finite(self) -> int:
        """Elements of outputs and states that are NaN or infinite."""


class Provider(Protocol):
    """An implementation of the ops."""

    @property
    def name(self) -> str:
        """As in series keys."""

    @property
    def series_names(self) -> tuple[tuple[str, Contract], ...]:
        """Op and contract of every series it has, in the order of its pages."""

    def needed_bytes(self, case: BenchCase, l2_bytes: int) -> int:
        """Device memory that ``prepare`` and ``check`` take together, from above."""

    def prepare(self, case: BenchCase, device: torch.device, seed: int, l2_bytes: int) -> Prepared:
        """Allocate and fill; ``l2_bytes`` of 0 asks for no rotation."""


class OwnProvider(Provider, Protocol):
    """One of this library."""

    def cache_bytes(self, case: BenchCase) -> int:
        """Exact bytes that the case's requests hold over all layers; null slots are nobody's."""


def layer_sizes(case: BenchCase) -> cost.LayerSizes:
    """A layer of the case as the cost model wants it."""
    return cost.LayerSizes(
        num_heads=case.shape.num_heads,
        key_dim=case.shape.key_dim,
        value_dim=case.shape.value_dim,
        conv_width=case.shape.conv_width,
        state_itemsize=inputs.STATE_DTYPES[case.state_dtype].itemsize,
        activation_itemsize=inputs.ACTIVATION_DTYPE.itemsize,
    )


def activation_bytes(case: BenchCase) -> int:
    """Inputs and outputs of one step, twice over: the checks hold a copy."""
    sizes = layer_sizes(case)
    return 2 * case.num_requests * case.shape.spec_query_len * (sizes.input_bytes + sizes.output_bytes)


def card_arch(device: torch.device) -> int:
    """Compute capability of the card, 90 for sm_90, or of the one that is planned for; 0 on the CPU."""
    return device_arch(device_of(torch.empty(0, device=device)))


def rotations(bytes_per_set: int, l2_bytes: int) -> int:
    """Sets of memory to rotate through; 1 where there is no L2 to outrun."""
    return num_rotations(bytes_per_set, l2_bytes) if l2_bytes else 1


def requested_bytes(device: torch.device, build: Callable[[], Sequence[Tensor]]) -> tuple[Sequence[Tensor], int]:
    """Build tensors and count the bytes they made the allocator request; on the CPU, the bytes of their storages."""
    if device.type != "cuda":
        tensors = build()
        storages = {
            storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in tensors)
        }
        return tensors, sum(storages.values())
    with no_garbage_collection():  # it would free what others left, and take it off
        before = _requested_now(device)
        tensors = build()
        return tensors, _requested_now(device) - before


def _requested_now(device: torch.device) -> int:
    return int(torch.cuda.memory_stats(device)["requested_bytes.all.current"])


def ragged_query_start_loc(query_start_loc: Tensor) -> Tensor:
    """The same windows, the last one a token shorter."""
    shorter = query_start_loc.clone()
    shorter[-1] -= 1
    return shorter
