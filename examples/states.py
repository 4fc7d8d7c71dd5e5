"""What the layers of the toy engine remember: with RecoverSSM one state per request, without it one per token."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from examples.toy_model import CONV_WIDTH, ToyModel, convolve
from recoverssm import (
    AlignInputs,
    CommitContext,
    GateParams,
    MetadataBuilder,
    RecordRows,
    Records,
    RecoverSSMConfig,
    RecoverSSMState,
    RequestBatch,
    RequestSlot,
    SampledByRow,
    StepMetadata,
    full_state_verify,
    verify,
    warm_up,
)

PREFILL_LEN = 7
"""Tokens of a prompt in one step. The toy prefills with the op that stores states token by token, which takes windows
of 16; a real engine has a chunked kernel."""

HISTORY = CONV_WIDTH - 1


class States(ABC):
    """Pools of states and conv windows, and the part of a layer that reads and writes them."""

    states_per_slot = 1

    def __init__(self, model: ToyModel, config: RecoverSSMConfig, num_slots: int) -> None:
        self.model, self.config, self.device = model, config, model.head.device
        H, T, K, V = config.num_heads, config.spec_query_len, config.key_dim, config.value_dim
        P, C = 1 + (num_slots - 1) * self.states_per_slot, config.layer_shape.conv_channels
        layers = range(model.shape.num_layers)
        self.pools = [torch.zeros(P, H, V, K, device=self.device) for _ in layers]
        self.windows = [torch.zeros(num_slots, HISTORY + T - 1, C, device=self.device) for _ in layers]
        self.builder = MetadataBuilder(config, num_state_slots=num_slots, device=self.device)

    def pool_slots(self, slots: Tensor) -> Tensor:
        """Where the (first) state of each slot lies in the pools."""
        return slots

    def clear(self, slot: int) -> None:
        """Make a slot that of a request without tokens, in all layers."""
        place = self.pool_slots(torch.tensor(slot))
        for pool, window in zip(self.pools, self.windows, strict=True):
            pool[place], window[slot] = 0, 0

    def copy(self, source: int, target: int) -> None:
        """Give a slot the state and the history of another one, in all layers."""
        here, there = self.pool_slots(torch.tensor((source, target)))
        for pool, window in zip(self.pools, self.windows, strict=True):
            pool[there], window[target] = pool[here], window[source]

    def begin(self, batch: RequestBatch) -> StepMetadata:
        """Sort the rows of a step, before its forward pass."""
        step = self.builder.build(batch)
        slots = [batch.state_slots[row] for row in step.other_request_rows]
        self.prefill_slots = torch.tensor(slots, dtype=torch.int32, device=self.device)
        return step

    def begin_dummy(self, num_rows: int) -> StepMetadata:
        """A step of so many rows without requests, for a capture."""
        return self.builder.build_dummy(num_rows)

    def attend(self, step: StepMetadata, layer: int, qkv: Tensor, raw_gate: Tensor, raw_beta: Tensor) -> Tensor:
        """Outputs of a layer's heads, [M, H, V]: speculative rows and prompts each go their way."""
        out = torch.zeros_like(raw_gate)
        for tokens, run, has_rows in (
            (step.spec_tokens, self.verify, step.state_indices.numel() > 0),
            (step.other_tokens, self.prefill, bool(step.other_request_rows)),
        ):
            if has_rows:
                out[tokens] = run(step, layer, qkv[tokens], raw_gate[tokens], raw_beta[tokens])
        return out

    def prefill(self, step: StepMetadata, layer: int, qkv: Tensor, raw_gate: Tensor, raw_beta: Tensor) -> Tensor:
        """Take in chunks of prompts: each slot holds the state and the history after its chunk."""
        starts, slots, windows = step.other_query_start_loc, self.prefill_slots, self.windows[layer]
        qkv, sequence = convolve(windows, qkv, starts, slots, self.model.w_conv[layer], PREFILL_LEN)
        lens, history = starts.diff()[:, None], torch.arange(HISTORY, device=self.device)
        rows = torch.arange(len(slots), device=self.device)[:, None]
        windows[slots[:, None], history] = sequence[rows, lens + history]
        places = self.pool_slots(slots)
        targets = places.new_zeros(len(slots), PREFILL_LEN + 1).scatter_(1, lens.long() - 1, places[:, None])
        targets[:, PREFILL_LEN] = places  # where a chunk starts from
        sources = torch.full_like(places, PREFILL_LEN + 1)
        q, k, v = self.heads(qkv)
        pool, gate = self.pools[layer], self.gate(layer)
        return full_state_verify(q, k, v, raw_gate, raw_beta, pool, gate, starts, targets, sources)

    def roll(self, step: StepMetadata, layer: int, sequence: Tensor) -> None:
        """Leave history and tokens of each speculative row in its window, the oldest out."""
        windows, slots = self.windows[layer], step.state_indices[:, None]
        positions = torch.arange(windows.shape[1], device=self.device)
        lens = step.query_start_loc.diff()[:, None]
        kept = (positions < HISTORY - 1 + lens) & (lens > 0) & (slots > 0)
        windows[slots, positions] = torch.where(kept[..., None], sequence[:, 1:], windows[slots, positions])

    def gate(self, layer: int) -> GateParams:
        gate = self.model.gate
        return GateParams(gate.A_log[layer], gate.dt_bias[layer], gate.lower_bound)

    def heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, [M, H, K] each."""
        q, k, v = qkv.view(len(qkv), 3, self.config.num_heads, -1).unbind(1)
        return q, k, v

    @abstractmethod
    def verify(self, step: StepMetadata, layer: int, qkv: Tensor, raw_gate: Tensor, raw_beta: Tensor) -> Tensor:
        """Outputs of the speculative rows."""

    @abstractmethod
    def commit(self, step: StepMetadata, num_sampled: Tensor, align: AlignInputs | None) -> None:
        """Keep so many of each row's tokens, by request row, the bonus token included."""

    @abstractmethod
    def drop(self, request_slot: RequestSlot) -> None:
        """Leave a request out of the commit to come; its state is of no use any more."""

    @abstractmethod
    def flush(self, request_slot: RequestSlot) -> None:
        """Have its state in its slot, as somebody is about to read it there."""


