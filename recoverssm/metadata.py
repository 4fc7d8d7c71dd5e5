"""Which rows of a step are speculative, and where their tokens, requests and states are: built once per step.

Four index spaces meet here, and engines that adopted the method mostly failed by confusing two of them:

- *speculative row*: position in the batch given to verify; records and ``query_start_loc`` go by it.
- *request row*: position in the engine's batch of this step; it changes whenever the batch is reordered.
- *request slot*: a request's place in the engine's arrays, from its arrival to its end.
- *state slot*: index in the pools of checkpoint and conv states.

Nothing here waits for the device: a step is one copy of a few integers per row from pinned memory.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NewType

import torch
from torch import Tensor

from recoverssm.config import RecoverSSMConfig
from recoverssm.errors import ArgumentError, ShapeError, StepError
from recoverssm.staging import Staging, to_device
from recoverssm.types import NULL_SLOT

SpecRow = NewType("SpecRow", int)
RequestRow = NewType("RequestRow", int)
RequestSlot = NewType("RequestSlot", int)
StateSlot = NewType("StateSlot", int)

NO_REQUEST = -1
"""Request row and request slot of a row that pads a CUDA graph; commit leaves such rows alone."""


@dataclass(frozen=True, slots=True)
class RequestBatch:
    """What the scheduler knows of a step, by request row.

    Attributes:
        query_lens: tokens of the row in this step, which lie one row after the other in the flat batch.
        num_drafts: draft tokens among them, -1 where the row is no decode. A decode without drafts has 0.
        is_prefilling: whether the row still computes its prompt.
        state_slots: where its state lies; 0 or less for a row without one.
        request_slots: which request it is.
    """

    query_lens: Sequence[int]
    num_drafts: Sequence[int]
    is_prefilling: Sequence[bool]
    state_slots: Sequence[StateSlot]
    request_slots: Sequence[RequestSlot]

    def spec_rows(self, spec_query_len: int) -> list[RequestRow]:
        """The rows that verify takes: decodes, with drafts or without, of at most T tokens.

        The number of tokens alone cannot tell: the last token of a prompt and a decode without drafts have one each.
        """
        rows = zip(self.query_lens, self.num_drafts, self.is_prefilling, strict=True)
        return [
            RequestRow(row)
            for row, (query_len, num_drafts, is_prefilling) in enumerate(rows)
            if query_len <= spec_query_len and (num_drafts >= 0 or (query_len > 0 and not is_prefilling))
        ]


@dataclass(frozen=True, slots=True, eq=False)
class StepMetadata:
    """One step's speculative batch. Its tensors belong to it until it is committed or discarded.

    N counts the padding rows of a CUDA graph too: null slot, no tokens, no request.

    Attributes:
        step_id: counts the builder's steps from 1; errors name it.
        lane: which records, ``CommitContext`` and captured graphs the step uses, below ``steps_in_flight``.
        state_indices: [N] int32, state slot by speculative row.
        query_start_loc: [N + 1] int32, first token by speculative row, among ``spec_tokens``.
        request_rows, request_slots: [N] int32 by speculative row, -1 where it pads.
        spec_tokens, other_tokens: where their tokens lie in the flat batch: a slice where they are neighbours, else an
            int64 tensor. Both orders are the batch's own.
        spec_request_rows: request row by speculative row, without padding.
        spec_request_slots, spec_state_slots: request slot and state slot likewise.
        spec_query_lens: tokens likewise.
        other_request_rows: rows with tokens that are not speculative, for the engine's prefill.
        other_request_slots, other_state_slots: request slot and state slot of each.
        other_query_start_loc: [others + 1] int32, first token of each, among ``other_tokens``.
        long_request_rows: those of them that are decodes of more than T tokens, as profiling runs make them.
        graph_size: N where the batch was padded to a captured size, else None.
        is_dummy: a capture or warm-up, which is never committed.
    """

    step_id: int
    lane: int
    state_indices: Tensor
    query_start_loc: Tensor
    request_rows: Tensor
    request_slots: Tensor
    spec_tokens: slice | Tensor
    other_tokens: slice | Tensor
    spec_request_rows: tuple[RequestRow, ...]
    spec_request_slots: tuple[RequestSlot, ...]
    spec_state_slots: tuple[StateSlot, ...]
    spec_query_lens: tuple[int, ...]
    other_request_rows: tuple[RequestRow, ...]
    other_request_slots: tuple[RequestSlot, ...]
    other_state_slots: tuple[StateSlot, ...]
    other_query_start_loc: Tensor
    long_request_rows: tuple[RequestRow, ...]
    graph_size: int | None
    is_dummy: bool
    _staging: Staging = field(repr=False)

    @property
    def num_spec_rows(self) -> int:
        """Rows of requests, padding left out."""
        return len(self.spec_request_rows)

    @property
    def num_spec_tokens(self) -> int:
        """Tokens of those rows."""
        return sum(self.spec_query_lens)

    @property
    def owns_staging(self) -> bool:
        """Whether the tensors still hold this step: it is no dummy, and neither committed nor discarded."""
        return self._staging.owner == self.step_id

    def release(self) -> None:
        """Give the staging buffers back; ``RecoverSSMState`` does it once the step is committed or discarded."""
        if self.owns_staging:
            self._staging.owner = None


class MetadataBuilder:
    """Builds the metadata of one cache group's steps, in as many staging buffers as steps are in flight.

    Addresses stay: a graph captured for a lane and a number of rows replays with the metadata of any later step there.

    Args:
        config: sizes and captured batches.
        num_state_slots: P of the pools, null slot included.
        device: of the pools.
    """

    def __init__(self, config: RecoverSSMConfig, *, num_state_slots: int, device: torch.device | str) -> None:
        if num_state_slots < 1:
            raise ShapeError(f"num_state_slots: expected at least 1, the null slot, got {num_state_slots}")
        self._config = config
        self._num_state_slots = num_state_slots
        self._device = torch.device(device)
        self._lanes = [Staging(config.max_num_requests, 4, self._device) for _ in range(config.steps_in_flight)]
        self._no_others = to_device([0], torch.int32, self._device)
        self._last_step = 0

    def build(self, batch: RequestBatch, *, pad: bool = True) -> StepMetadata:
        """Take a free lane, and fill it with the batch's speculative rows in the order of their request rows.

        A batch without other tokens is padded to the next captured size, where there is one and ``pad`` is set.

        Raises:
            ShapeError: lists of different lengths, or more speculative rows than max_num_requests.
            ArgumentError: a negative length, a slot outside the pool, a slot that two rows have.
            StepError: every lane belongs to a step that was neither committed nor discarded.
        """
        self._check(batch)
        spec = batch.spec_rows(self._config.spec_query_len)
        if len(spec) > self._config.max_num_requests:
            raise ShapeError(
                f"batch: expected at most max_num_requests={self._config.max_num_requests} speculative rows, "
                f"got {len(spec)}"
            )
        is_spec = set(spec)
        others = [RequestRow(row) for row, n in enumerate(batch.query_lens) if n > 0 and row not in is_spec]
        graph_size = self._config.graph_size(len(spec)) if pad and not others and spec else None
        return self._fill(self._free_lane(), batch, spec, others, graph_size=graph_size, is_dummy=False)

    def build_dummy(self, num_rows: int, *, query_len: int | None = None, lane: int = 0) -> StepMetadata:
        """Metadata for a capture or a warm-up of ``num_rows`` rows without slots, full windows by default.

        The addresses are those of real steps of as many rows in ``lane``. Windows longer than T are routed out.

        Raises:
            StepError: the lane belongs to a step that was neither committed nor discarded.
        """
        T = self._config.spec_query_len
        query_len = T if query_len is None else query_len
        batch = RequestBatch(
            query_lens=[query_len] * num_rows,
            num_drafts=[max(query_len - 1, 0)] * num_rows,
            is_prefilling=[False] * num_rows,
            state_slots=[StateSlot(NULL_SLOT)] * num_rows,
            request_slots=[RequestSlot(row) for row in range(num_rows)],
        )
        if not 0 <= lane < len(self._lanes):
            raise ArgumentError(f"lane: expected 0 to {len(self._lanes) - 1}, got {lane}")
        if not 0 <= num_rows <= self._config.max_num_requests:
            raise ShapeError(
                f"num_rows: expected 0 to max_num_requests={self._config.max_num_requests}, got {num_rows}"
            )
        self._check(batch)
        if self._lanes[lane].owner is not None:
            raise StepError(f"dummy step: {self._owners()}; commit or discard it first")
        rows = [RequestRow(row) for row in range(num_rows)]
        spec, others = (rows, []) if query_len <= T else ([], rows)
        graph_size = num_rows if num_rows in self._config.cuda_graph_sizes and not others else None
        return self._fill(lane, batch, spec, others, graph_size=graph_size, is_dummy=True)

    def _fill(
        self,
        lane: int,
        batch: RequestBatch,
        spec: list[RequestRow],
        others: list[RequestRow],
        *,
        graph_size: int | None,
        is_dummy: bool,
    ) -> StepMetadata:
        starts = list(accumulate(batch.query_lens, initial=0))
        spec_lens = [batch.query_lens[row] for row in spec]
        num_padding = (graph_size or len(spec)) - len(spec)
        ends = list(accumulate(spec_lens, initial=0))
        indices: list[tuple[int, int]] = [(row, batch.request_slots[row]) for row in spec]
        if is_dummy:
            indices = [(NO_REQUEST, NO_REQUEST)] * len(spec)
        indices += [(NO_REQUEST, NO_REQUEST)] * num_padding
        self._last_step += 1
        staging = self._lanes[lane]
        state_indices, query_start_loc, rows, slots = staging.fill(
            len(indices),
            [*(batch.state_slots[row] for row in spec), *[NULL_SLOT] * num_padding],
            ends + ends[-1:] * num_padding,
            [row for row, _ in indices],
            [slot for _, slot in indices],
        )
        staging.owner = None if is_dummy else self._last_step
        other_starts = list(accumulate((batch.query_lens[row] for row in others), initial=0))
        return StepMetadata(
            step_id=self._last_step,
            lane=lane,
            state_indices=state_indices,
            query_start_loc=query_start_loc,
            request_rows=rows,
            request_slots=slots,
            spec_tokens=self._select(starts, spec),
            other_tokens=self._select(starts, others),
            spec_request_rows=tuple(spec),
            spec_request_slots=tuple(batch.request_slots[row] for row in spec),
            spec_state_slots=tuple(batch.state_slots[row] for row in spec),
            spec_query_lens=tuple(spec_lens),
            other_request_rows=tuple(others),
            other_request_slots=tuple(batch.request_slots[row] for row in others),
            other_state_slots=tuple(batch.state_slots[row] for row in others),
            other_query_start_loc=to_device(other_starts, torch.int32, self._device) if others else self._no_others,
            long_request_rows=tuple(
                row for row in others if batch.num_drafts[row] >= 0 or not batch.is_prefilling[row]
            ),
            graph_size=graph_size,
            is_dummy=is_dummy,
            _staging=staging,
        )

    def _select(self, starts: list[int], rows: list[RequestRow]) -> slice | Tensor:
        """The rows' tokens in the flat batch."""
        if len(rows) == len(starts) - 1:
            return slice(0, starts[-1])
        spans = [(starts[row], starts[row + 1]) for row in rows if starts[row] < starts[row + 1]]
        if not spans:
            return slice(0, 0)
        if all(left[1] == right[0] for left, right in pairwise(spans)):
            return slice(spans[0][0], spans[-1][1])
        tokens = [token for first, end in spans for token in range(first, end)]
        return to_device(tokens, torch.int64, self._device)

    def _free_lane(self) -> int:
        for lane, staging in enumerate(self._lanes):
            if staging.owner is None:
                return lane
        raise StepError(
            f"step {self._last_step + 1}: {self._owners()}; every verify needs its commit_step, or discard_step where "
            "its results were thrown away"
        )

    def _owners(self) -> str:
        steps = [str(staging.owner) for staging in self._lanes if staging.owner is not None]
        return f"step {' and step '.join(steps)} has been neither committed nor discarded"

    def _check(self, batch: RequestBatch) -> None:
        num_rows = len(batch.query_lens)
        for name in ("query_lens", "num_drafts", "is_prefilling", "state_slots", "request_slots"):
            if isinstance(getattr(batch, name), Tensor):
                raise ArgumentError(f"batch.{name}: expected numbers on the host, got a tensor; pass its tolist()")
        for name in ("num_drafts", "is_prefilling", "state_slots", "request_slots"):
            if len(getattr(batch, name)) != num_rows:
                raise ShapeError(
                    f"batch.{name}: expected {num_rows} rows like query_lens, got {len(getattr(batch, name))}"
                )
        if num_rows == 0:
            return
        if min(batch.query_lens) < 0:
            raise ArgumentError(f"batch.query_lens: expected at least 0 tokens, got {min(batch.query_lens)}")
        if max(batch.state_slots) >= self._num_state_slots:
            raise ArgumentError(
                f"batch.state_slots: expected slots below num_state_slots={self._num_state_slots}, "
                f"got {max(batch.state_slots)}"
            )
        if min(batch.request_slots) < 0:
            raise ArgumentError(f"batch.request_slots: expected at least 0, got {min(batch.request_slots)}")
        _check_distinct("batch.request_slots", batch.request_slots)
        _check_distinct("batch.state_slots", [slot for slot in batch.state_slots if slot > NULL_SLOT])


def _check_distinct(name: str, slots: Sequence[int]) -> None:
    if len(set(slots)) != len(slots):
        repeated = next(slot for slot, count in Counter(slots).items() if count > 1)
        raise ArgumentError(f"{name}: expected a slot of its own for every row, got {repeated} twice")
