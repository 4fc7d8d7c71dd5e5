"""Value objects that the ops share. All are frozen; tensors inside them are written in place by the ops."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from recoverssm.errors import ArgumentError, ConfigError, DeviceError, DtypeError, ShapeError, StrideError

NULL_SLOT = 0
"""Slot ids at or below this mean "no slot"."""

MAX_SPEC_QUERY_LEN = 16
"""Longest verify window (1 + draft tokens) the kernels are built for."""

MAX_BLOCK_SIZE = 1 << 20
"""Kernels count tokens in int32, also those up to the end of a block that is not full."""


def check_count(name: str, value: Any, *, least: int) -> None:
    """Raises ConfigError unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name}: expected a whole number, got {value!r}")
    if value < least:
        raise ConfigError(f"{name}: expected at least {least}, got {value}")


def check_block_size(value: Any) -> None:
    """Raises ConfigError unless ``value`` is a number of tokens that a block can have."""
    check_count("block_size", value, least=1)
    if value > MAX_BLOCK_SIZE:
        raise ConfigError(
            f"block_size: expected at most {MAX_BLOCK_SIZE} tokens, got {value}; cache mode 'none' is without blocks"
        )


def check_lower_bound(name: str, value: Any) -> float | None:
    """The bound of a gate as kernels take it. Raises ConfigError unless it is None or a finite negative number."""
    if value is None or (type(value) is float and -math.inf < value < 0):
        return value
    bound = float(value) if isinstance(value, Real) else math.nan  # Triton would compile anew for whole numbers
    if not -math.inf < bound < 0:
        raise ConfigError(
            f"{name}: expected a finite negative number, got {value!r}; for the unbounded gate it is None"
        )
    return bound


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """A card that need not be here: what would be launched on it can be asked, nothing can run.

    Attributes:
        arch: compute capability, 90 for sm_90.
    """

    arch: int
    type: ClassVar[str] = "cuda"

    def __str__(self) -> str:
        return f"sm_{self.arch}"


Device = torch.device | PlannedDevice


@dataclass(frozen=True, slots=True)
class KDAShape:
    """Sizes of one Kimi Delta Attention layer on one rank.

    Attributes:
        num_heads: local heads H (96 / tensor parallel size for Kimi-K3).
        spec_query_len: T = 1 + draft tokens, 1 to 16.
        key_dim: K, channels of q, k and the gate per head.
        value_dim: V, channels of v and the output per head.
        conv_width: taps of the depthwise short convolution.
    """

    num_heads: int
    spec_query_len: int
    key_dim: int = 128
    value_dim: int = 128
    conv_width: int = 4

    def __post_init__(self) -> None:
        for name in ("num_heads", "spec_query_len", "key_dim", "value_dim"):
            check_count(name, getattr(self, name), least=1)
        if self.spec_query_len > MAX_SPEC_QUERY_LEN:
            raise ConfigError(
                f"spec_query_len: expected at most {MAX_SPEC_QUERY_LEN} (1 + draft tokens), got {self.spec_query_len}"
            )
        check_count("conv_width", self.conv_width, least=2)

    @property
    def conv_channels(self) -> int:
        """Channels of the short convolution: q, k and v of every head."""
        return self.num_heads * (2 * self.key_dim + self.value_dim)

    @property
    def conv_history_len(self) -> int:
        """Tokens of raw projections the convolution needs from before a step."""
        return self.conv_width - 1

    @property
    def conv_state_len(self) -> int:
        """Tokens one conv slot holds: the history and the drafts of one window."""
        return self.conv_history_len + self.spec_query_len - 1


@dataclass(frozen=True, slots=True)
class GateParams:
    """Parameters of the KDA gate, of one layer or stacked over layers.

    Attributes:
        A_log: [H] or [L, H] float32; the gate is scaled by exp(A_log).
        dt_bias: [H, K] or [L, H, K] float32, added to the raw gate.
        lower_bound: negative for the bounded form ``lower_bound * sigmoid(exp(A_log) * x)``;
            None for the unbounded form ``-exp(A_log) * softplus(x)``.
    Source: docs/algorithm.md section 1; Kimi-K3 uses lower_bound = -5.
    """

    A_log: Tensor
    dt_bias: Tensor
    lower_bound: float | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower_bound", check_lower_bound("lower_bound", self.lower_bound))


