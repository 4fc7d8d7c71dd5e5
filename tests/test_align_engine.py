"""Cache mode "align" through builder, life and commit: requests that live on, are aborted and resume at full blocks."""

import random
from dataclasses import dataclass, field

import pytest
import torch

from recoverssm import (
    AlignInputs,
    ArgumentError,
    CommitContext,
    GateParams,
    MetadataBuilder,
    Records,
    RecoverSSMConfig,
    RecoverSSMState,
    RequestBatch,
    SampledByRow,
    SampledBySlot,
    committer,
    reference,
    verify,
)
from recoverssm.reference.recurrence import delta_step, kda_log_decay, scaled_query, unit_key
from tests.windows import int32

H, K, V, T, WIDTH = 1, 16, 16, 4, 4
CHANNELS = H * (2 * K + V)
NUM_REQUESTS, NUM_SLOTS = 3, 200
TOLERANCE = 2e-6  # of a state after some dozens of fp32 steps


@dataclass
class Request:
    """One request, with what it is to hold beside it: the state and the raw tokens after each of its tokens."""

    num_tokens: int = 0
    running: int = -1
    table: list[int] = field(default_factory=list)
    states: list = field(default_factory=lambda: [torch.zeros(H, V, K, dtype=torch.float64)])
    raw: torch.Tensor = field(default_factory=lambda: torch.zeros(WIDTH - 1, CHANNELS))

    def history(self, num_tokens):
        return self.raw[num_tokens : num_tokens + WIDTH - 1]


