"""Convolution, verify and commit in one CUDA graph: replays do what calls do, with other slots, counts and rows."""

import pytest
import torch

from examples.states import RecoverSSMStates
from examples.toy_model import ToyModel, ToyShape
from recoverssm import AlignInputs, RecoverSSMConfig, RequestBatch, SampledByRow, committer
from tests.windows import int32

ROWS, T, COMPUTED = 4, 4, 2
STEPS = [  # tokens, sampled and state slot of each row
    ([4, 4, 4, 4], [4, 1, 2, 3], [1, 4, 7, 10]),
    ([3, 1], [2, 1], [10, 2]),
    ([1, 4, 2], [1, 0, 2], [8, 5, 3]),
    ([4, 4, 4, 4], [0, 4, 4, 1], [2, 11, 6, 9]),
]


class Steps:
    """States of two layers, and steps of at most four rows on inputs that stay where they are."""

    def __init__(self, device, block_size=None, commit="every_step"):
        self.device = device
        model = ToyModel(ToyShape(head_dim=128 if device == "cuda" else 16), device)
        config = RecoverSSMConfig(
            num_heads=2,
            draft_tokens=T - 1,
            max_num_requests=ROWS,
            key_dim=model.shape.head_dim,
            value_dim=model.shape.head_dim,
            activation_dtype=torch.float32,
            cache_mode="none" if block_size is None else "align",
            block_size=block_size,
            commit=commit,
            cuda_graph_sizes=(ROWS,),
        )
        self.states = RecoverSSMStates(model, config, num_slots=13)
        (self.context,) = self.states.life._committers
        torch.manual_seed(0)
        for tensor in (*self.states.pools, *self.states.windows):
            tensor.copy_(torch.randn(tensor.shape))
        x = torch.randn(ROWS * T, model.shape.hidden).to(device)
        self.inputs = [model.project(layer, x) for layer in range(2)]
        self.sampled = int32([0] * ROWS, device)
        self.align = None
        if block_size is not None:
            self.align = AlignInputs(int32([0] * ROWS, device), int32([[0] * 4] * ROWS, device), block_size)

    def build(self, lens, sampled, slots):
        """Metadata of a step whose requests have COMPUTED tokens, so that full windows may cross two boundaries."""
        batch = RequestBatch(lens, [n - 1 for n in lens], [False] * len(lens), slots, list(range(len(lens))))
        self.sampled[: len(lens)] = int32(sampled, self.device)
        if self.align is not None:
            self.align.num_computed[:] = COMPUTED
            for row, (slot, n) in enumerate(zip(slots, lens, strict=True)):
                last = (COMPUTED + n - 1) // self.align.block_size
                neighbour = slot + 1 if slot % 3 else slot - 2  # of the three slots that no other row is given
                self.align.block_table[row] = int32([neighbour] * last + [slot] + [0] * (3 - last), self.device)
        step = self.states.builder.build(batch)
        assert step.graph_size == ROWS
        return step

    def verify(self, step):
        for layer, inputs in enumerate(self.inputs):
            self.states.verify(step, layer, *inputs)

    def run(self, step):
        self.verify(step)
        rows = (self.sampled, step.query_start_loc, step.state_indices)
        self.context.commit(*rows, request_indices=step.request_rows, align=self.align)

    def capture(self, run=None):
        """What replays a whole step, or ``run``. Without a card: calls with the metadata of the dummy step."""
        run = self.run if run is None else run
        dummy = self.states.begin_dummy(ROWS)
        rows = self.states.record_rows
        if self.device == "cpu":
            return lambda: setattr(self.states, "record_rows", rows) or run(dummy)
        run(dummy)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(dummy)
        return graph.replay


@pytest.mark.parametrize("block_size", [None, 3], ids=["no blocks", "blocks"])
def test_a_step_replays_with_other_slots_counts_and_rows(block_size, device):
    called, replayed = Steps(device, block_size), Steps(device, block_size)
    before = [pool.clone() for pool in replayed.states.pools]
    replay = replayed.capture()
    for pool, kept in zip(replayed.states.pools, before, strict=True):
        assert torch.equal(pool[1:], kept[1:])  # a dummy step commits nothing

    for lens, sampled, slots in STEPS:
        for steps in (called, replayed):
            step = steps.build(lens, sampled, slots)
            steps.run(step) if steps is called else replay()
            step.release()

        assert not torch.equal(called.states.pools[0], before[0])
        for mine, theirs in (
            *zip(replayed.states.pools, called.states.pools, strict=True),
            *zip(replayed.states.windows, called.states.windows, strict=True),
        ):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("takes_history", [True, False])
def test_a_verify_replays_whatever_entries_of_the_records_its_rows_are_given(takes_history, device, monkeypatch):
    """One graph serves all steps of deferred commits; of more requests than rows the longest waiting are flushed."""
    monkeypatch.setattr(committer, "MIN_HISTORY_HEADS", 2 * (ROWS if takes_history else ROWS + 1))
    called, replayed = (Steps(device, commit="deferred") for _ in range(2))
    replay = replayed.capture(replayed.verify)
    entries, waited = set(), set()

    for lens, sampled, slots in [*STEPS, STEPS[0], *STEPS]:
        for steps in (called, replayed):
            batch = RequestBatch(lens, [n - 1 for n in lens], [False] * len(lens), slots, slots)
            step = steps.states.begin(batch)
            steps.verify(step) if steps is called else replay()
            rows = steps.states.record_rows
            entries |= {(slot, entry) for slot, entry in zip(slots, rows.written.tolist(), strict=False)}
            assert (rows.history_lens is not None) == takes_history
            waited |= set(() if rows.history_lens is None else rows.history_lens.tolist())
            steps.states.life.commit_step(step, SampledByRow(int32(sampled, device)))
        assert called.states.life.waiting_requests
    for steps in (called, replayed):
        steps.states.life.flush()
        steps.states.life.check_idle()

    assert len(entries) > 2 * ROWS
    assert waited == ({0, 1, 2, 3, 4} if takes_history else set())
    for mine, theirs in (
        *zip(replayed.states.pools, called.states.pools, strict=True),
        *zip(replayed.states.windows, called.states.windows, strict=True),
    ):
        assert torch.equal(mine, theirs)
