"""Which accepted tokens wait in the records for the next verify of their request, and who may write which entry.

With deferred commits a step's tokens go into the state by the request's next verify. Until then its slot holds the
state before them, and the entry of the records that has them must not be written. Entries are given out row by row,
from one pool for all lanes: a graph is captured with the addresses of vectors that name entries, and serves any entry.

The host knows which entry waits for which request, the device how many of its tokens were accepted.
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

    def folds(self, num_rows: int) -> bool:
        """Whether verify of a batch of so many rows folds what waits, as in ``CommitContext``."""
        ...

    def plan_waiting(self, waiting: Tensor, waiting_lens: Tensor, state_indices: Tensor) -> Tensor:
        """How many tokens wait for each row, as in ``CommitContext``."""
        ...

    def commit_waiting(self, waiting: Tensor, waiting_lens: Tensor, state_indices: Tensor) -> None:
        """Commit them, as in ``CommitContext``."""
        ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An entry of the records, the slot whose state lacks its tokens, and the step that they are from."""

    entry: int
    state_slot: StateSlot
    step_id: int


@dataclass(frozen=True, slots=True)
class _Written:
    """What a step in flight writes: by row on the host, and on the device."""

    entries: list[int]
    rows: RecordRows


class WaitingRecords:
    """The pool of entries, and what waits in it. Nothing here waits for the device, but for what debug looks at."""

    def __init__(self, config: RecoverSSMConfig, committers: Sequence[Deferring]) -> None:
        held = min(committer.num_records for committer in committers)
        if held < config.num_record_rows:
            raise ConfigError(
                f"records: expected at least config.num_record_rows={config.num_record_rows} entries, max_num_requests "
                f"for each step in flight and as many that wait, got {held}"
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
        """Give entries to the rows of a step, and see that what waits for them gets into their states.

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
        while len(self._free) + len(flushed) < len(rows):
            flushed.append(next(idle))
        self.flush(flushed)

        written, waiting = ([NO_ENTRY] * step.state_indices.numel() for _ in range(2))
        for entry, (slot, row) in zip(self._free, rows.items(), strict=False):
            written[row] = entry
            if slot in self._of:
                waiting[row] = self._of[slot].entry
        given = self._rows(step, written, waiting)
        read = [self._of.pop(slot).entry for slot in rows if slot in self._of]  # before any later verify writes
        self._free = self._free[len(rows) :] + read
        if not step.is_dummy:
            self._written[step.step_id] = _Written(written, given)
        return given

    def _rows(self, step: StepMetadata, written: list[int], waiting: list[int]) -> RecordRows:
        """What verify is told; where it does not fold, the commit comes before it."""
        committer, num_rows = self._committers[step.lane], len(written)
        there, before = self._staging[step.lane].fill(num_rows, written, waiting)
        if committer.folds(num_rows):
            return RecordRows(there, before, committer.plan_waiting(before, self._lens, step.state_indices))
        if any(entry != NO_ENTRY for entry in waiting):
            committer.commit_waiting(before, self._lens, step.state_indices)
        return RecordRows(there)

    def written_by(self, step: StepMetadata) -> Tensor:
        """Entries of a step in flight by row, [N] int32."""
        return self._written[step.step_id].rows.written

    def commit(self, step: StepMetadata, rows: Mapping[RequestSlot, SpecRow]) -> None:
        """From here on what a step has written waits for these of its requests."""
        written = self._written.pop(step.step_id).entries
        for slot, row in rows.items():
            if written[row] != NO_ENTRY:
                self._of[slot] = _Waiting(written[row], step.spec_state_slots[row], step.step_id)
        kept = {written[row] for row in rows.values()}
        self._free += [entry for entry in written if entry not in kept | {NO_ENTRY}]

    def discard(self, step: StepMetadata) -> None:
        """Take back what a step has written."""
        if step.step_id in self._written:
            self._free += [entry for entry in self._written.pop(step.step_id).entries if entry != NO_ENTRY]

    def drop(self, request_slot: RequestSlot) -> None:
        """Nobody needs the state of this request any more."""
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
                    f"step {step.step_id} cannot be recorded: {lens[waiting.entry]} accepted tokens of step "
                    f"{waiting.step_id} wait for state slot {waiting.state_slot} of request slot {slot}, and now "
                    f"{what}; call flush([{slot}]) before the state is read or moved, or drop_request({slot}) if "
                    "nobody needs it"
                )