class Engine:
    """Pools that are NaN where nobody wrote, and a scheduler that allocates the columns of a step and no more."""

    def __init__(self, block_size, device, **options):
        self.block_size, self.device = block_size, device
        self.random = random.Random(block_size)
        self.generator = torch.Generator().manual_seed(block_size)
        config = RecoverSSMConfig(
            num_heads=H,
            draft_tokens=T - 1,
            max_num_requests=NUM_REQUESTS,
            key_dim=K,
            value_dim=V,
            activation_dtype=torch.float32,
            cache_mode="align",
            block_size=block_size,
            **options,
        )
        self.gate = GateParams(self.normal(1, H), self.normal(1, H, K), config.gate_lower_bound)
        self.layer_gate = GateParams(self.gate.A_log[0], self.gate.dt_bias[0], config.gate_lower_bound)
        self.weight = self.normal(CHANNELS, WIDTH)

        def poison(*size):
            return torch.full(size, float("nan"), device=device)

        self.states, self.convs = poison(NUM_SLOTS, H, V, K), poison(NUM_SLOTS, WIDTH - 2 + T, CHANNELS)
        entry = (config.num_record_rows, H, T + config.history_len)
        self.records = Records(poison(*entry, V), poison(*entry, 2 * K), history_len=config.history_len)
        context = CommitContext(
            [self.states],
            [self.records],
            [self.convs],
            self.gate,
            max_num_rows=NUM_REQUESTS,
            conv_width=WIDTH,
            block_size=block_size,
        )
        self.builder = MetadataBuilder(config, num_state_slots=NUM_SLOTS, device=device)
        self.life = RecoverSSMState(config, [context])
        self.free = list(range(NUM_SLOTS - 1, 0, -1))
        self.requests = [Request() for _ in range(NUM_REQUESTS)]
        self.running = int32([-1] * NUM_REQUESTS, device)
        self.num_behind_history = 0  # commits that reached a block's end while tokens waited

    def normal(self, *size):
        return torch.randn(*size, generator=self.generator).to(self.device)

    def schedule(self, r, query_len):
        """Allocate the columns of the step, and move the state to the last of them."""
        request = self.requests[r]
        column = reference.block_column(request.num_tokens + query_len, self.block_size)
        while len(request.table) <= column:
            request.table.append(self.free.pop())
        slot = request.table[column]
        if request.running < 0:
            self.states[slot], self.convs[slot, : WIDTH - 1] = 0.0, 0.0
        elif request.running != column:
            self.life.flush([r])
            source = request.table[request.running]
            self.states[slot], self.convs[slot, : WIDTH - 1] = self.states[source], self.convs[source, : WIDTH - 1]
        request.running = column
        return slot

    def verified(self, rows, query_lens):
        """The step after its forward pass, and what each row brought."""
        slots = [self.schedule(r, q) for r, q in zip(rows, query_lens, strict=True)]
        step = self.builder.build(
            RequestBatch(
                query_lens=query_lens,
                num_drafts=[q - 1 for q in query_lens],
                is_prefilling=[False] * len(rows),
                state_slots=slots,
                request_slots=rows,
            )
        )
        record_rows = self.life.record_step(step)
        history_lens = record_rows and record_rows.history_lens
        self.waited = {} if history_lens is None else dict(zip(rows, history_lens.tolist(), strict=True))
        tokens = sum(query_lens)
        inputs = [self.normal(tokens, H, size) for size in (K, K, V, K)] + [self.normal(tokens, H)]
        raw = self.normal(tokens, CHANNELS)
        reference.update_conv_window(self.convs, raw, step.query_start_loc, step.state_indices, self.weight)
        rows = (step.query_start_loc, step.state_indices)
        verify(*inputs, self.states, self.records, self.layer_gate, *rows, record_rows=record_rows)
        ends = int32(query_lens, "cpu").cumsum(0).tolist()
        windows = [[x[end - q : end].cpu() for x in (*inputs, raw)] for q, end in zip(query_lens, ends, strict=True)]
        return step, windows

    def align(self, order, running=None):
        """Tokens and blocks of some requests, in their order; columns that nobody allocated name slot 1."""
        requests = [self.requests[r] for r in order]
        width = max(len(request.table) for request in self.requests)
        tables = [request.table + [1] * (width - len(request.table)) for request in requests]
        counts = [request.num_tokens for request in requests]
        return AlignInputs(int32(counts, self.device), int32(tables, self.device), self.block_size, running)

    def step(self):
        """One step of a random batch; whoever accepts nothing, or is dropped, resumes at blocks that are cached."""
        rows = self.random.sample(range(NUM_REQUESTS), self.random.randint(1, NUM_REQUESTS))
        query_lens = [self.query_len(self.requests[r]) for r in rows]
        step, windows = self.verified(rows, query_lens)
        accepted = [
            0 if self.random.random() < 0.07 else self.random.choice((q, self.random.randint(1, q))) for q in query_lens
        ]
        dropped = [r for r in rows if self.random.random() < 0.07]
        for r in dropped:
            self.life.drop_request(r)
        counts = dict(zip(rows, accepted, strict=True))
        if self.random.random() < 0.5:
            sampled = SampledBySlot(int32([counts.get(r, 9) for r in range(NUM_REQUESTS)], self.device))
            self.life.commit_step(step, sampled, align=self.align(range(NUM_REQUESTS), self.running))
        else:
            running = self.running[rows]
            self.life.commit_step(step, SampledByRow(int32(accepted, self.device)), align=self.align(rows, running))
            self.running[rows] = running
        for r, window in zip(rows, windows, strict=True):
            request = self.requests[r]
            if r in dropped or counts[r] == 0:
                continue
            self.num_behind_history += self.waited.get(r, 0) > 0 and self.ends_a_block(request, counts[r])
            self.follow(request, window, counts[r])
            request.running = int(self.running[r])
        for r in rows:
            if r in dropped or counts[r] == 0:
                self.life.drop_request(r)
                self.requests[r] = self.resumed(self.random.choice(self.requests))

    def query_len(self, request):
        """Any window, or where it is in reach one to the end of the block, which leaves the state in its slot."""
        left = self.block_size - request.num_tokens % self.block_size
        return left if left <= T and self.random.random() < 0.5 else self.random.randint(1, T)

    def ends_a_block(self, request, num_tokens):
        return (request.num_tokens + num_tokens) // self.block_size > request.num_tokens // self.block_size

    def resumed(self, donor):
        num_blocks = self.random.randint(0, donor.num_tokens // self.block_size)
        n = num_blocks * self.block_size
        column = reference.block_column(n, self.block_size)
        return Request(n, column, donor.table[:num_blocks], donor.states[: n + 1], donor.raw[: n + WIDTH - 1])

    def follow(self, request, window, num_tokens):
        """The accepted tokens one by one, in float64."""
        q, k, v, raw_gate, raw_beta, raw = (x[:num_tokens] for x in window)
        gate = GateParams(self.layer_gate.A_log.cpu(), self.layer_gate.dt_bias.cpu(), self.layer_gate.lower_bound)
        decay, beta = kda_log_decay(raw_gate, gate), raw_beta.double().sigmoid()
        for t in range(num_tokens):
            inputs = (decay[t], unit_key(k[t]), scaled_query(q[t]), v[t].double(), beta[t])
            request.states.append(delta_step(request.states[-1], *inputs)[0])
        request.raw = torch.cat((request.raw, raw))
        request.num_tokens += num_tokens

    def check(self):
        """The running block and every full one hold what a request may resume from; nobody wrote elsewhere."""
        if self.random.random() < 0.3:
            self.life.flush()
        for r, request in enumerate(self.requests):
            if request.running >= 0 and r not in self.life.waiting_requests:
                self.check_slot(request, request.table[request.running], request.num_tokens)
            for column in range(request.num_tokens // self.block_size):
                self.check_slot(request, request.table[column], reference.block_end(column, self.block_size))
        assert self.states[[0, *self.free]].isnan().all()
        assert self.convs[[0, *self.free]].isnan().all()

    def check_slot(self, request, slot, num_tokens):
        expected = request.states[num_tokens]
        error = (self.states[slot].cpu().double() - expected).norm() / expected.norm().clamp(min=1e-30)
        assert error <= TOLERANCE, f"state after {num_tokens} tokens off by {error:.1e}"
        assert torch.equal(self.convs[slot, : WIDTH - 1].cpu(), request.history(num_tokens))


@pytest.mark.parametrize("commit", ["every_step", "deferred"])
@pytest.mark.parametrize("block_size", [1, 3, 6, 25])
def test_every_full_block_holds_the_state_at_its_end_whatever_is_accepted(block_size, commit, device, monkeypatch):
    """In long blocks tokens of several steps wait, also when a boundary is reached."""
    monkeypatch.setattr(committer, "MIN_HISTORY_HEADS", 2 * H)  # of one row, what waits is committed before
    engine = Engine(block_size, device, commit=commit, debug=True)

    for _ in range(20 if block_size < 25 else 60):
        engine.step()
        engine.check()

    assert sum(request.num_tokens // block_size for request in engine.requests) > 0
    assert engine.num_behind_history > 0 or block_size < 6 or commit == "every_step"


def test_a_step_in_align_mode_needs_the_blocks_of_its_requests(device):
    engine = Engine(4, device)
    step, _ = engine.verified([0], [3])
    sampled = SampledBySlot(int32([2] * NUM_REQUESTS, device))

    with pytest.raises(ArgumentError, match="align: expected block_size=4 as in the config, got None"):
        engine.life.commit_step(step, sampled)
    with pytest.raises(ArgumentError, match="align: expected block_size=4 as in the config, got 5"):
        engine.life.commit_step(step, sampled, align=AlignInputs(sampled.num_sampled, torch.zeros(3, 2), 5))
    engine.life.commit_step(step, sampled, align=engine.align(range(NUM_REQUESTS)))

    assert engine.life.pending_steps == ()


def test_debug_names_the_request_whose_block_has_no_slot(device):
    engine = Engine(4, device, debug=True)
    step, _ = engine.verified([2, 1], [4, 2])
    sampled, align = SampledBySlot(int32([0, 2, 3], device)), engine.align(range(NUM_REQUESTS))
    align.block_table[2] = 0

    with pytest.raises(ArgumentError, match=r"column 0 for request slot 2 in step 1, which has 0 tokens and accepts 3"):
        engine.life.commit_step(step, sampled, align=align)

    assert engine.life.pending_steps == (1,)