@dataclass(frozen=True, slots=True)
class Records:
    """What verify keeps of a window of one layer, so that commit can rebuild any prefix of it.

    Attributes:
        correction: u, [R, H, C, V] float32, the delta-rule correction after decay and beta.
        key_gate: [R, H, C, 2K] activation dtype; key after conv and SiLU (not normalised), then raw gate.
        by_slot: whether they lie beside the states: entry r then belongs to the row that reads state slot r, R >= P.
            Otherwise to row r of the step's speculative batch, R >= N, or to the row that ``RecordRows`` name.
        history_len: positions of an entry, C = history_len + T, for accepted tokens of earlier steps, which commits
            that are deferred leave in front of the window, which begins right behind those that wait; 0 with commits
            every step, and where they lie by slot.
    """

    correction: Tensor
    key_gate: Tensor
    by_slot: bool = False
    history_len: int = 0

    def __post_init__(self) -> None:
        check_count("history_len", self.history_len, least=0)
        if self.by_slot and self.history_len:
            raise ConfigError(
                f"history_len: expected 0 with records by slot, got {self.history_len}; tokens that wait need entries "
                "of their own, as RecordRows name them"
            )


@dataclass(frozen=True, slots=True)
class RecordRows:
    """Where the rows of a step have their records when commits are deferred; from ``RecoverSSMState.record_step``.

    Attributes:
        written: [N] int32, the entry of each row; -1 for rows without tokens, padding and rows of a dummy step, where
            nothing may be written.
        history_lens: [N] int32, how many accepted tokens at the front of that entry the row's state lacks, 0 for none;
            token t of the window is recorded at position history_lens + t. None where no state lacks any: windows are
            then recorded from the first position on.
    """

    written: Tensor
    history_lens: Tensor | None = None


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """Which prefix each speculative row keeps, and where its state comes from and goes to.

    Attributes:
        commit_lens: [N] int32, accepted tokens a of each row, 0 where there is nothing to do.
        source_slots: [N] int32, slot of the checkpoint that verify read; 0 where commit_lens is 0.
        final_slots: [N] int32, slot that receives the state after commit_lens tokens; 0 likewise.
    """

    commit_lens: Tensor
    source_slots: Tensor
    final_slots: Tensor


