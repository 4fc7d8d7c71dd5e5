"""One KDA layer with its convolution, run through the builder and RecoverSSMState, beside a reading request by request.

Slots that nobody owns are NaN all the time. A request's true state is folded token by token from what was accepted.
"""

from dataclasses import dataclass, field

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
    reference,
    verify,
)
from recoverssm.reference.recurrence import delta_step, kda_log_decay, scaled_query, unit_key
from tests.windows import int32

H, K, V, WIDTH = 1, 16, 16, 4
CHANNELS = H * (2 * K + V)
NOBODY = 3  # sampled tokens of rows and slots that are no speculative row of the step: must not matter


class ReferenceCommitter:
    """``CommitContext`` in float64: the answer its kernels are checked against, in its own words."""

    def __init__(self, pool: Tensor, records: Records, conv: Tensor, gate: GateParams, spec_query_len: int) -> None:
        self.pool, self.records, self.conv, self.gate, self.spec_query_len = pool, records, conv, gate, spec_query_len
        self.num_commits = 0

    def commit(self, num_sampled, query_start_loc, state_indices, *, request_indices=None, align=None) -> CommitPlan:
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
        reference.commit_state([self.pool], [self.records], plan, self.gate)
        reference.compact_conv([self.conv], plan, conv_width=WIDTH)
        self.num_commits += 1
        return plan


@dataclass
class Request:
    request_slot: int
    state_slot: int
    state: Tensor  # [H, V, K] float64, after everything that was accepted
    history: Tensor  # [WIDTH - 1, CHANNELS], raw projections before the next token
    window: list[Tensor] = field(default_factory=list)  # activations and projections of the step in flight


