"""One KDA layer with its convolution, run through the builder and RecoverSSMState, beside a reading request by request.

Slots that nobody owns are NaN all the time. What a slot is to hold stands in a float64 twin of the pool, of which the
recurrence makes the state after every token of a window; accepting a prefix picks one.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recoverssm import (
    CommitContext,
    CommitPlan,
    GateParams,
    MetadataBuilder,
    Records,
    RecoverSSMConfig,
    RecoverSSMState,
    RequestBatch,
    SampledByRow,
    SampledBySlot,
    StepMetadata,
    committer,
    reference,
    verify,
)
from recoverssm.reference.recurrence import delta_step, kda_log_decay, scaled_query, unit_key
from recoverssm.reference.windows import gather_tokens, window_tokens
from tests.windows import FP32_TOL, int32, tol

WIDTH = 4
NOBODY = 3  # sampled tokens of rows and slots that are no speculative row of the step: must not matter


class ReferenceCommitter:
    """``CommitContext`` in float64: the answer its kernels are checked against, in its own words."""

    def __init__(self, pool: Tensor, records: Records, conv: Tensor, gate: GateParams, spec_query_len: int) -> None:
        self.pool, self.records, self.conv, self.gate, self.spec_query_len = pool, records, conv, gate, spec_query_len
        self.num_commits = self.num_states_now = 0
        self.device, self.num_records, self.history_len = pool.device, len(records.correction), records.history_len

    def commit(
        self,
        num_sampled,
        query_start_loc,
        state_indices,
        *,
        request_indices=None,
        align=None,
        record_rows=None,
        waiting_lens=None,
    ) -> CommitPlan:
        assert align is None, "this committer knows no blocks"
        plan = CommitPlan(*torch.zeros((3, state_indices.shape[0]), dtype=torch.int32).unbind())
        reference.commit_plan(
            num_sampled,
            query_start_loc,
            state_indices,
            plan,
            spec_query_len=self.spec_query_len,
            request_indices=request_indices,
        )
        now, entries = plan, None
        if record_rows is not None:
            now, entries = replace(plan, commit_lens=torch.empty_like(plan.commit_lens)), record_rows.written
            reference.defer_plan(plan, record_rows, waiting_lens, now.commit_lens, history_len=self.history_len)
            self.num_states_now += int((now.commit_lens > 0).sum())
        reference.commit_state([self.pool], [self.records], now, self.gate, record_rows=entries)
        reference.compact_conv([self.conv], plan, conv_width=WIDTH)
        self.num_commits += 1
        return plan

    def takes_history(self, num_rows):
        return num_rows * self.pool.shape[1] >= committer.MIN_HISTORY_HEADS

    def plan_waiting(self, waiting, waiting_lens, state_indices):
        return torch.where((waiting >= 0) & (state_indices > 0), waiting_lens[waiting.long()], 0)

    def commit_waiting(self, waiting, waiting_lens, state_indices):
        plan = CommitPlan(self.plan_waiting(waiting, waiting_lens, state_indices), state_indices, state_indices)
        reference.commit_state([self.pool], [self.records], plan, self.gate, record_rows=waiting)


@dataclass
class Request:
    request_slot: int
    state_slot: int


@dataclass
class Flight:
    """A step between verify and commit.

    Attributes:
        order: by request row, None where the request has gone.
        states: what each speculative row would hold after so many of its tokens, [T + 1, N, H, V, K] float64.
        projections: [N, T, C].
    """

    step: StepMetadata
    order: list[Request | None]
    states: Tensor
    projections: Tensor


class OneLayer:
    """An engine's part in it: slots, prefill, prefix cache, and what becomes of a request between verify and commit."""

    def __init__(self, config: RecoverSSMConfig, *, device: str | None = None, num_slots: int = 12) -> None:
        """Kernels run on ``device``; without one everything is the reference in float64."""
        self.config, self.device = config, device or "cpu"
        self.generator = torch.Generator(self.device).manual_seed(0)
        dtype = torch.float32 if device else torch.float64
        T, rows, H, K, V = (
            config.spec_query_len, config.max_num_requests, config.num_heads, config.key_dim, config.value_dim,
        )  # fmt: skip
        self.state_shape, self.window_shape = (H, V, K), (WIDTH - 1, H * (2 * K + V))
        self.gate = GateParams(self.random(1, H), self.random(1, H, K), config.gate_lower_bound)
        self.layer_gate = GateParams(self.gate.A_log[0], self.gate.dt_bias[0], config.gate_lower_bound)
        self.weight = self.activations(self.window_shape[1], WIDTH)
        self.pool = self.nobodys(num_slots, *self.state_shape, dtype=dtype)
        conv_shape = (WIDTH + T - 2, self.window_shape[1])
        if config.conv_layout == "DS":
            self.conv = self.nobodys(num_slots, *conv_shape[::-1], dtype=config.activation_dtype).transpose(1, 2)
        else:
            self.conv = self.nobodys(num_slots, *conv_shape, dtype=config.activation_dtype)
        self.truth = self.nobodys(num_slots, *self.state_shape, dtype=torch.float64)
        self.history = self.nobodys(num_slots, *self.window_shape, dtype=config.activation_dtype)
        by_slot = config.placement == "page"
        entries = num_slots if by_slot else config.num_record_rows

        def records() -> Records:
            correction = self.nobodys(entries, H, T + config.history_len, V, dtype=dtype)
            key_gate = self.nobodys(entries, H, T + config.history_len, 2 * K, dtype=config.activation_dtype)
            return Records(correction, key_gate, by_slot, config.history_len)

        lanes = config.steps_in_flight
        are_shared = by_slot or config.commit == "deferred"
        self.records = [records()] * lanes if are_shared else [records() for _ in range(lanes)]
        self.committers = [
            CommitContext(
                [self.pool], [records], [self.conv], self.gate, max_num_rows=rows, conv_width=WIDTH, debug=config.debug
            )
            if device
            else ReferenceCommitter(self.pool, records, self.conv, self.gate, T)
            for records in self.records
        ]
        self.verify = verify if device else reference.verify
        self.state_tol, self.out_tol = FP32_TOL if device else 1e-12, tol(config.activation_dtype, self.device)
        self.out_error = torch.zeros((), dtype=torch.float64, device=self.device)  # the worst since the last check
        self.builder = MetadataBuilder(config, num_state_slots=num_slots, device=self.device)
        self.life = RecoverSSMState(config, self.committers)
        self.free_slots = list(range(1, num_slots))
        self.free_requests = list(range(num_slots))
        self.requests: list[Request] = []
        self.cached: list[int] = []  # slots of the prefix cache
        self.in_flight: dict[int, Flight] = {}

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.device)

    def activations(self, *shape: int) -> Tensor:
        return self.random(*shape).to(self.config.activation_dtype)

    def nobodys(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.full(shape, float("nan"), dtype=dtype, device=self.device)

    @property
    def idle(self) -> list[Request]:
        """Requests that are in no step."""
        busy = {id(request) for flight in self.in_flight.values() for request in flight.order}
        return [request for request in self.requests if id(request) not in busy]

    def add(self, prompt: tuple[Tensor, Tensor] | None = None) -> Request:
        """A request whose prompt has been computed: a new one, or one that left this state and history."""
        request = Request(self.free_requests.pop(0), self.free_slots.pop(0))
        self.requests.append(request)
        state, history = prompt or (self.random(*self.state_shape), self.activations(*self.window_shape))
        self.truth[request.state_slot], self.history[request.state_slot] = state, history
        self.prefill(request)
        return request

    def prefill(self, request: Request) -> None:
        """Write what a prompt of all its tokens would leave."""
        self.pool[request.state_slot] = self.truth[request.state_slot]
        self.unroll(request)

    def unroll(self, request: Request) -> None:
        """Write the window of the convolution, which verify has rolled; the state and what waits for it stay."""
        self.conv[request.state_slot, : WIDTH - 1] = self.history[request.state_slot]

    def remove(self, request: Request) -> tuple[Tensor, Tensor]:
        """Free its slots for others at once, NaN until they are taken; returns what they should have held."""
        held = self.truth[request.state_slot].clone(), self.history[request.state_slot].clone()
        self.life.drop_request(request.request_slot)
        self.forget(request)
        return held

    def forget(self, request: Request) -> None:
        self.requests.remove(request)
        for flight in self.in_flight.values():
            flight.order[:] = [None if row is request else row for row in flight.order]
        self.free(request.state_slot)
        self.free_requests.insert(0, request.request_slot)

    def free(self, slot: int) -> None:
        for held in (self.pool, self.conv, self.truth, self.history):
            held[slot] = float("nan")
        self.free_slots.insert(0, slot)

    def cache(self, request: Request) -> int:
        """Copy an idle request's state and history to a slot of the prefix cache, which must hold them from now on."""
        self.life.flush([request.request_slot])
        self.cached.append(self.free_slots.pop(0))
        self.copy(request.state_slot, self.cached[-1])
        return self.cached[-1]

    def hit(self, cached: int) -> Request:
        """A request whose prompt ends where ``cached`` was left."""
        request = Request(self.free_requests.pop(0), self.free_slots.pop(0))
        self.requests.append(request)
        self.copy(cached, request.state_slot)
        return request

    def copy(self, source: int, target: int) -> None:
        for held in (self.pool, self.conv[:, : WIDTH - 1], self.truth, self.history):
            held[target] = held[source]

    def evict(self, cached: int) -> None:
        self.cached.remove(cached)
        self.free(cached)

    def step(self, windows: list[tuple[Request, int]], prompts: int = 0) -> StepMetadata:
        """Verify so many tokens of each request, in a batch with ``prompts`` prompts of two tokens before and after."""
        rows = [request for request, _ in windows]
        new = [self.add() for _ in range(prompts)]
        order = [*new[::2], *rows, *new[1::2]]
        lens = [*[2] * len(new[::2]), *(n for _, n in windows), *[2] * len(new[1::2])]
        step = self.builder.build(
            RequestBatch(
                query_lens=lens,
                num_drafts=[-1 if request in new else max(n - 1, 0) for request, n in zip(order, lens, strict=True)],
                is_prefilling=[request in new for request in order],
                state_slots=[request.state_slot for request in order],
                request_slots=[request.request_slot for request in order],
            )
        )
        record_rows = self.life.record_step(step)
        tokens, (H, V, K) = sum(lens), self.state_shape
        sizes = (H, K), (H, K), (H, V), (H, K), (H,), self.window_shape[1:]
        *spec, projections = (self.activations(tokens, *size)[step.spec_tokens] for size in sizes)
        reference.update_conv_window(self.conv, projections, step.query_start_loc, step.state_indices, self.weight)
        out = self.verify(
            *spec,
            self.pool,
            self.records[step.lane],
            self.layer_gate,
            step.query_start_loc,
            step.state_indices,
            record_rows=record_rows,
        )
        self.in_flight[step.step_id] = self.expect(step, order, *spec, projections, out)
        return step

    def expect(
        self,
        step: StepMetadata,
        order: list[Request | None],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        raw_gate: Tensor,
        raw_beta: Tensor,
        projections: Tensor,
        out: Tensor,
    ) -> Flight:
        """The states that accepting would leave, from the recurrence; ``out`` is compared with its outputs."""
        states, outs = [self.truth[step.state_indices.long()]], []
        if step.num_spec_tokens == 0:
            return Flight(step, order, states[0][None], projections)
        tokens, inside = window_tokens(step.query_start_loc, self.config.spec_query_len)
        query, key = scaled_query(gather_tokens(q, tokens)), unit_key(gather_tokens(k, tokens))
        log_decay = kda_log_decay(gather_tokens(raw_gate, tokens), self.layer_gate)
        value, beta = gather_tokens(v, tokens), gather_tokens(raw_beta, tokens).sigmoid()
        for t in range(self.config.spec_query_len):
            state, _, output = delta_step(states[t], log_decay[:, t], key[:, t], query[:, t], value[:, t], beta[:, t])
            states.append(state)
            outs.append(output)
        expected = torch.where(inside[..., None, None], torch.stack(outs, dim=1), 0)
        actual = torch.where(inside[..., None, None], gather_tokens(out, tokens), 0)
        self.out_error = torch.maximum(self.out_error, (actual - expected).norm() / expected.norm())
        return Flight(step, order, torch.stack(states), projections[tokens])

    def commit(self, step: StepMetadata, accepted: dict[int, int], *, by_slot: bool = False) -> CommitPlan | None:
        """Commit ``accepted`` tokens by request slot; of requests that accept none the convolution is computed anew."""
        flight = self.in_flight[step.step_id]
        of = [NOBODY if request is None else accepted.get(request.request_slot, NOBODY) for request in flight.order]
        if by_slot:
            counts = [accepted.get(slot, NOBODY) for slot in range(self.pool.shape[0])]
            sampled = SampledBySlot(int32(counts, self.device))
        else:
            sampled = SampledByRow(int32(of, self.device))
        plan = self.life.commit_step(step, sampled)
        del self.in_flight[step.step_id]
        kept = []
        for spec_row, row in enumerate(step.spec_request_rows):
            request = flight.order[row]
            if request is not None and of[row]:
                kept.append((spec_row, of[row], request.state_slot))
            elif request is not None and step.spec_query_lens[spec_row]:
                self.unroll(request)
        if kept:
            self.accept(flight, *torch.tensor(kept, device=self.device).unbind(1))
        return plan

    def discard(self, step: StepMetadata) -> None:
        """End a step whose forward pass failed; of who had tokens in it the convolution alone is computed anew."""
        self.life.discard_step(step)
        order = self.in_flight.pop(step.step_id).order
        for row, query_len in zip(step.spec_request_rows, step.spec_query_lens, strict=True):
            if query_len and (request := order[row]) is not None:
                self.unroll(request)

    def accept(self, flight: Flight, rows: Tensor, num_tokens: Tensor, slots: Tensor) -> None:
        """What the slots are to hold from now on."""
        self.truth[slots] = flight.states[num_tokens, rows]
        sequence = torch.cat((self.history[slots], flight.projections[rows]), dim=1)
        positions = num_tokens[:, None] + torch.arange(WIDTH - 1, device=self.device)
        self.history[slots] = sequence[torch.arange(len(rows), device=self.device)[:, None], positions]

    def check(self) -> None:
        """Every owner's slot holds its own state and history, every other slot NaN; outputs were right. Waits once.

        A state that may lack tokens is looked at once they are committed, and before by what verify makes of it.
        """
        owners = {request.state_slot: f"request slot {request.request_slot}" for request in self.requests}
        owners |= {slot: f"cached slot {slot}" for slot in self.cached}
        settled = {request.state_slot for request in self.idle} | set(self.cached)
        slot_of = {request.request_slot: request.state_slot for request in self.requests}
        lacking = {slot_of[request_slot] for request_slot in self.life.waiting_requests}
        if self.config.commit == "deferred":
            lacking |= {*slot_of.values()} - settled  # in a step, with what waited before it
        off = (self.pool - self.truth).flatten(1).norm(dim=1) / self.truth.flatten(1).norm(dim=1)
        differing = (self.conv[:, : WIDTH - 1] != self.history).flatten(1).sum(1)
        written = [(~held.isnan()).flatten(1).sum(1) for held in (self.pool, self.conv)]
        figures = torch.stack((off, differing, *written, self.out_error.expand(len(off))), dim=1).tolist()
        for slot, (error, num_differing, in_pool, in_conv, _) in enumerate(figures):
            if slot not in owners:
                assert in_pool == 0, f"slot {slot} has no owner and was written"
                assert in_conv == 0, f"conv slot {slot} has no owner and was written"
                continue
            assert error <= self.state_tol or slot in lacking, f"{owners[slot]}: state off by {error:.1e}"
            if slot in settled:
                assert num_differing == 0, f"{owners[slot]}: {num_differing:.0f} differences in its history"
        assert figures[0][-1] <= self.out_tol, f"outputs off by {figures[0][-1]:.1e}"
        self.out_error = torch.zeros_like(self.out_error)
