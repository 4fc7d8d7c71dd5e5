"""Bytes of each piece of a KDA layer, how pages hold them, and what a memory budget holds as a result.

Two schemes are compared everywhere: ``full_state`` keeps T = 1 + drafts recurrent states per request, ``recoverssm``
keeps one and 1 KiB of records per token and head. Nothing here touches a device or allocates.

Source: docs/algorithm.md; the page arithmetic is that of vLLM's hybrid cache manager and gives the figures published
with PR 51855 (tests/test_layout.py). Two of its inputs, the blocks of the prefill checkpoint and the layers per block,
are inferred from those figures.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from recoverssm.errors import ConfigError
from recoverssm.models import ModelShape
from recoverssm.types import KDAShape, check_count

Scheme = Literal["full_state", "recoverssm"]
Placement = Literal["page", "scratch"]
CacheMode = Literal["align", "none"]
CommitMode = Literal["every_step", "deferred"]
"""When accepted tokens go into the states: at the end of their step, or once the next window would not fit."""

GIB = 1 << 30
CORRECTION_DTYPE = torch.float32
BLOCK_TOKENS_MULTIPLE = 64
"""Attention blocks are grown in steps of this many tokens, the tile of the MLA kernels."""

PREFILL_CHECKPOINT_BLOCKS = 1
"""Extra KDA block per group that chunked prefill keeps in align mode (inferred, see the module's head)."""


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Bytes of each piece one request keeps in one layer of one rank."""

    conv_state: int
    recurrent_state: int
    correction: int
    key_gate: int

    @property
    def records(self) -> int:
        """Both records of one window of T tokens."""
        return self.correction + self.key_gate

    def page(self, scheme: Scheme, placement: Placement) -> int:
        """One KDA page: conv state and one recurrent state, and the records where pages hold them."""
        _check_choice("scheme", scheme, Scheme)
        _check_choice("placement", placement, Placement)
        held = self.records if scheme == "recoverssm" and placement == "page" else 0
        return self.conv_state + self.recurrent_state + held


def layer_bytes(
    shape: KDAShape, *, state_dtype: torch.dtype = torch.float32, activation_dtype: torch.dtype = torch.bfloat16
) -> LayerBytes:
    """Bytes of the four pieces of one layer: one conv slot, one state slot, one row of each record."""
    head_tokens = shape.num_heads * shape.spec_query_len
    return LayerBytes(
        conv_state=shape.conv_state_len * shape.conv_channels * activation_dtype.itemsize,
        recurrent_state=shape.num_heads * shape.value_dim * shape.key_dim * state_dtype.itemsize,
        correction=head_tokens * shape.value_dim * CORRECTION_DTYPE.itemsize,
        key_gate=head_tokens * 2 * shape.key_dim * activation_dtype.itemsize,
    )


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of the tensors that hold a batch's state over all layers."""

    recurrent_state: int
    conv_state: int
    correction: int
    key_gate: int

    @property
    def records(self) -> int:
        """Both records; 0 under full state."""
        return self.correction + self.key_gate

    @property
    def total(self) -> int:
        """Everything the scheme allocates."""
        return self.recurrent_state + self.conv_state + self.records


def state_bytes(
    shape: KDAShape,
    num_requests: int,
    num_layers: int,
    state_dtype: torch.dtype = torch.float32,
    *,
    scheme: Scheme,
    activation_dtype: torch.dtype = torch.bfloat16,
    num_unowned_slots: int = 0,
    commit: CommitMode = "every_step",
) -> StateBytes:
    """Bytes that these tensors of each layer request, without any padding of an allocator.

    ``recoverssm``: checkpoint_state [P, H, V, K], conv_state [P, conv_state_len, 3HD], correction [R, H, T, V]
    float32, key_gate [R, H, T, 2K]. ``full_state``: state pool [P, H, V, K] with T slots per request, and one
    conv_state slot per request, since one window serves all positions.

    Args:
        num_requests: n. It is R, and the slots in use; slot 0, the null slot, is not among them.
        num_unowned_slots: slots that belong to no request, added to every P: 1 for a pool whose slot 0 exists in
            memory, 0 (the default) for the bytes of the requests alone. Records go by row, so none are added there.
        commit: "deferred" keeps records of 2T tokens a request, C in place of T: what waits, and the next window.
    """
    _check_choice("scheme", scheme, Scheme)
    for name, value in (
        ("num_requests", num_requests),
        ("num_layers", num_layers),
        ("num_unowned_slots", num_unowned_slots),
    ):
        check_count(name, value, least=0)
    per_layer = layer_bytes(shape, state_dtype=state_dtype, activation_dtype=activation_dtype)
    states_per_request = shape.spec_query_len if scheme == "full_state" else 1
    num_windows = num_requests * _windows_per_entry(commit) if scheme == "recoverssm" else 0
    return StateBytes(
        recurrent_state=num_layers
        * (num_requests * states_per_request + num_unowned_slots)
        * per_layer.recurrent_state,
        conv_state=num_layers * (num_requests + num_unowned_slots) * per_layer.conv_state,
        correction=num_layers * num_windows * per_layer.correction,
        key_gate=num_layers * num_windows * per_layer.key_gate,
    )


@dataclass(frozen=True, slots=True)
class PagePlan:
    """How one scheme cuts a budget into blocks.

    Attributes:
        kda_page_bytes: what one KDA page must hold, one layer.
        block_tokens: tokens of an attention block, as asked for, or grown until its rows fill a KDA page; 0 without
            attention layers.
        page_bytes: the page all cache groups share, as asked for, or what a block of rows and a KDA page need.
        blocks_per_request: blocks that one request of max_model_len tokens needs over all groups.
        pool_bytes: the part of the budget that is cut into blocks.
        num_blocks: blocks in the pool, whole ones.
        capacity_tokens: tokens of max_model_len requests the pool holds, block counts not floored.
        whole_block_tokens: the same from ``num_blocks``.
    """

    kda_page_bytes: int
    block_tokens: int
    page_bytes: int
    blocks_per_request: int
    pool_bytes: int
    num_blocks: int
    capacity_tokens: float
    whole_block_tokens: float


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What a budget holds under both schemes; gains in percent of full state.

    Attributes:
        scratch_bytes: records outside pages, max_num_seqs rows over all KDA layers, each twice as long with deferred
            commits; 0 when pages hold them.
        capacity_gain_pct: block counts not floored, scratch not charged: the published definition.
        whole_block_gain_pct: the same with whole blocks.
        net_gain_pct: capacity_gain_pct when scratch is taken out of the same budget.
    """

    full_state: PagePlan
    recoverssm: PagePlan
    scratch_bytes: int
    capacity_gain_pct: float
    whole_block_gain_pct: float
    net_gain_pct: float


def plan_capacity(
    model: ModelShape,
    *,
    tensor_parallel: int,
    draft_tokens: int,
    max_model_len: int,
    budget_bytes: int,
    placement: Placement = "page",
    cache_mode: CacheMode = "align",
    commit: CommitMode = "every_step",
    max_num_seqs: int = 0,
    state_dtype: torch.dtype = torch.float32,
    activation_dtype: torch.dtype = torch.bfloat16,
    attention_itemsize: int = 1,
    block_tokens: int = 0,
    page_bytes: int = 0,
) -> CapacityPlan:
    """Compare how many tokens of max_model_len requests one rank's cache budget holds.

    Args:
        budget_bytes: cache memory of one rank, KDA and attention together.
        placement: records in every KDA page, or in scratch sized by ``max_num_seqs`` rows.
        cache_mode: "align" keeps states at block boundaries for prefix caching; "none" keeps only the running ones.
        commit: "deferred" keeps records of 2T tokens a row, in scratch alone.
        attention_itemsize: bytes of one attention cache element, 1 for FP8.
        block_tokens: of an attention block under both schemes; 0 for as many as each needs.
        page_bytes: of every page under both schemes, padding included; 0 for as many as each needs.
    Raises:
        ConfigError: a size is out of range, a page does not hold what must be in it, the budget holds no block or no
            more than the scratch, or commits are deferred with records in pages.
    """
    _check_choice("placement", placement, Placement)
    check_records_placed(placement, commit)
    _check_choice("cache_mode", cache_mode, CacheMode)
    check_count("max_model_len", max_model_len, least=1)
    check_count("budget_bytes", budget_bytes, least=1)
    counts = {"max_num_seqs": max_num_seqs, "block_tokens": block_tokens, "page_bytes": page_bytes}
    for name, count in counts.items():
        check_count(name, count, least=0)
    shape = model.layer_shape(tensor_parallel=tensor_parallel, draft_tokens=draft_tokens)
    pieces = layer_bytes(shape, state_dtype=state_dtype, activation_dtype=activation_dtype)
    num_windows = max_num_seqs * _windows_per_entry(commit)
    scratch_bytes = num_windows * model.num_kda_layers * pieces.records if placement == "scratch" else 0
    if scratch_bytes >= budget_bytes:
        raise ConfigError(
            f"max_num_seqs: records of {max_num_seqs} rows need {scratch_bytes} bytes of scratch, the whole budget of "
            f"{budget_bytes}; lower max_num_seqs or raise the budget"
        )

    def pages(scheme: Scheme, pool_bytes: int) -> PagePlan:
        return _plan_pages(
            model,
            kda_page_bytes=pieces.page(scheme, placement),
            kda_blocks=_kda_blocks_per_group(scheme, cache_mode, draft_tokens),
            max_model_len=max_model_len,
            pool_bytes=pool_bytes,
            row_bytes=model.attention_row_elements * attention_itemsize if model.num_attention_layers else 0,
            block_tokens=block_tokens,
            page_bytes=page_bytes,
        )

    full_state, recoverssm = pages("full_state", budget_bytes), pages("recoverssm", budget_bytes)
    net = pages("recoverssm", budget_bytes - scratch_bytes)
    return CapacityPlan(
        full_state=full_state,
        recoverssm=recoverssm,
        scratch_bytes=scratch_bytes,
        capacity_gain_pct=_gain_pct(recoverssm.capacity_tokens, full_state.capacity_tokens),
        whole_block_gain_pct=_gain_pct(recoverssm.whole_block_tokens, full_state.whole_block_tokens),
        net_gain_pct=_gain_pct(net.capacity_tokens, full_state.capacity_tokens),
    )


def check_records_placed(placement: Placement, commit: CommitMode) -> None:
    """Raises ConfigError where records cannot lie there."""
    _check_choice("commit", commit, CommitMode)
    if commit == "deferred" and placement == "page":
        raise ConfigError(
            "commit: expected 'every_step' with placement 'page', got 'deferred'; the next window would write over the "
            "records that wait, as a page has room for those of one window: take placement 'scratch'"
        )


def _windows_per_entry(commit: CommitMode) -> int:
    """Windows that fit into an entry of the records: the next one, and with deferred commits what waits before it."""
    _check_choice("commit", commit, CommitMode)
    return 2 if commit == "deferred" else 1


def _kda_blocks_per_group(scheme: Scheme, cache_mode: CacheMode, draft_tokens: int) -> int:
    """Blocks one request holds in one KDA group: full state needs one more for each draft token."""
    running = 1 if cache_mode == "none" else 2 + PREFILL_CHECKPOINT_BLOCKS
    return running + (draft_tokens if scheme == "full_state" else 0)


def _plan_pages(
    model: ModelShape,
    *,
    kda_page_bytes: int,
    kda_blocks: int,
    max_model_len: int,
    pool_bytes: int,
    row_bytes: int,
    block_tokens: int,
    page_bytes: int,
) -> PagePlan:
    block_tokens, page_bytes = _fit_pages(kda_page_bytes, row_bytes, block_tokens, page_bytes)
    # A block is a page of every layer of one group.
    block_bytes = page_bytes * model.group_layers
    attention_blocks = math.ceil(max_model_len / block_tokens) if block_tokens else 0
    blocks_per_request = model.num_attention_groups * attention_blocks + model.num_kda_groups * kda_blocks
    num_blocks = pool_bytes // block_bytes
    if num_blocks == 0:
        raise ConfigError(
            f"budget_bytes: {pool_bytes} bytes hold no block of {block_bytes} bytes "
            f"({model.group_layers} pages of {page_bytes}); raise the budget"
        )
    return PagePlan(
        kda_page_bytes=kda_page_bytes,
        block_tokens=block_tokens,
        page_bytes=page_bytes,
        blocks_per_request=blocks_per_request,
        pool_bytes=pool_bytes,
        num_blocks=num_blocks,
        capacity_tokens=pool_bytes / block_bytes / blocks_per_request * max_model_len,
        whole_block_tokens=num_blocks / blocks_per_request * max_model_len,
    )


def _fit_pages(kda_page_bytes: int, row_bytes: int, block_tokens: int, page_bytes: int) -> tuple[int, int]:
    """Tokens of a block and bytes of a page, those that are 0 chosen; row_bytes is 0 without attention layers."""
    if row_bytes == 0:
        block_tokens = 0
    elif block_tokens == 0:
        step = row_bytes * BLOCK_TOKENS_MULTIPLE
        num_steps = page_bytes // step if page_bytes else math.ceil(kda_page_bytes / step)
        block_tokens = max(num_steps, 1) * BLOCK_TOKENS_MULTIPLE
    needed = max(kda_page_bytes, block_tokens * row_bytes)
    if 0 < page_bytes < needed:
        raise ConfigError(
            f"page_bytes: expected at least {needed}, for a KDA page of {kda_page_bytes} bytes and a block of "
            f"{block_tokens} attention rows of {row_bytes}, got {page_bytes}"
        )
    return block_tokens, page_bytes or needed


def _check_choice(name: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        raise ConfigError(f"{name}: expected {' or '.join(map(repr, get_args(choices)))}, got {value!r}")


def _gain_pct(ours: float, baseline: float) -> float:
    return 100 * (ours / baseline - 1)
