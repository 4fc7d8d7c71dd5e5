"""Compulsory memory traffic and arithmetic of each op, in plain integers; imports only the standard library.

Compulsory means: each byte that the op must fetch is read once and each byte that it must leave behind is written
once, whatever the kernel does. It is the numerator of ``roofline_pct``, so it errs low on purpose:

- ``num_rows`` counts live rows only (slot above null) and ``num_tokens`` the tokens of those rows;
- gate parameters (4 H (K + 1) bytes a layer), query_start_loc and slot ids are left out of every op but
  ``commit_plan`` and ``align_plan``, whose whole traffic they are: under 2 % of the smallest verify;
- FLOPs are those of the state (fused multiply-add = 2); norms, gates and sigmoids, O(K) a token, are left out.

Source: docs/algorithm.md; the figures agree with vLLM PR 51855 and are tested in tests/test_cost.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

RECORD_ITEMSIZE = 4
"""Bytes of one element of the correction record, float32 whatever the state's dtype."""

INDEX_ITEMSIZE = 4
"""Bytes of one slot id, length or token offset: all int32."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call must read and write, in bytes, and the arithmetic it does."""

    read_bytes: int
    write_bytes: int
    flops: int

    @property
    def total_bytes(self) -> int:
        """Read plus written bytes: the traffic a roofline divides by bandwidth."""
        return self.read_bytes + self.write_bytes

    def __add__(self, other: "Cost") -> "Cost":
        """The cost of two calls, one after the other, that share nothing."""
        return Cost(self.read_bytes + other.read_bytes, self.write_bytes + other.write_bytes, self.flops + other.flops)

    def times(self, count: int) -> "Cost":
        """The cost of ``count`` such calls, one per layer for example."""
        return Cost(self.read_bytes * count, self.write_bytes * count, self.flops * count)


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Sizes of one KDA layer on one rank, in elements, and of its elements, in bytes.

    Attributes:
        num_heads: local heads H.
        key_dim: K; value_dim: V; conv_width: taps of the short convolution.
        state_itemsize: 4 for a float32 state, 2 for bfloat16.
        activation_itemsize: of q, k, v, raw gate, raw beta, output, key/gate record and conv state.
    """

    num_heads: int
    key_dim: int = 128
    value_dim: int = 128
    conv_width: int = 4
    state_itemsize: int = 4
    activation_itemsize: int = 2

    @property
    def state_bytes(self) -> int:
        """One recurrent state of all heads, [H, V, K]."""
        return self.num_heads * self.value_dim * self.key_dim * self.state_itemsize

    @property
    def input_bytes(self) -> int:
        """What one token brings: q, k and raw gate [H, K], v [H, V], raw beta [H]."""
        return self.num_heads * (3 * self.key_dim + self.value_dim + 1) * self.activation_itemsize

    @property
    def output_bytes(self) -> int:
        """What one token gets: out [H, V]."""
        return self.num_heads * self.value_dim * self.activation_itemsize

    @property
    def record_bytes(self) -> int:
        """What verify keeps of one token: correction [H, V] float32, key and raw gate [H, 2K]."""
        return self.num_heads * (self.value_dim * RECORD_ITEMSIZE + 2 * self.key_dim * self.activation_itemsize)

    @property
    def conv_history_bytes(self) -> int:
        """One conv history: width - 1 tokens of raw projections of q, k and v."""
        channels = self.num_heads * (2 * self.key_dim + self.value_dim)
        return (self.conv_width - 1) * channels * self.activation_itemsize

    @property
    def recurrence_flops(self) -> int:
        """One token through the recurrence: decay VK, S k 2VK, rank-1 update 2VK, S q 2VK."""
        return 7 * self.num_heads * self.value_dim * self.key_dim

    @property
    def fold_flops(self) -> int:
        """One accepted token folded forwards: decay VK, rank-1 update 2VK (the read of the state is in u)."""
        return 3 * self.num_heads * self.value_dim * self.key_dim

    @property
    def coupling_flops(self) -> int:
        """One recorded token and one token of a window: two products of K channels, two sums of V."""
        return 4 * self.num_heads * (self.key_dim + self.value_dim)


def verify(sizes: LayerSizes, *, num_rows: int, num_tokens: int) -> Cost:
    """One layer: read each checkpoint and token once; write outputs and records, no state."""
    return Cost(
        read_bytes=num_rows * sizes.state_bytes + num_tokens * sizes.input_bytes,
        write_bytes=num_tokens * (sizes.output_bytes + sizes.record_bytes),
        flops=num_tokens * sizes.recurrence_flops,
    )


def verify_history(sizes: LayerSizes, history_lens: Sequence[int], query_lens: Sequence[int]) -> Cost:
    """One layer with deferred commits: what ``verify`` moves, and in come the records of the tokens that wait.

    The state is neither decayed nor written for them: each is coupled with each token of its row's window, with key and
    query 2K each, and its correction goes into value and output, 2V each.

    Args:
        history_lens: tokens that wait, by live row. query_lens: tokens of its window, likewise.
    """
    num_pairs = sum(h * q for h, q in zip(history_lens, query_lens, strict=True))
    history = Cost(
        read_bytes=sum(history_lens) * sizes.record_bytes,
        write_bytes=0,
        flops=num_pairs * sizes.coupling_flops,
    )
    return verify(sizes, num_rows=len(query_lens), num_tokens=sum(query_lens)) + history


def full_state_verify(sizes: LayerSizes, *, num_rows: int, num_tokens: int) -> Cost:
    """One layer of the baseline: read one state a row; write outputs and one whole state a token."""
    return Cost(
        read_bytes=num_rows * sizes.state_bytes + num_tokens * sizes.input_bytes,
        write_bytes=num_tokens * (sizes.output_bytes + sizes.state_bytes),
        flops=num_tokens * sizes.recurrence_flops,
    )


def commit_plan(*, num_rows: int, has_request_indices: bool = False) -> Cost:
    """One step, all layers: sampled counts, starts and slots in; lengths, source and final slots out."""
    num_read = num_rows + (num_rows + 1) + num_rows + (num_rows if has_request_indices else 0)
    return Cost(read_bytes=num_read * INDEX_ITEMSIZE, write_bytes=3 * num_rows * INDEX_ITEMSIZE, flops=0)


def align_plan(commit_lens: Sequence[int], crossed: Sequence[Sequence[int]], *, num_places: int) -> Cost:
    """One step, all layers: what ``commit_plan`` moves, tokens and slots of blocks in, boundaries and columns out.

    Args:
        commit_lens, crossed: as in ``commit``. num_places: boundaries a row that the plan has room for.
    """
    num_rows, (num_live_rows, _) = len(commit_lens), _live(commit_lens)
    num_read = num_rows + num_live_rows + sum(map(len, crossed))
    num_written = num_rows * (1 + 2 * num_places) + num_live_rows
    blocks = Cost(read_bytes=num_read * INDEX_ITEMSIZE, write_bytes=num_written * INDEX_ITEMSIZE, flops=0)
    return commit_plan(num_rows=num_rows) + blocks


def commit_state(sizes: LayerSizes, commit_lens: Sequence[int], crossed: Sequence[Sequence[int]] = ()) -> Cost:
    """One layer: read the checkpoint and the accepted records of each live row, write its final state.

    Rows of length 0 cost nothing. A boundary costs the state that is written there: a fold passes it on its way.
    """
    num_live_rows, num_accepted_tokens = _live(commit_lens)
    num_boundaries = sum(map(len, _before_the_end(commit_lens, crossed)))
    return Cost(
        read_bytes=num_live_rows * sizes.state_bytes + num_accepted_tokens * sizes.record_bytes,
        write_bytes=(num_live_rows + num_boundaries) * sizes.state_bytes,
        flops=num_accepted_tokens * sizes.fold_flops,
    )


def compact_conv(sizes: LayerSizes, commit_lens: Sequence[int], crossed: Sequence[Sequence[int]] = ()) -> Cost:
    """One layer, final slots being the sources: move the history of each row that accepted more than one token.

    After one accepted token the history is already where it belongs, so such a row need not move. Histories of
    boundaries are written elsewhere; what they have in common with the others of their row is read once.
    """
    num_read_tokens = num_histories = 0
    history_len = sizes.conv_width - 1
    for a, lens in zip(commit_lens, _before_the_end(commit_lens, crossed), strict=True):
        moved = {*lens, *([a] if a > 1 else [])}
        num_read_tokens += len({start + i for start in moved for i in range(history_len)})
        num_histories += len(moved)
    return Cost(
        read_bytes=num_read_tokens * sizes.conv_history_bytes // history_len,
        write_bytes=num_histories * sizes.conv_history_bytes,
        flops=0,
    )


def commit(
    sizes: LayerSizes,
    commit_lens: Sequence[int],
    *,
    num_layers: int,
    crossed: Sequence[Sequence[int]] | None = None,
    num_places: int = 1,
) -> Cost:
    """One step: the plan once, then state and conv of all layers.

    Args:
        crossed: in align mode, of each row the lengths at which it reaches the end of a block; None without align.
        num_places: as for ``align_plan``.
    """
    per_layer = commit_state(sizes, commit_lens, crossed or ()) + compact_conv(sizes, commit_lens, crossed or ())
    if crossed is None:
        plan = commit_plan(num_rows=len(commit_lens))
    else:
        plan = align_plan(commit_lens, crossed, num_places=num_places)
    return plan + per_layer.times(num_layers)


def commit_deferred(
    sizes: LayerSizes, commit_lens: Sequence[int], lens_now: Sequence[int] = (), *, num_layers: int
) -> Cost:
    """One step with deferred commits: the plan, who waits, the states of those who do not, and conv of all layers.

    Args:
        lens_now: tokens that each row commits now, those that waited among them; empty where everybody waits.
    """
    num_rows = len(commit_lens)  # the plan, entries and what waits in, lengths of both kinds out
    waits = Cost(read_bytes=5 * num_rows * INDEX_ITEMSIZE, write_bytes=2 * num_rows * INDEX_ITEMSIZE, flops=0)
    per_layer = commit_state(sizes, lens_now) + compact_conv(sizes, commit_lens)
    return commit_plan(num_rows=num_rows) + waits + per_layer.times(num_layers)


def step(sizes: LayerSizes, commit_lens: Sequence[int], *, num_rows: int, num_tokens: int, num_layers: int) -> Cost:
    """One RecoverSSM step: verify of all layers, then commit."""
    verifies = verify(sizes, num_rows=num_rows, num_tokens=num_tokens).times(num_layers)
    return verifies + commit(sizes, commit_lens, num_layers=num_layers)


def full_state_step(sizes: LayerSizes, *, num_rows: int, num_tokens: int, num_layers: int) -> Cost:
    """One step of the baseline: its verifies; picking a state moves an index, not a state."""
    return full_state_verify(sizes, num_rows=num_rows, num_tokens=num_tokens).times(num_layers)


def _before_the_end(commit_lens: Sequence[int], crossed: Sequence[Sequence[int]]) -> list[list[int]]:
    """By row the boundaries before its last token: there is no other state to write at the last one."""
    if not crossed:
        return [[] for _ in commit_lens]
    return [[m for m in lens if m < a] for a, lens in zip(commit_lens, crossed, strict=True)]


def _live(commit_lens: Sequence[int]) -> tuple[int, int]:
    """Rows that keep at least one token, and the tokens they keep."""
    lens = [a for a in commit_lens if a > 0]
    return len(lens), sum(lens)
