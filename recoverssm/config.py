"""RecoverSSMConfig: every option of an engine in one place; what cannot work is refused when it is constructed.

A refusal says why, and names what works instead, so that nothing runs with an option that is silently ignored.
"""

from dataclasses import dataclass, fields
from numbers import Integral
from typing import get_args

import torch

from recoverssm.errors import ConfigError
from recoverssm.layout import CacheMode, CommitMode, Placement, check_records_placed
from recoverssm.pages import ConvLayout, PageLayout
from recoverssm.types import MAX_SPEC_QUERY_LEN, KDAShape, check_block_size, check_count, check_lower_bound

STATE_DTYPES = (torch.float32, torch.bfloat16)
ACTIVATION_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MIN_HEAD_DIM = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverSSMConfig:
    """Options of RecoverSSM on one rank; constructing it checks each of them and their combination.

    Attributes:
        num_heads: KDA heads of the model, before tensor parallelism.
        draft_tokens: most tokens a drafter proposes per request and step, 0 to 15; T is one more. 0 works, but keeps
            records that a plain decode does not need.
        max_num_requests: rows of the largest speculative batch; records have as many rows for each step in flight.
        key_dim, value_dim: K and V, powers of two of at least 16. conv_width: taps of the short convolution.
        state_dtype: of checkpoint states, float32 or bfloat16.
        activation_dtype: of q, k, v, raw gate and beta, and of the key and gate record.
        gate_lower_bound: negative for the bounded gate (Kimi-K3: -5), None for the unbounded one.
        cache_mode: "none" keeps the running state of a request; "align" also the states at block ends.
        block_size: tokens of a block, 1 to 2^20; goes with "align" alone.
        placement: records in "scratch", by speculative row (by ``RecordRows`` with deferred commits), or in each slot's
            "page" (``page_layout``).
        conv_layout: "SD", a conv slot is [conv_state_len, 3HD], or "DS", it is [3HD, conv_state_len].
        commit: "every_step", or "deferred": accepted tokens wait in the records, where verify takes them as history of
            the state that it reads, until the next window would not fit behind them; ``RecoverSSMState.flush`` for
            whoever else reads it. Small batches commit before a verify, so that last bits may depend on the batch. Not
            with placement "page".
        tensor_parallel, pipeline_parallel: ranks. micro_batches: parts of a batch that are verified before the first
            of them is committed, each a step. With p stages and m parts p x m steps are in flight, each with staging
            buffers, a ``CommitContext`` and, in scratch with commits every step, records of its own.
        cuda_graph_sizes: *rows* of the batches that are captured; such a graph has rows x T tokens. Kept sorted.
        debug: look at what the device holds, at the price of waiting for it: ``RecoverSSMState`` does so; ``verify``
            and ``CommitContext`` take it as an argument.
    Raises:
        ConfigError: which option, why, and what works instead.
    Source: docs/integrating.md section 2.
    """

    num_heads: int
    draft_tokens: int
    max_num_requests: int
    key_dim: int = 128
    value_dim: int = 128
    conv_width: int = 4
    state_dtype: torch.dtype = torch.float32
    activation_dtype: torch.dtype = torch.bfloat16
    gate_lower_bound: float | None = -5.0
    cache_mode: CacheMode = "none"
    block_size: int | None = None
    placement: Placement = "scratch"
    conv_layout: ConvLayout = "SD"
    commit: CommitMode = "every_step"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    micro_batches: int = 1
    cuda_graph_sizes: tuple[int, ...] = ()
    debug: bool = False

    def __post_init__(self) -> None:
        _check_counts(self)
        _check_numbers(self)
        _check_cache(self)
        object.__setattr__(self, "cuda_graph_sizes", tuple(sorted({int(size) for size in self.cuda_graph_sizes})))
        object.__setattr__(self, "gate_lower_bound", check_lower_bound("gate_lower_bound", self.gate_lower_bound))
        for name in (field.name for field in fields(self) if field.name != "debug"):
            value = getattr(self, name)
            if isinstance(value, Integral):
                object.__setattr__(self, name, int(value))  # NumPy's, for example, are none of Triton's constants

    @property
    def spec_query_len(self) -> int:
        """T, the longest window."""
        return 1 + self.draft_tokens

    @property
    def layer_shape(self) -> KDAShape:
        """Sizes of one KDA layer on this rank."""
        return KDAShape(
            num_heads=self.num_heads // self.tensor_parallel,
            spec_query_len=self.spec_query_len,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            conv_width=self.conv_width,
        )

    def page_layout(self, page_bytes: int = 0) -> PageLayout:
        """Where the pieces of a slot lie in its page of ``page_bytes``; 0: the fewest that hold them.

        Raises:
            ConfigError: as ``PageLayout``.
        """
        return PageLayout(
            shape=self.layer_shape,
            state_dtype=self.state_dtype,
            activation_dtype=self.activation_dtype,
            placement=self.placement,
            conv_layout=self.conv_layout,
            page_bytes=page_bytes,
        )

    @property
    def steps_in_flight(self) -> int:
        """Steps that may be verified before the first of them is committed."""
        return self.pipeline_parallel * self.micro_batches

    @property
    def num_record_rows(self) -> int:
        """Entries of records by row: of each lane, or of all lanes together when commits are deferred."""
        return self.max_num_requests * (self.steps_in_flight if self.commit == "deferred" else 1)

    @property
    def history_len(self) -> int:
        """Tokens that may wait in an entry of the records, before those of a window; 0 unless commits are deferred."""
        return self.spec_query_len if self.commit == "deferred" else 0

    def graph_size(self, num_rows: int) -> int | None:
        """Rows of the smallest captured batch that holds ``num_rows``, None where none does."""
        return next((size for size in self.cuda_graph_sizes if size >= num_rows), None)


