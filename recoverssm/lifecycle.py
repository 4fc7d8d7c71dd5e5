"""RecoverSSMState: every verified step is committed exactly once, whatever happens to its requests in between."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from torch import Tensor

from recoverssm.checks import INT32, check_row_vector, check_tensor
from recoverssm.config import RecoverSSMConfig
from recoverssm.dispatch import describe
from recoverssm.errors import ArgumentError, ShapeError, StepError
from recoverssm.lanes import check_committers
from recoverssm.metadata import RequestSlot, SpecRow, StepMetadata
from recoverssm.reference.columns import block_column
from recoverssm.types import NULL_SLOT, AlignInputs, CommitPlan, RecordRows
from recoverssm.waiting import WaitingRecords

MAX_REMEMBERED = 64
"""Finished steps whose end an error can still tell."""


@dataclass(frozen=True, slots=True)
class SampledByRow:
    """Sampled tokens per request, bonus token included, [request rows] int32, in the order the step was built in."""

    num_sampled: Tensor


@dataclass(frozen=True, slots=True)
class SampledBySlot:
    """The same by request slot, [request slots] int32: right also after the engine has reordered its batch."""

    num_sampled: Tensor


class Committer(Protocol):
    """What commits a window in all layers: ``CommitContext``, or a stand-in that computes the same."""

    def commit(
        self,
        num_sampled: Tensor,
        query_start_loc: Tensor,
        state_indices: Tensor,
        *,
        request_indices: Tensor | None = None,
        align: AlignInputs | None = None,
    ) -> CommitPlan:
        """Fold the accepted records of each row into its state; arguments as in ``commit_plan`` or ``align_plan``.

        With deferred commits ``record_rows`` and ``waiting_lens`` are given too, as in ``CommitContext``, and the
        committer is ``Deferring`` (``waiting.py``).
        """
        ...


class RecoverSSMState:
    """The life of the steps of one cache group: built, recorded, verified, then committed or discarded.

    The host keeps count alone; nothing waits for the device unless ``config.debug`` is set. Calls go to the stream of
    the step's verify, which is also where the builder filled its metadata; with deferred commits what calls of all
    lanes launch must run in the order of the calls.

    Args:
        config: as the builder's.
        committers: one per lane; each has a plan of its own, and records of its own where they go by row; states,
            conv windows and records by slot may be shared. When commits are deferred, records are one pool of all.
    Raises:
        ConfigError: another number of committers than steps in flight, or one of them twice; a context of other sizes,
            dtypes, bound of the gate, blocks or place of records than config's, or for fewer rows; two contexts with
            the same records by row, or with deferred commits with others or of fewer entries than
            config.num_record_rows.
    """

    def __init__(self, config: RecoverSSMConfig, committers: Sequence[Committer]) -> None:
        check_committers(config, committers)
        self._committers = tuple(committers)
        self._debug = config.debug
        self._block_size = config.block_size
        self._waiting: WaitingRecords | None = None
        if config.commit == "deferred":
            self._waiting = WaitingRecords(config, committers)  # type: ignore[arg-type]  # see Committer.commit
        self._pending: dict[int, _PendingStep] = {}
        self._finished: dict[int, str] = {}

    @property
    def pending_steps(self) -> tuple[int, ...]:
        """Steps that were recorded and are neither committed nor discarded, oldest first."""
        return tuple(self._pending)

    @property
    def waiting_requests(self) -> tuple[RequestSlot, ...]:
        """Requests with no tokens in a pending step whose states may lack accepted ones, the longest waiting first.

        Empty with commits every step. States of requests with tokens in a step may lack what they lacked before it.
        """
        return () if self._waiting is None else self._waiting.request_slots

    def record_step(self, step: StepMetadata) -> RecordRows | None:
        """Take note that ``step`` is about to be verified; a capture or warm-up leaves nothing behind.

        With deferred commits rows with tokens are given entries of the records. Committed is what waits for requests of
        the batch that are not speculative, for the longest waiting where entries run out, and for rows with tokens
        where verify takes no history. All this is launched, for a dummy step too: call it before a capture begins.

        Returns:
            With deferred commits what verify must be given as ``record_rows``, at addresses that depend on the lane and
            the number of rows alone, as those of the step's own tensors; else None.
        Raises:
            StepError: it was recorded before, or one of its requests is in a step whose commit is missing, and it would
                start from an old checkpoint; a dummy whose lane has such a step. With ``config.debug`` and deferred
                commits: a state that the step reads lacks tokens, as somebody moved it or took its slot without a
                flush.
            ArgumentError: its builder has another config; with ``config.debug``, staging buffers that somebody has
                written over.
        """
        if step.lane >= len(self._committers):
            raise ArgumentError(
                f"step {step.step_id}: expected a lane below {len(self._committers)}, the steps in flight, got "
                f"{step.lane}; builder and life take one config"
            )
        if step.is_dummy:
            if busy := [each.step.step_id for each in self._pending.values() if each.step.lane == step.lane]:
                raise StepError(
                    f"dummy step {step.step_id} cannot be recorded: its lane is that of step {busy[0]}, which has been "
                    "neither committed nor discarded"
                )
            return None if self._waiting is None else self._waiting.begin(step)
        if step.step_id in self._pending or not step.owns_staging:
            raise StepError(f"step {step.step_id} cannot be recorded: {self._end_of(step)}")
        rows = {slot: SpecRow(row) for row, slot in enumerate(step.spec_request_slots)}
        for earlier in self._pending.values():
            if shared := {*rows, *step.other_request_slots} & earlier.rows.keys():
                raise StepError(
                    f"step {step.step_id} cannot be recorded: request slot {min(shared)} is also in step "
                    f"{earlier.step.step_id}, which has been neither committed nor discarded"
                )
        pending = _PendingStep(step, rows)
        if self._debug:
            pending.check_staging()
        rows_given = None if self._waiting is None else self._waiting.begin(step)
        self._pending[step.step_id] = pending
        return rows_given

    def commit_step(
        self, step: StepMetadata, sampled: SampledByRow | SampledBySlot, *, align: AlignInputs | None = None
    ) -> CommitPlan | None:
        """Commit the verified step in all layers, and give its staging buffers back.

        Rows with nothing sampled, dropped requests and padding are left bit for bit as they were. A step that
        refuses its arguments is still pending. With deferred commits plan and conv windows are as ever, and so are
        states that reach a block's end, change their slot, or would have more than ``config.history_len`` tokens
        waiting; the others follow later, and verify takes what they lack as history.

        Args:
            align: in cache mode "align", tokens and blocks of the requests in the order of ``sampled``, as the step
                found them: before its tokens, with the columns that it was given.
        Returns:
            The plan, by speculative row, until the lane's next commit; None where no row was speculative.
        Raises:
            StepError: the step was never recorded, or is committed or discarded already.
            ShapeError: a request of the step has no entry in ``sampled``.
            ShapeError, DtypeError, StrideError, DeviceError: as ``CommitContext.commit``.
            ArgumentError: ``align`` is missing, is of no use here, or has blocks of another size; with
                ``config.debug``, a count below 0 or above the row's tokens, a state whose block has no slot, or staging
                buffers that somebody has written over.
        """
        if step.is_dummy:
            raise StepError(f"step {step.step_id} cannot be committed: it is a dummy, of a capture or a warm-up")
        pending = self._take(step, "committed")
        block_size = None if align is None else align.block_size
        if block_size != self._block_size:
            raise ArgumentError(f"align: expected block_size={self._block_size} as in the config, got {block_size}")
        plan = None
        if step.num_spec_rows:
            indices: Sequence[int]
            if isinstance(sampled, SampledBySlot):
                indices, request_indices = step.spec_request_slots, step.request_slots
            elif isinstance(sampled, SampledByRow):
                indices, request_indices = step.spec_request_rows, step.request_rows
            else:
                raise ArgumentError(
                    f"sampled: expected SampledByRow or SampledBySlot, got {type(sampled).__name__}; the two are "
                    "different orders of the same counts"
                )
            if not isinstance(sampled.num_sampled, Tensor):
                raise ArgumentError(
                    "num_sampled: expected an int32 tensor on the device of the pools, got "
                    f"{type(sampled.num_sampled).__name__}"
                )
            pending.check_entries(sampled.num_sampled, indices)
            if self._debug:
                pending.check_staging()
                pending.check_counts(sampled.num_sampled, indices)
                if align is not None:
                    pending.check_blocks(sampled.num_sampled, align, indices)
            deferral = {}
            if self._waiting is not None:
                deferral = {"record_rows": self._waiting.rows_of(step), "waiting_lens": self._waiting.lens}
            plan = self._committers[step.lane].commit(
                sampled.num_sampled,
                step.query_start_loc,
                step.state_indices,
                request_indices=request_indices,
                align=align,
                **deferral,
            )
        if self._waiting is not None:
            self._waiting.commit(step, pending.rows)
        self._finish(step, "committed")
        return plan

    def drop_request(self, request_slot: RequestSlot) -> bool:
        """Leave a request out of the pending commit: it was aborted, or preempted and will be computed anew.

        From this call on its state slot and its request slot may be another request's. What waits for its state is
        forgotten: whoever wants to keep that calls ``flush`` before, and who writes a new state calls this.

        Returns:
            Whether it was in a pending step.
        Raises:
            ArgumentError: it is a tensor, not a number on the host.
        """
        _check_on_host([request_slot])
        if self._waiting is not None:
            self._waiting.drop(request_slot)
        for pending in self._pending.values():
            row = pending.rows.pop(request_slot, None)
            if row is not None:
                # On the stream, after the verify that reads it and before the commit that must not.
                pending.step.state_indices[row : row + 1].fill_(NULL_SLOT)
                return True
        return False

    def flush(self, request_slots: Iterable[RequestSlot] | None = None) -> None:
        """Bring states up to date before anybody but their next verify reads them.

        For prefix hits, copies, transfers, and requests that leave the batch but whose states are kept. Nothing is
        launched where nothing waits, as with commits every step.

        Args:
            request_slots: whose; those for which nothing waits may be among them. None: all ``waiting_requests``.
        Raises:
            StepError: with deferred commits, one of these requests is in a step that was neither committed nor
                discarded, unless some of its tokens wait and none are in that step.
            ArgumentError: tensors, not numbers on the host.
        """
        slots = self.waiting_requests if request_slots is None else tuple(request_slots)
        _check_on_host(slots)
        if self._waiting is None:
            return
        for pending in self._pending.values():
            if busy := pending.rows.keys() & (set(slots) - set(self.waiting_requests)):
                raise StepError(
                    f"request slot {min(busy)} cannot be flushed: it is in step {pending.step.step_id}, which has been "
                    "neither committed nor discarded"
                )
        self._waiting.flush(slots)

    def discard_step(self, step: StepMetadata) -> None:
        """End a step without a commit, for example because the forward pass failed. States stay as they were.

        So does what waits for them. Where the forward pass got as far as the short convolution, its windows have been
        rolled: the step's requests must then be computed anew, after ``drop_request`` where commits are deferred, as
        what waits would come on top of a new state. A step that was built but never recorded may be discarded too.

        Raises:
            StepError: the step is committed or discarded already.
        """
        if step.is_dummy:
            return
        pending = self._pending.get(step.step_id)
        is_open = step.owns_staging if pending is None else pending.step is step
        if not is_open:
            raise StepError(f"step {step.step_id} cannot be discarded: {self._end_of(step)}")
        if self._waiting is not None:
            self._waiting.discard(step, () if pending is None else pending.rows)
        self._finish(step, "discarded")

    def check_idle(self) -> None:
        """Raises StepError, naming the steps, when a commit or a flush is missing; before shutdowns, or states move."""
        if self._pending:
            steps = ", ".join(map(str, self._pending))
            raise StepError(f"commit missing: step {steps} was recorded, but neither committed nor discarded")
        if self._waiting is not None:
            self._waiting.check_flushed()

    def _take(self, step: StepMetadata, verb: str) -> "_PendingStep":
        pending = self._pending.get(step.step_id)
        if pending is None or pending.step is not step or not step.owns_staging:
            raise StepError(f"step {step.step_id} cannot be {verb}: {self._end_of(step)}")
        return pending

    def _finish(self, step: StepMetadata, end: str) -> None:
        self._pending.pop(step.step_id, None)
        self._finished[step.step_id] = end
        if len(self._finished) > MAX_REMEMBERED:
            del self._finished[next(iter(self._finished))]
        step.release()

    def _end_of(self, step: StepMetadata) -> str:
        if step.step_id in self._finished:
            return f"it was {self._finished[step.step_id]} already"
        pending = self._pending.get(step.step_id)
        if pending is not None and pending.step is not step:
            return f"step {step.step_id} of this life is another builder's; each builder has a life of its own"
        if pending is not None:
            return "it was recorded already" if step.owns_staging else "its staging buffers were released before"
        if not step.owns_staging:
            return "it ended long ago"
        return "it was never recorded here; call record_step before its verify"


def _check_on_host(request_slots: Sequence[RequestSlot]) -> None:
    """A tensor equals no number that is looked up: whoever it means would not be found."""
    if any(isinstance(slot, Tensor) for slot in request_slots):
        raise ArgumentError("request slots: expected numbers on the host, got a tensor; pass its tolist()")


@dataclass(frozen=True, slots=True)
class _PendingStep:
    """A step between record and commit, and the speculative rows of its requests that still live."""

    step: StepMetadata
    rows: dict[RequestSlot, SpecRow]

    def check_entries(self, num_sampled: Tensor, indices: Sequence[int]) -> None:
        """Every live request has a count: the plan would take a missing one for 0, and its state would stand still."""
        for slot, row in self.rows.items():
            if indices[row] >= num_sampled.numel():
                raise ShapeError(
                    f"num_sampled: expected an entry for request slot {slot} at {indices[row]} in step "
                    f"{self.step.step_id}, got {list(num_sampled.shape)}"
                )

    def check_staging(self) -> None:
        """Wait for the device and compare what it holds of the live requests with what the step was built with."""
        starts, slots = self.step.query_start_loc.tolist(), self.step.state_indices.tolist()
        expected = [0, *accumulate(self.step.spec_query_lens)]
        for request_slot, row in self.rows.items():
            for name, built, held in (
                ("state_indices", self.step.spec_state_slots[row], slots[row]),
                ("query_start_loc", expected[row : row + 2], starts[row : row + 2]),
            ):
                if held != built:
                    raise ArgumentError(
                        f"{name}: expected {built} for request slot {request_slot} in step {self.step.step_id}, as it "
                        f"was built, got {held}; the step's tensors are its own until it is committed"
                    )

    def check_counts(self, num_sampled: Tensor, indices: Sequence[int]) -> None:
        """Wait for the device and look at what the kernels would clip."""
        check_row_vector("num_sampled", describe(num_sampled), None, num_sampled.device)
        counts = num_sampled.tolist()
        for slot, row in self.rows.items():
            count, query_len = counts[indices[row]], self.step.spec_query_lens[row]
            if not 0 <= count <= query_len:
                raise ArgumentError(
                    f"num_sampled: expected 0 to {query_len}, the tokens of request slot {slot} in step "
                    f"{self.step.step_id}, got {count}"
                )

    def check_blocks(self, num_sampled: Tensor, align: AlignInputs, indices: Sequence[int]) -> None:
        """Wait for the device and look for states that would not be written, as their block has no slot."""
        num_requests, device = num_sampled.numel(), num_sampled.device
        check_row_vector("align.num_computed", describe(align.num_computed), num_requests, device)
        check_tensor("align.block_table", describe(align.block_table), "B C", (num_requests, None), INT32, device)
        counts, computed, tables = (x.tolist() for x in (num_sampled, align.num_computed, align.block_table))
        for slot, row in self.rows.items():
            count, before, table = counts[indices[row]], computed[indices[row]], tables[indices[row]]
            column = block_column(before + count, align.block_size)
            if count > 0 and not (before >= 0 and column < len(table) and table[column] > NULL_SLOT):
                raise ArgumentError(
                    f"block_table: expected a slot in column {column} for request slot {slot} in step "
                    f"{self.step.step_id}, which has {before} tokens and accepts {count} in blocks of "
                    f"{align.block_size}, got {table}"
                )