class RecoverSSMStates(States):
    """One state per slot, moved on in all layers by commit; where commits are deferred, not by every one."""

    def __init__(self, model: ToyModel, config: RecoverSSMConfig, num_slots: int) -> None:
        super().__init__(model, config, num_slots)
        rows, H, C = config.num_record_rows, config.num_heads, config.spec_query_len + config.history_len
        self.records = [
            Records(
                correction=torch.zeros(rows, H, C, config.value_dim, device=self.device),
                key_gate=torch.zeros(rows, H, C, 2 * config.key_dim, device=self.device),
                history_len=config.history_len,
            )
            for _ in self.pools
        ]
        context = CommitContext(
            self.pools,
            self.records,
            self.windows,
            model.gate,
            max_num_rows=config.max_num_requests,
            block_size=config.block_size,
        )
        self.life = RecoverSSMState(config, [context])
        self.record_rows: RecordRows | None = None  # of the step that runs
        warm_up(config, self.device)

    def begin(self, batch: RequestBatch) -> StepMetadata:
        step = super().begin(batch)
        self.record_rows = self.life.record_step(step)
        return step

    def begin_dummy(self, num_rows: int) -> StepMetadata:
        step = super().begin_dummy(num_rows)
        self.record_rows = self.life.record_step(step)
        return step

    def verify(self, step: StepMetadata, layer: int, qkv: Tensor, raw_gate: Tensor, raw_beta: Tensor) -> Tensor:
        starts, slots, T = step.query_start_loc, step.state_indices, self.config.spec_query_len
        qkv, sequence = convolve(self.windows[layer], qkv, starts, slots, self.model.w_conv[layer], T)
        self.roll(step, layer, sequence)
        q, k, v = self.heads(qkv)
        pool, records, gate = self.pools[layer], self.records[layer], self.gate(layer)
        return verify(q, k, v, raw_gate, raw_beta, pool, records, gate, starts, slots, record_rows=self.record_rows)

    def commit(self, step: StepMetadata, num_sampled: Tensor, align: AlignInputs | None) -> None:
        self.life.commit_step(step, SampledByRow(num_sampled), align=align)

    def drop(self, request_slot: RequestSlot) -> None:
        self.life.drop_request(request_slot)

    def flush(self, request_slot: RequestSlot) -> None:
        self.life.flush([request_slot])


class FullStates(States):
    """What RecoverSSM does without: T states per slot, one after each token of a window; the next step picks one."""

    def __init__(self, model: ToyModel, config: RecoverSSMConfig, num_slots: int) -> None:
        self.states_per_slot = config.spec_query_len
        super().__init__(model, config, num_slots)
        self.accepted = torch.ones(num_slots, dtype=torch.int32, device=self.device)

    def pool_slots(self, slots: Tensor) -> Tensor:
        return torch.where(slots > 0, 1 + (slots - 1) * self.states_per_slot, 0).to(slots.dtype)

    def prefill(self, step: StepMetadata, layer: int, qkv: Tensor, raw_gate: Tensor, raw_beta: Tensor) -> Tensor:
        self.accepted[self.prefill_slots] = 1
        return super().prefill(step, layer, qkv, raw_gate, raw_beta)

    def verify(self, step: StepMetadata, layer: int, qkv: Tensor, raw_gate: Tensor, raw_beta: Tensor) -> Tensor:
        starts, slots, T = step.query_start_loc, step.state_indices, self.config.spec_query_len
        accepted, weight = self.accepted[slots], self.model.w_conv[layer]
        qkv, sequence = convolve(self.windows[layer], qkv, starts, slots, weight, T, first=accepted[:, None] - 1)
        self.roll(step, layer, sequence)
        places = self.pool_slots(slots)[:, None] + torch.arange(T, dtype=torch.int32, device=self.device)
        q, k, v = self.heads(qkv)
        pool, gate = self.pools[layer], self.gate(layer)
        return full_state_verify(q, k, v, raw_gate, raw_beta, pool, gate, starts, places, accepted)

    def commit(self, step: StepMetadata, num_sampled: Tensor, align: AlignInputs | None) -> None:
        assert align is None  # states at block ends are not kept here
        for row, request_row in enumerate(step.spec_request_rows):
            self.accepted[step.state_indices[row]] = num_sampled[request_row]
        step.release()

    def drop(self, request_slot: RequestSlot) -> None:
        """Nothing is left to do for it: what a prefill writes to its slot comes later."""

    def flush(self, request_slot: RequestSlot) -> None:
        """Every state is in its slot."""
