"""What one slot of a KDA layer holds, as one page of a cache pool, and the tensors that such pages are to the ops.

The pieces lie one behind the other: conv window, recurrent state and, where pages hold the records, correction, key and
gate. Engines pad pages to what their other caches need; every op takes the distance of pages as a stride.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from recoverssm.errors import ConfigError, DtypeError, ShapeError, StrideError
from recoverssm.layout import CORRECTION_DTYPE, Placement
from recoverssm.types import KDAShape, Records, check_count

ConvLayout = Literal["SD", "DS"]
"""Order of a conv slot: token-major [conv_state_len, 3HD], or channel-major [3HD, conv_state_len]."""

PIECE_MULTIPLE = 16
"""Bytes: kernels move as many at a time."""

PAGE_MULTIPLE = 64
"""Bytes: then strides are multiples of 16 elements of any piece, which is what the fast kernels are compiled for."""

ITEM_MULTIPLE = 4
"""Bytes of the largest element."""


class Piece(NamedTuple):
    """One tensor's part of a page: its first byte there, and what it is."""

    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class PageViews(NamedTuple):
    """The pages of one layer as the ops take them: the engine's memory by piece, each a storage of its own to torch.

    Attributes:
        checkpoint_state: [P, H, V, K] state dtype.
        conv_state: [P, conv_state_len, 3HD] activation dtype, whichever its layout in memory.
        records: by slot, R = P; None where pages hold none.
    """

    checkpoint_state: Tensor
    conv_state: Tensor
    records: Records | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLayout:
    """Where the pieces of a slot lie in its page; from ``RecoverSSMConfig.page_layout``.

    Attributes:
        page_bytes: of a page, padding included. 0, the default, becomes the fewest that hold the pieces and are a
            multiple of 64. Other multiples of 4 work, by loads of fewer bytes and thus slower.
        pieces: in the order they lie.
        used_bytes: up to the end of the last one.
    Raises:
        ConfigError: page_bytes do not hold the pieces, or are no multiple of 4.
    """

    shape: KDAShape
    state_dtype: torch.dtype
    activation_dtype: torch.dtype
    placement: Placement
    conv_layout: ConvLayout
    page_bytes: int = 0

    def __post_init__(self) -> None:
        check_count("page_bytes", self.page_bytes, least=0)
        if self.page_bytes == 0:
            object.__setattr__(self, "page_bytes", _round_up(self.used_bytes, PAGE_MULTIPLE))
        if self.page_bytes < self.used_bytes:
            held = ", ".join(f"{piece.name} {piece.num_bytes}" for piece in self.pieces)
            raise ConfigError(
                f"page_bytes: expected at least {self.used_bytes} ({held}), got {self.page_bytes}; "
                "placement 'scratch' takes the records out of pages"
            )
        if self.page_bytes % ITEM_MULTIPLE:
            raise ConfigError(
                f"page_bytes: expected a multiple of {ITEM_MULTIPLE}, the bytes of an element, got {self.page_bytes}; "
                f"multiples of {PAGE_MULTIPLE} are fastest"
            )

    @property
    def pieces(self) -> tuple[Piece, ...]:
        shape = self.shape
        H, T, K, V = shape.num_heads, shape.spec_query_len, shape.key_dim, shape.value_dim
        window = (shape.conv_state_len, shape.conv_channels)
        parts = [
            ("conv_state", window if self.conv_layout == "SD" else window[::-1], self.activation_dtype),
            ("recurrent_state", (H, V, K), self.state_dtype),
        ]
        if self.placement == "page":
            parts += [
                ("correction", (H, T, V), CORRECTION_DTYPE),
                ("key_gate", (H, T, 2 * K), self.activation_dtype),
            ]
        pieces, end = [], 0
        for part in parts:
            name, size, dtype = part
            pieces.append(Piece(name, _round_up(end, PIECE_MULTIPLE), size, dtype))
            end = pieces[-1].offset + pieces[-1].num_bytes
        return tuple(pieces)

    @property
    def used_bytes(self) -> int:
        last = self.pieces[-1]
        return last.offset + last.num_bytes

    def views(self, pages: Tensor) -> PageViews:
        """The pages of one layer as tensors; nothing is copied or allocated.

        Args:
            pages: [P, page_bytes] of one-byte elements, slot 0 the null slot. Their distance is free, so that
                ``pool[:, layer]`` of a pool [P, L, page_bytes] is one layer's pages.
        Raises:
            ShapeError, DtypeError: pages of another size or type.
            StrideError: bytes that are not contiguous, or a distance or an address that is no multiple of 4.
        """
        if pages.dim() != 2 or pages.shape[1] != self.page_bytes:
            raise ShapeError(f"pages: expected [P, page_bytes={self.page_bytes}], got {list(pages.shape)}")
        if pages.dtype.itemsize != 1:
            raise DtypeError(f"pages: expected one-byte elements, as int8 or uint8 are, got {pages.dtype}")
        if pages.stride(1) != 1:
            raise StrideError(f"pages: expected the bytes of a page to be contiguous, got strides {pages.stride()}")
        for what, number in (("distance", pages.stride(0)), ("address", pages.data_ptr())):
            if number % ITEM_MULTIPLE:
                raise StrideError(
                    f"pages: expected {what} to be a multiple of {ITEM_MULTIPLE} bytes, got {number}; "
                    f"multiples of {PAGE_MULTIPLE} are fastest"
                )
        found = {
            piece.name: _apart(pages[:, piece.offset : piece.offset + piece.num_bytes].view(piece.dtype), piece.shape)
            for piece in self.pieces
        }
        conv_state = found["conv_state"]
        return PageViews(
            checkpoint_state=found["recurrent_state"],
            conv_state=conv_state if self.conv_layout == "SD" else conv_state.transpose(1, 2),
            records=Records(found["correction"], found["key_gate"], by_slot=True) if "correction" in found else None,
        )


def _apart(pages: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Elements [P, n] as [P, *shape], the same memory behind a storage of its own.

    Torch compiles no writes to one storage by views of two dtypes.
    """
    memory = pages if pages.device.type == "meta" else from_dlpack(pages)
    inner = torch.empty(shape, device="meta").stride()
    return memory.as_strided((pages.shape[0], *shape), (pages.stride(0), *inner))  # DLPack may forget that of one page


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