def max_boundaries(spec_query_len: int, block_size: int) -> int:
    """Boundaries that a window can cross: of T token counts in a row, at most ceil(T / block_size) end a block."""
    check_block_size(block_size)
    return -(-spec_query_len // block_size)


@dataclass(frozen=True, slots=True)
class AlignInputs:
    """Where the requests of a prefix-caching engine stand, by request row (the rows of num_sampled, not of the batch).

    Attributes:
        num_computed: [B] int32, tokens of each request before the step.
        block_table: [B, C] int32, slot of each block of this group; entries behind the allocated columns are not read.
        block_size: tokens per block of this table, 1 to 2^20: a window may cross several boundaries.
        running_columns: [B] int32, written: the column that holds the state of each request whose row is committed;
            others are left alone. None where the engine does not keep them on the device.
    """

    num_computed: Tensor
    block_table: Tensor
    block_size: int
    running_columns: Tensor | None = None

    def __post_init__(self) -> None:
        check_block_size(self.block_size)
        object.__setattr__(self, "block_size", int(self.block_size))


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Ends of blocks that a commit reaches; the slot of each such block must hold the state exactly there.

    Attributes:
        lens: [N, J] int32, tokens of the window up to the boundary, at most commit_lens, rising along a row; 0 where
            there is none, or where the block has no slot.
        slots: [N, J] int32, slot of the block that ends there; 0 likewise. The last may be the row's final slot:
            then its length is commit_lens, and the final state is the boundary's. No other may be the row's source.
    """

    lens: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True)
class AlignPlan:
    """The commit plan of a prefix-caching engine. Its shapes do not depend on what was accepted.

    Attributes:
        commit: as without align, but that final slots come from the block table.
        boundaries: which states on the way have to be written too, J >= ``max_boundaries`` a row.
        final_columns: [N] int32, block-table column of final_slots, -1 where commit_lens is 0.
    """

    commit: CommitPlan
    boundaries: Boundaries
    final_columns: Tensor

    @classmethod
    def zeros(
        cls, num_rows: int, *, spec_query_len: int, block_size: int, device: torch.device | str | None = None
    ) -> "AlignPlan":
        """A plan for ``num_rows`` rows with room for every boundary, to be filled by ``align_plan``."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        shape = (num_rows, max_boundaries(spec_query_len, block_size))
        rows = CommitPlan(zeros(num_rows), zeros(num_rows), zeros(num_rows))
        return cls(rows, Boundaries(zeros(*shape), zeros(*shape)), zeros(num_rows))

    def front(self, num_rows: int) -> "AlignPlan":
        """The plan of its first rows, in the same memory."""
        commit, boundaries = self.commit, self.boundaries
        rows = (commit.commit_lens, commit.source_slots, commit.final_slots)
        return AlignPlan(
            CommitPlan(*(row[:num_rows] for row in rows)),
            Boundaries(boundaries.lens[:num_rows], boundaries.slots[:num_rows]),
            self.final_columns[:num_rows],
        )


@lru_cache(256)
def _int64_on_device(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Kept, so that the table of layers that had one already copies nothing: it may be made during a capture."""
    return torch.tensor(values, dtype=torch.int64, device=device)


@dataclass(frozen=True, slots=True)
class LayerTable:
    """Where one kind of tensor lies in every layer, so that one launch serves all layers.

    The addresses are raw: the tensors must neither move nor be resized while the table is in use.

    Attributes:
        tensors: one per layer, equal in shape, dtype, device and strides but for the first.
        addresses: [L] int64 on their device.
        slot_strides: [L] int64, elements between entries of the first dimension.
        aligned: every address is a multiple of 16 bytes and every slot stride of 16 elements, as the kernels are told.
    """

    tensors: tuple[Tensor, ...]
    addresses: Tensor
    slot_strides: Tensor
    aligned: bool

    @classmethod
    def of(cls, name: str, tensors: Sequence[Tensor]) -> "LayerTable":
        """Build the table of ``tensors``; ``name`` is what errors call them.

        Raises:
            ShapeError, DtypeError, StrideError, DeviceError: the layers differ, or there are none.
            ArgumentError: two layers are one tensor.
        """
        if not tensors:
            raise ShapeError(f"{name}: expected one tensor per layer, got none")
        first = tensors[0]
        if first.dim() == 0:
            raise ShapeError(f"{name}[0]: expected entries along a first dimension, got a single number")
        for layer, tensor in enumerate(tensors):
            if tensor.shape != first.shape:
                raise ShapeError(
                    f"{name}[{layer}]: expected {list(first.shape)} as in layer 0, got {list(tensor.shape)}"
                )
            if tensor.dtype != first.dtype:
                raise DtypeError(f"{name}[{layer}]: expected {first.dtype} as in layer 0, got {tensor.dtype}")
            if tensor.device != first.device:
                raise DeviceError(f"{name}[{layer}]: expected {first.device} as layer 0, got {tensor.device}")
            if tensor.stride()[1:] != first.stride()[1:]:
                raise StrideError(
                    f"{name}[{layer}]: expected inner strides {first.stride()[1:]} as in layer 0, "
                    f"got {tensor.stride()[1:]}"
                )
        addresses = [tensor.data_ptr() for tensor in tensors]
        layer_at: dict[int, int] = {}
        for layer, address in enumerate(addresses):
            if address and layer_at.setdefault(address, layer) != layer:
                raise ArgumentError(
                    f"{name}[{layer}]: expected memory of its own, got that of layer {layer_at[address]}; "
                    "each layer needs its own tensor"
                )
        strides = [tensor.stride(0) for tensor in tensors]
        aligned = all(a % 16 == 0 for a in addresses) and all(s % 16 == 0 for s in strides)
        return cls(
            tensors=tuple(tensors),
            addresses=_int64_on_device(tuple(addresses), first.device),
            slot_strides=_int64_on_device(tuple(strides), first.device),
            aligned=aligned,
        )

    @property
    def num_layers(self) -> int:
        return len(self.tensors)

    @property
    def element_type(self) -> Tensor:
        """Layer 0's tensor, which tells a kernel the element type."""
        return self.tensors[0]