class OneLayer:
    """An engine's part in it: slots, prefill, and what becomes of a request between verify and commit."""

    def __init__(self, config: RecoverSSMConfig, *, device: str | None = None, num_slots: int = 12) -> None:
        """Kernels run on ``device``; without one everything is the reference in float64."""
        self.config, self.device = config, device or "cpu"
        self.generator = torch.Generator().manual_seed(0)
        dtype = torch.float32 if device else torch.float64
        T, rows = config.spec_query_len, config.max_num_requests
        self.gate = GateParams(self.random(1, H), self.random(1, H, K), config.gate_lower_bound)
        self.layer_gate = GateParams(self.gate.A_log[0], self.gate.dt_bias[0], config.gate_lower_bound)
        self.weight = self.random(CHANNELS, WIDTH)
        self.pool = torch.full((num_slots, H, V, K), float("nan"), dtype=dtype, device=self.device)
        self.conv = torch.full((num_slots, WIDTH + T - 2, CHANNELS), float("nan"), device=self.device)
        self.records = [
            Records(
                torch.full((rows, H, T, V), float("nan"), dtype=dtype, device=self.device),
                torch.full((rows, H, T, 2 * K), float("nan"), device=self.device),
            )
            for _ in range(config.steps_in_flight)
        ]
        self.committers = [
            CommitContext([self.pool], [records], [self.conv], self.gate, max_num_rows=rows, conv_width=WIDTH)
            if device
            else ReferenceCommitter(self.pool, records, self.conv, self.gate, T)
            for records in self.records
        ]
        self.verify = verify if device else reference.verify
        self.tolerance = 2e-6 if device else 1e-12
        self.builder = MetadataBuilder(config, num_state_slots=num_slots, device=self.device)
        self.life = RecoverSSMState(config, self.committers)
        self.free_slots = list(range(1, num_slots))
        self.free_requests = list(range(num_slots))
        self.requests: list[Request] = []
        self.in_flight: dict[int, tuple[StepMetadata, list[Request | None]]] = {}

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.device)

    def add(self) -> Request:
        """A request whose prompt has been computed."""
        request = Request(
            self.free_requests.pop(0), self.free_slots.pop(0), self.random(H, V, K).double(), self.random(3, CHANNELS)
        )
        self.requests.append(request)
        self.prefill(request)
        return request

    def prefill(self, request: Request) -> None:
        """Write what a prompt of all its tokens would leave."""
        self.pool[request.state_slot] = request.state.to(self.pool.dtype)
        self.conv[request.state_slot, : WIDTH - 1] = request.history

    def remove(self, request: Request) -> None:
        """Its slots are free for others at once, and hold NaN until they are taken."""
        self.life.drop_request(request.request_slot)
        self.forget(request)

    def forget(self, request: Request) -> None:
        self.requests.remove(request)
        for _, rows in self.in_flight.values():
            rows[:] = [None if row is request else row for row in rows]
        self.pool[request.state_slot] = float("nan")
        self.conv[request.state_slot] = float("nan")
        self.free_slots.insert(0, request.state_slot)
        self.free_requests.insert(0, request.request_slot)

    def step(self, windows: list[tuple[Request, int]], prompts: int = 0) -> StepMetadata:
        """Verify so many tokens of each request, in a batch with ``prompts`` prompts of two tokens before and after."""
        rows = [request for request, _ in windows]
        new = [self.add() for _ in range(prompts)]
        order = [*new[::2], *rows, *new[1::2]]
        lens = [*[2] * len(new[::2]), *(n for _, n in windows), *[2] * len(new[1::2])]
        step = self.builder.build(
            RequestBatch(
                query_lens=lens,
                num_drafts=[-1 if request in new else n - 1 for request, n in zip(order, lens, strict=True)],
                is_prefilling=[request in new for request in order],
                state_slots=[request.state_slot for request in order],
                request_slots=[request.request_slot for request in order],
            )
        )
        self.life.record_step(step)
        self.in_flight[step.step_id] = (step, order)
        tokens = sum(lens)
        batch = [
            self.random(tokens, H, K),
            self.random(tokens, H, K),
            self.random(tokens, H, V),
            self.random(tokens, H, K),
            self.random(tokens, H),
            self.random(tokens, CHANNELS),
        ]
        first = 0
        for request, n in zip(order, lens, strict=True):
            request.window = [x[first : first + n] for x in batch]
            first += n
        *spec, projections = (x[step.spec_tokens] for x in batch)
        reference.update_conv_window(
            self.conv, projections, step.query_start_loc, step.state_indices, self.weight.to(projections.dtype)
        )
        self.verify(
            *spec, self.pool, self.records[step.lane], self.layer_gate, step.query_start_loc, step.state_indices
        )
        return step

    def commit(self, step: StepMetadata, accepted: dict[int, int], *, by_slot: bool = False) -> CommitPlan | None:
        """Commit ``accepted`` tokens by request slot; requests that accept none are computed anew."""
        _, order = self.in_flight[step.step_id]
        of = [NOBODY if request is None else accepted.get(request.request_slot, NOBODY) for request in order]
        if by_slot:
            counts = [accepted.get(slot, NOBODY) for slot in range(self.pool.shape[0])]
            sampled = SampledBySlot(int32(counts, self.device))
        else:
            sampled = SampledByRow(int32(of, self.device))
        plan = self.life.commit_step(step, sampled)
        del self.in_flight[step.step_id]
        speculative = set(step.spec_request_rows)
        for row, request in enumerate(order):
            if request is not None and row in speculative:
                self.accept(request, of[row])
        return plan

    def accept(self, request: Request, num_tokens: int) -> None:
        """What the request is to hold from now on, folded one token at a time."""
        q, k, v, raw_gate, raw_beta, projections = (x[:num_tokens] for x in request.window)
        decay, beta = kda_log_decay(raw_gate, self.layer_gate), raw_beta.double().sigmoid()
        for t in range(num_tokens):
            request.state, _, _ = delta_step(
                request.state, decay[t], unit_key(k[t]), scaled_query(q[t]), v[t].double(), beta[t]
            )
        request.history = torch.cat((request.history, projections))[-(WIDTH - 1) :]
        if num_tokens == 0:
            self.prefill(request)

    def check(self) -> None:
        """Every request holds its own state and history, and every other slot is NaN."""
        owned = {request.state_slot for request in self.requests}
        nobody = [slot for slot in range(self.pool.shape[0]) if slot not in owned]
        assert self.pool[nobody].isnan().all(), "a slot without an owner was written"
        assert self.conv[nobody].isnan().all(), "a conv slot without an owner was written"
        waiting = {id(request) for _, order in self.in_flight.values() for request in order}
        for request in self.requests:
            error = (self.pool[request.state_slot].double() - request.state).norm() / request.state.norm()
            assert error <= self.tolerance, f"request slot {request.request_slot}: state off by {error:.1e}"
            if id(request) not in waiting:
                assert torch.equal(self.conv[request.state_slot, : WIDTH - 1], request.history)