def _check_counts(config: RecoverSSMConfig) -> None:
    for name in ("num_heads", "max_num_requests", "tensor_parallel", "pipeline_parallel", "micro_batches"):
        check_count(name, getattr(config, name), least=1)
    check_count("draft_tokens", config.draft_tokens, least=0)
    if config.draft_tokens >= MAX_SPEC_QUERY_LEN:
        raise ConfigError(
            f"draft_tokens: expected 0 to {MAX_SPEC_QUERY_LEN - 1}, got {config.draft_tokens}; kernels are built for "
            f"windows of up to {MAX_SPEC_QUERY_LEN} tokens, so draft less"
        )
    if config.num_heads % config.tensor_parallel:
        raise ConfigError(
            f"tensor_parallel: expected a divisor of the {config.num_heads} heads, got {config.tensor_parallel}; a "
            "head's state is not split over ranks"
        )
    if not isinstance(config.cuda_graph_sizes, tuple | list):
        raise ConfigError(f"cuda_graph_sizes: expected a tuple of numbers of rows, got {config.cuda_graph_sizes!r}")
    for size in config.cuda_graph_sizes:
        check_count("cuda_graph_sizes", size, least=1)
        if size > config.max_num_requests:
            raise ConfigError(
                f"cuda_graph_sizes: expected at most max_num_requests={config.max_num_requests} rows, got {size}; "
                f"sizes count rows, not tokens: a graph of s tokens has s / {config.spec_query_len} rows"
            )


def _check_numbers(config: RecoverSSMConfig) -> None:
    for name in ("key_dim", "value_dim"):
        size = getattr(config, name)
        check_count(name, size, least=1)
        if size < MIN_HEAD_DIM or size & (size - 1):
            raise ConfigError(f"{name}: expected a power of two of at least {MIN_HEAD_DIM}, got {size}")
    check_count("conv_width", config.conv_width, least=2)
    if config.state_dtype not in STATE_DTYPES:
        raise ConfigError(
            f"state_dtype: expected float32 or bfloat16, got {_name(config.state_dtype)}; kernels hold states in "
            "no other type, and stochastic rounding of float16 states is not offered: take bfloat16 for 16 bits"
        )
    if config.activation_dtype not in ACTIVATION_DTYPES:
        raise ConfigError(
            f"activation_dtype: expected bfloat16, float16 or float32, got {_name(config.activation_dtype)}; records "
            "keep key and gate as verify saw them"
        )


def _check_cache(config: RecoverSSMConfig) -> None:
    if config.cache_mode not in get_args(CacheMode):
        raise ConfigError(
            f"cache_mode: expected 'none' or 'align', got {config.cache_mode!r}; a state at every block of a window is "
            "what RecoverSSM does without"
        )
    if config.placement not in get_args(Placement):
        raise ConfigError(f"placement: expected 'scratch' or 'page', got {config.placement!r}")
    check_records_placed(config.placement, config.commit)
    if config.conv_layout not in get_args(ConvLayout):
        raise ConfigError(f"conv_layout: expected 'SD' or 'DS', got {config.conv_layout!r}")
    if config.cache_mode == "align":
        if config.block_size is None:
            raise ConfigError(
                f"block_size: expected at least 1 token with cache_mode 'align', got {config.block_size}; it is the "
                "block of the KDA cache group, not the smallest of all groups"
            )
        check_block_size(config.block_size)
    elif config.block_size is not None:
        raise ConfigError(
            f"block_size: expected None with cache_mode 'none', which has no blocks, got {config.block_size}"
        )


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else repr(dtype)
