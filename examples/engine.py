"""A complete toy engine: a scheduler with prefix cache, drafts, preemption and aborts around the calls of states.py.

The same engine runs on one state per request (RecoverSSM) or on one per token (full state), with drafts or without,
and produces the same tokens:

    python -m examples.engine    # without a GPU: TRITON_INTERPRET=1 python -m examples.engine
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from examples.slots import SlotPool
from examples.states import PREFILL_LEN, FullStates, RecoverSSMStates, States
from examples.toy_model import ToyModel, ToyShape
from recoverssm import AlignInputs, RecoverSSMConfig, RequestBatch, RequestSlot, StateSlot, StepMetadata
from recoverssm.reference import block_column

MAX_LEN = 64
"""Tokens of the longest request."""


@dataclass(eq=False)
class Request:
    """A prompt and what followed.

    Attributes:
        noise: [MAX_LEN, vocab], added to the logits of the token at each position: what is sampled depends on it and on
            the tokens before alone, so drafts change when a token is known, not which.
        num_computed: tokens that its state has seen.
        blocks: slot of each column of the block table that it holds; column c has the state after tokens of block c.
        slot: its place in the engine while it runs.
    """

    tokens: list[int]
    max_new_tokens: int
    noise: Tensor
    num_computed: int = 0
    is_prefilling: bool = True
    blocks: dict[int, int] = field(default_factory=dict)
    slot: RequestSlot | None = None
    generated: list[int] = field(default_factory=list)

    @property
    def num_remaining(self) -> int:
        return self.max_new_tokens - len(self.generated)


class Engine:
    """Schedules requests onto the slots of ``states``, one step at a time."""

    def __init__(self, model: ToyModel, states: States, num_slots: int, token_budget: int = 24) -> None:
        self.model, self.states, self.config = model, states, states.config
        self.block_size = states.config.block_size or MAX_LEN  # without blocks, one that is never full
        self.token_budget = token_budget
        self.slots = SlotPool(num_slots)
        self.free_request_slots = [RequestSlot(slot) for slot in range(self.config.max_num_requests)]
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.graphs = {} if self.states.device.type == "cpu" else self._capture()

    def add(self, prompt: list[int], max_new_tokens: int, seed: int) -> Request:
        noise = torch.rand(MAX_LEN, self.model.shape.vocab, generator=torch.Generator().manual_seed(seed))
        request = Request(list(prompt), max_new_tokens, -(-noise.log()).log().to(self.states.device))
        self.waiting.append(request)
        return request

    def run(self) -> int:
        """Step until every request is finished; returns the number of steps."""
        num_steps = 0
        while self.waiting or self.running:
            self.step()
            num_steps += 1
        return num_steps

    def step(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """One step; ``meanwhile`` runs between its forward pass and its commit, where a real engine is waiting."""
        windows = self._schedule()
        rows = list(windows)
        query_lens = [len(window) for window in windows.values()]
        batch = RequestBatch(
            query_lens=query_lens,
            num_drafts=[-1 if row.is_prefilling else len(windows[row]) - 1 for row in rows],
            is_prefilling=[row.is_prefilling for row in rows],
            state_slots=[StateSlot(row.blocks[self._column(row.num_computed + len(windows[row]))]) for row in rows],
            request_slots=[row.slot for row in rows if row.slot is not None],
        )
        align = self._align_inputs(rows)
        step = self.states.begin(batch)
        tokens = torch.tensor([token for window in windows.values() for token in window], dtype=torch.int64)
        logits = torch.split(self._forward(tokens.to(self.states.device), step), query_lens)
        sampled = [self._sample(row, windows[row], own) for row, own in zip(rows, logits, strict=True)]
        meanwhile()
        counts = [len(new) for new in sampled]
        self.states.commit(step, torch.tensor(counts, dtype=torch.int32, device=self.states.device), align)
        for row, new in zip(rows, sampled, strict=True):
            if row.slot is not None:  # else it was aborted meanwhile
                self._advance(row, len(windows[row]) if row.is_prefilling else len(new), new)

    def abort(self, request: Request) -> None:
        """End a request, at any time; its slots may be another's before the step it is in is committed."""
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            self._stop(request)

    def _schedule(self) -> dict[Request, list[int]]:
        """Tokens of each request in this step. The last request makes room where a slot is missing."""
        windows: dict[Request, list[int]] = {}
        budget = self.token_budget
        for request in list(self.running):
            if request in self.running and budget:
                window = self._window(request, budget)
                while request in self.running and not self._hold_blocks(request, len(window)):
                    self._preempt(self.running[-1])
                if request in self.running:
                    windows[request] = window
                    budget -= len(window)
        while self.waiting and self.free_request_slots and budget:
            request = self.waiting[0]
            request.num_computed, slot = self.slots.find(request.tokens, self.block_size)
            if slot:
                request.blocks[self._column(request.num_computed)] = slot
            window = self._window(request, budget)
            if not self._hold_blocks(request, len(window)):
                self._release_blocks(request)
                break
            self.waiting.popleft()
            request.slot = self.free_request_slots.pop()
            self.running.append(request)
            windows[request] = window
            budget -= len(window)
        return windows

    def _window(self, request: Request, budget: int) -> list[int]:
        """A chunk of the prompt that ends where a block does, or the last token and drafts."""
        first = request.num_computed
        if request.is_prefilling:
            return request.tokens[first:][: min(PREFILL_LEN, budget, self.block_size - first % self.block_size)]
        num_drafts = min(self.config.draft_tokens, budget - 1, request.num_remaining - 1)
        last = request.tokens[-1]
        return [last, *self.model.draft(last, request.noise[first + 1 :], num_drafts)]

    def _hold_blocks(self, request: Request, query_len: int) -> bool:
        """Hold a slot for every block that the step may reach, the last of them with the state to go on from."""
        here, last = self._column(request.num_computed), self._column(request.num_computed + query_len)
        for column in range(here, last + 1):
            if column not in request.blocks:
                slot = self.slots.take()
                if slot is None:
                    return False
                request.blocks[column] = slot
        if request.num_computed == 0:
            self.states.clear(request.blocks[last])
        elif here != last:
            if request.slot is not None:
                self.states.flush(request.slot)
            self.states.copy(request.blocks[here], request.blocks[last])
        return True

    def _align_inputs(self, rows: list[Request]) -> AlignInputs | None:
        """What commit has to know to write a state wherever a block ends: tokens before the step, and block tables."""
        if self.config.block_size is None:
            return None
        num_computed = torch.tensor([row.num_computed for row in rows], dtype=torch.int32)
        block_table = torch.zeros(len(rows), self._column(MAX_LEN) + 1, dtype=torch.int32)
        for row, request in enumerate(rows):
            for column, slot in request.blocks.items():
                block_table[row, column] = slot
        device = self.states.device
        return AlignInputs(num_computed.to(device), block_table.to(device), self.config.block_size)

    def _forward(self, tokens: Tensor, step: StepMetadata) -> Tensor:
        """Logits of every token, [M, vocab]; from a CUDA graph where the builder has padded the step to one."""
        if step.graph_size not in self.graphs:
            return self._run_layers(tokens, step)
        graph, graph_tokens, graph_logits = self.graphs[step.graph_size]
        graph_tokens[: len(tokens)] = tokens
        graph.replay()
        return graph_logits[: len(tokens)]

    def _capture(self) -> dict[int | None, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]]:
        """By number of rows: a graph of the forward pass, the tokens it reads and the logits it writes."""
        graphs: dict[int | None, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        for num_rows in self.config.cuda_graph_sizes:
            step = self.states.begin_dummy(num_rows)
            tokens = torch.zeros(num_rows * self.config.spec_query_len, dtype=torch.int64, device=self.states.device)
            self._run_layers(tokens, step)  # what compiles or allocates must not do it in the capture
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                logits = self._run_layers(tokens, step)
            graphs[num_rows] = (graph, tokens, logits)
        return graphs

    def _run_layers(self, tokens: Tensor, step: StepMetadata) -> Tensor:
        x = self.model.embed(tokens)
        for layer in range(self.model.shape.num_layers):
            out = self.states.attend(step, layer, *self.model.project(layer, x))
            x = self.model.mix(layer, x, out)
        return self.model.logits(x)

    def _sample(self, request: Request, window: list[int], logits: Tensor) -> list[int]:
        """New tokens: those of the drafts that the model would have sampled, and one more. None within a prompt."""
        after = request.num_computed + 1
        best = (logits + request.noise[after : after + len(window)]).argmax(-1).tolist()
        if request.is_prefilling:
            return best[-1:] if request.num_computed + len(window) == len(request.tokens) else []
        num_right = next((i for i, draft in enumerate(window[1:]) if draft != best[i]), len(window) - 1)
        return best[: num_right + 1]

    def _advance(self, request: Request, num_tokens: int, new: list[int]) -> None:
        """Take note of what a step has computed and sampled, and give back the blocks behind it."""
        request.num_computed += num_tokens
        request.tokens += new
        request.generated += new
        request.is_prefilling &= not new
        running = self._column(request.num_computed)
        for column in sorted(request.blocks):
            end = (column + 1) * self.block_size
            if end <= request.num_computed:
                self.slots.keep(request.tokens[:end], request.blocks[column])
            if column < running:
                self.slots.release(request.blocks.pop(column))
        if not request.num_remaining:
            self._stop(request)

    def _preempt(self, request: Request) -> None:
        """Let a request begin again later; what it has generated is then part of its prompt."""
        self._stop(request)
        request.num_computed, request.is_prefilling = 0, True
        self.waiting.appendleft(request)

    def _stop(self, request: Request) -> None:
        assert request.slot is not None
        self.states.drop(request.slot)
        self.free_request_slots.append(request.slot)
        request.slot = None
        self.running.remove(request)
        self._release_blocks(request)

    def _release_blocks(self, request: Request) -> None:
        for slot in request.blocks.values():
            self.slots.release(slot)
        request.blocks.clear()

    def _column(self, num_tokens: int) -> int:
        """Block of the last of so many tokens; the first for none."""
        return max(block_column(num_tokens, self.block_size), 0)


def make_engine(
    states: type[States], draft_tokens: int, block_size: int | None, defers_commits: bool, device: str
) -> Engine:
    """Room for two requests at a time, and with blocks for a few states at their ends."""
    shape, num_slots = ToyShape(head_dim=128 if device == "cuda" else 16), 3 if block_size is None else 10
    model = ToyModel(shape, device)
    config = RecoverSSMConfig(
        num_heads=shape.num_heads,
        draft_tokens=draft_tokens,
        max_num_requests=2,
        key_dim=shape.head_dim,
        value_dim=shape.head_dim,
        activation_dtype=torch.float32,
        cache_mode="none" if block_size is None else "align",
        block_size=block_size,
        commit="deferred" if defers_commits else "every_step",
        cuda_graph_sizes=(1, 2),
    )
    return Engine(model, states(model, config, num_slots), num_slots)


def main() -> None:
    """Serve three requests in several ways, and compare what they got."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    outputs = []
    ways: list[tuple[str, type[States], int, int | None, bool]] = [
        ("without speculation", FullStates, 0, None, False),
        ("full state", FullStates, 3, None, False),
        ("RecoverSSM", RecoverSSMStates, 3, None, False),
        ("RecoverSSM with deferred commits", RecoverSSMStates, 3, None, True),
        ("RecoverSSM with prefix caching", RecoverSSMStates, 3, 4, False),
        ("RecoverSSM with prefix caching and deferred commits", RecoverSSMStates, 3, 4, True),
    ]
    for name, states, draft_tokens, block_size, defers_commits in ways:
        engine = make_engine(states, draft_tokens, block_size, defers_commits, device)
        requests = [engine.add(list(range(3 * i + 5)), max_new_tokens=6, seed=i) for i in range(3)]
        num_steps = engine.run()
        outputs.append([request.generated for request in requests])
        num_bytes = sum(pool.numel() * pool.element_size() for pool in engine.states.pools)
        print(f"{name}: {num_steps} steps, {num_bytes / 1024:.0f} KiB of states")
    assert all(output == outputs[0] for output in outputs)
    print(f"the same tokens each time: {outputs[0]}")


if __name__ == "__main__":
    main()
