"""Which accepted tokens wait in the records, in whose entry, and where the next window of their request is recorded.

With deferred commits a request has one entry of the records while tokens of it wait there or it is in a step. Its slot
holds the state before these tokens; a step records its window behind them, and once another one would not fit, all are
committed together. Entries are given out row by row, from one pool for all lanes: a graph is captured with the
addresses of vectors that name entries, and serves any entry.

The host knows which entry is which request's, the device how many of its tokens wait.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from recoverssm.config import RecoverSSMConfig
from recoverssm.errors import ConfigError, StepError
from recoverssm.metadata import RequestSlot, SpecRow, StateSlot, StepMetadata
from recoverssm.staging import Staging, to_device
from recoverssm.types import NULL_SLOT, RecordRows

NO_ENTRY = -1


class Deferring(Protocol):
    """What commits waiting tokens in all layers: ``CommitContext``, or a stand-in that computes the same."""

    @property
    def device(self) -> torch.device:
        """Where the records lie."""
        ...

    @property
    def num_records(self) -> int:
        """Entries of the records."""
        ...

    def takes_history(self, num_rows: int) -> bool:
        """Whether verify of a batch of so many rows takes what waits as history, as in ``CommitContext``."""
        ...

    def plan_waiting(self, waiting: Tensor, waiting_lens: Tensor, state_indices: Tensor) -> Tensor:
        """How many tokens wait for each row, as in ``CommitContext``."""
        ...

    def commit_waiting(self, waiting: Tensor, waiting_lens: Tensor, state_indices: Tensor) -> None:
        """Commit them, as in ``CommitContext``."""
        ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An entry of the records, the slot whose state lacks its tokens, and the last step that they may be from."""

    entry: int
    state_slot: StateSlot
    step_id: int


@dataclass(frozen=True, slots=True)
class _Written:
    """What a step in flight writes, by row on the host and on the device, and what waits there all the while."""

    entries: list[int]
    rows: RecordRows
    history: dict[RequestSlot, _Waiting]


class WaitingRecords:
    """The pool of entries, and what waits in it. Nothing here waits for the device, but for what debug looks at.

    An entry that a flush, a drop or the end of a step gives back may be the next recorded step's, in whatever lane.
    What was launched with it before must come first: verifies, commits and flushes of all lanes run in the order of
    these calls, on one stream or by events of the engine's.
    """

    def __init__(self, config: RecoverSSMConfig, committers: Sequence[Deferring]) -> None:
        held = min(committer.num_records for committer in committers)
        if held < config.num_record_rows:
            raise ConfigError(
                f"records: expected at least config.num_record_rows={config.num_record_rows} entries, max_num_requests "
                f"for each step in flight, got {held}"
            )
        device = committers[0].device
        self._committers = committers
        self._max_num_rows = config.max_num_requests
        self._debug = config.debug
        self._free = list(range(config.num_record_rows))
        self._of: dict[RequestSlot, _Waiting] = {}  # the longest waiting first
        self._written: dict[int, _Written] = {}
        self._staging = [Staging(config.max_num_requests, 2, device) for _ in committers]
        self._lens = torch.zeros(held, dtype=torch.int32, device=device)

    @property
    def lens(self) -> Tensor:
        """Accepted tokens by entry, [R] int32; right for entries that wait."""
        return self._lens

    @property
    def request_slots(self) -> tuple[RequestSlot, ...]:
        """Requests whose state may lack tokens, the longest waiting first."""
        return tuple(self._of)

    def begin(self, step: StepMetadata) -> RecordRows:
        """Give entries to the rows of a step that have none, and say how many tokens wait in those of the others.

        Who is in the batch but not among the speculative rows is flushed, and so are the longest waiting where entries
        run out, which takes more requests than ``max_num_requests``.
        """
        if self._debug and not step.is_dummy:
            self._check_readers(step)
        rows = {
            slot: row
            for row, (slot, query_len) in enumerate(zip(step.spec_request_slots, step.spec_query_lens, strict=True))
            if query_len > 0 and not step.is_dummy
        }
        in_batch = {*step.spec_request_slots}
        flushed = [slot for slot in step.other_request_slots if slot in self._of] if not step.is_dummy else []
        idle = (slot for slot in self._of if slot not in in_batch and slot not in flushed)
        new = [slot for slot in rows if slot not in self._of]
        while len(self._free) + len(flushed) < len(new):
            flushed.append(next(idle))
        self.flush(flushed)

        written, waiting = ([NO_ENTRY] * step.state_indices.numel() for _ in range(2))
        for slot, entry in zip(new, self._free, strict=False):
            written[rows[slot]] = entry
        history = {slot: self._of[slot] for slot in rows if slot in self._of}
        for slot, held in history.items():
            written[rows[slot]] = waiting[rows[slot]] = held.entry
        given = self._rows(step, written, waiting)
        if not step.is_dummy:  # from here on nothing fails
            is_there = given.history_lens is not None  # else it is committed
            self._written[step.step_id] = _Written(written, given, history if is_there else {})
            self._of = {slot: held for slot, held in self._of.items() if slot not in history}
            self._free = self._free[len(new) :]
        return given

    def _rows(self, step: StepMetadata, written: list[int], waiting: list[int]) -> RecordRows:
        """What verify is told; where it takes no history, that is committed before."""
        committer, num_rows = self._committers[step.lane], len(written)
        there, before = self._staging[step.lane].fill(num_rows, written, waiting)
        if committer.takes_history(num_rows):
            return RecordRows(there, committer.plan_waiting(before, self._lens, step.state_indices))
        if any(entry != NO_ENTRY for entry in waiting):
            committer.commit_waiting(before, self._lens, step.state_indices)
        return RecordRows(there)

    def rows_of(self, step: StepMetadata) -> RecordRows:
        """What the verifies of a step in flight were told."""
        return self._written[step.step_id].rows

    def commit(self, step: StepMetadata, rows: Mapping[RequestSlot, SpecRow]) -> None:
        """From here on what the step has made of the entries of these requests waits there; others give theirs back."""
        entries = self._written[step.step_id].entries
        kept = {
            slot: _Waiting(entries[row], step.spec_state_slots[row], step.step_id)
            for slot, row in rows.items()
            if entries[row] != NO_ENTRY
        }
        self._end(step, kept)

    def discard(self, step: StepMetadata, rows: Iterable[RequestSlot]) -> None:
        """Forget what a step has written; what waited before it goes on waiting for those of its requests that live."""
        if step.step_id in self._written:
            history = self._written[step.step_id].history
            self._end(step, {slot: history[slot] for slot in rows if slot in history})

    def _end(self, step: StepMetadata, kept: Mapping[RequestSlot, _Waiting]) -> None:
        """Take back what a step has written, but for the entries that are kept. Not before: its commit reads them."""
        self._of |= kept
        entries = {*self._written.pop(step.step_id).entries} - {held.entry for held in kept.values()} - {NO_ENTRY}
        self._free += sorted(entries)

    def drop(self, request_slot: RequestSlot) -> None:
        """Nobody needs what waits for this request any more; where a step has its entry, that keeps it to its end."""
        if request_slot in self._of:
            self._free.append(self._of.pop(request_slot).entry)

    def flush(self, request_slots: Iterable[RequestSlot]) -> None:
        """Commit what waits for these requests; for those without anything there is nothing to do."""
        slots = list(dict.fromkeys(slot for slot in request_slots if slot in self._of))
        for first in range(0, len(slots), self._max_num_rows):
            some = slots[first : first + self._max_num_rows]
            columns = [self._of[slot].entry for slot in some], [self._of[slot].state_slot for slot in some]
            waiting, state_slots = (to_device(column, torch.int32, self._lens.device) for column in columns)
            self._committers[0].commit_waiting(waiting, self._lens, state_slots)
            self._free += [self._of.pop(slot).entry for slot in some]

    def check_flushed(self) -> None:
        """Raises StepError, naming slots and steps, where tokens may wait."""
        if self._of:
            found = ", ".join(f"{w.state_slot} (request slot {slot}, step {w.step_id})" for slot, w in self._of.items())
            raise StepError(f"commit missing: accepted tokens wait for state slot {found}; call flush() first")

    def _check_readers(self, step: StepMetadata) -> None:
        """Wait for the device and look for slots of the step whose states lack tokens that verify will not add."""
        others = zip(step.other_request_slots, step.other_state_slots, strict=True)
        spec = zip(step.spec_request_slots, step.spec_state_slots, step.spec_query_lens, strict=True)
        reads = dict(others) | {slot: state_slot for slot, state_slot, query_len in spec if query_len > 0}
        readers = {state_slot: slot for slot, state_slot in reads.items() if state_slot > NULL_SLOT}
        lens = None
        for slot, waiting in self._of.items():
            reader = readers.get(waiting.state_slot, slot)
            has_moved = reads.get(slot, waiting.state_slot) != waiting.state_slot
            if reader == slot and not has_moved:
                continue
            lens = self._lens.tolist() if lens is None else lens
            if lens[waiting.entry] > 0:
                what = f"request slot {reader} reads it" if reader != slot else f"it reads state slot {reads[slot]}"
                raise StepError(
                    f"step {step.step_id} cannot be recorded: {lens[waiting.entry]} accepted tokens wait after "
                    f"step {waiting.step_id} for state slot {waiting.state_slot} of request slot {slot}, and now "
                    f"{what}; call flush([{slot}]) before the state is read or moved, or drop_request({slot}) if "
                    "nobody needs it"
                )
