"""The engine of examples/, on a backend of choice, for tests to run and to spoil."""

import random
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from examples import states
from examples.engine import Engine
from examples.states import RecoverSSMStates
from examples.toy_model import CONV_WIDTH, ToyModel, ToyShape
from recoverssm import AlignPlan, CommitPlan, RecoverSSMConfig, committer, reference


class ReferenceContext:
    """``CommitContext`` by the reference."""

    def __init__(self, pools, records, windows, gate, *, max_num_rows, block_size):
        self.pools, self.records, self.windows, self.gate = pools, records, windows, gate
        self.max_num_rows, self.block_size = max_num_rows, block_size
        self.device, self.num_records = pools[0].device, records[0].correction.shape[0]
        self.history_len = records[0].history_len

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
    ):
        assert len(state_indices) <= self.max_num_rows
        assert self.block_size == (align and align.block_size)
        T = self.records[0].correction.shape[2] - self.history_len
        plan = AlignPlan.zeros(
            len(state_indices), spec_query_len=T, block_size=self.block_size or T, device=num_sampled.device
        )
        rows = (num_sampled, query_start_loc, state_indices)
        options = {"spec_query_len": T, "request_indices": request_indices}
        if align is None:
            reference.commit_plan(*rows, plan.commit, **options)
        else:
            reference.align_plan(*rows, align, plan, **options)
        boundaries = None if align is None else plan.boundaries
        now, boundaries_now, entries = plan.commit, boundaries, None
        if record_rows is not None:
            now, entries = replace(now, commit_lens=torch.empty_like(now.commit_lens)), record_rows.written
            options = {"history_len": self.history_len}
            if boundaries is not None:
                boundaries_now = replace(boundaries, lens=torch.empty_like(boundaries.lens))
                options |= {"boundary_lens": boundaries.lens, "boundary_lens_now": boundaries_now.lens}
            reference.defer_plan(plan.commit, record_rows, waiting_lens, now.commit_lens, **options)
        options = {"record_rows": entries, "boundaries": boundaries_now}
        reference.commit_state(self.pools, self.records, now, self.gate, **options)
        reference.compact_conv(self.windows, plan.commit, conv_width=CONV_WIDTH, boundaries=boundaries)
        return plan.commit

    def takes_history(self, num_rows):
        return num_rows * self.pools[0].shape[1] >= committer.MIN_HISTORY_HEADS

    def plan_waiting(self, waiting, waiting_lens, state_indices):
        return torch.where((waiting >= 0) & (state_indices > 0), waiting_lens[waiting.long()], 0)

    def commit_waiting(self, waiting, waiting_lens, state_indices):
        plan = CommitPlan(self.plan_waiting(waiting, waiting_lens, state_indices), state_indices, state_indices)
        reference.commit_state(self.pools, self.records, plan, self.gate, record_rows=waiting)


@contextmanager
def on(backend):
    """Engines made and run inside are on the float64 "reference", else on kernels on a "cpu" or "cuda".

    With deferred commits verify takes history in their batches of two rows or more.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(committer, "MIN_HISTORY_HEADS", 2 * ToyShape().num_heads)
        if backend == "reference":
            patch.setattr(states, "verify", reference.verify)
            patch.setattr(states, "full_state_verify", reference.full_state_verify)
            patch.setattr(states, "CommitContext", ReferenceContext)
        yield


def make_engine(kind=RecoverSSMStates, *, backend="reference", draft_tokens=3, num_slots=6, **options):
    device, head_dim = ("cuda", 128) if backend == "cuda" else ("cpu", 16)
    shape = ToyShape(head_dim=head_dim)
    config = RecoverSSMConfig(
        **{
            "num_heads": shape.num_heads,
            "draft_tokens": draft_tokens,
            "max_num_requests": 4,
            "key_dim": head_dim,
            "value_dim": head_dim,
            "activation_dtype": torch.float32,
        }
        | options
    )
    return Engine(ToyModel(shape, device), kind(ToyModel(shape, device), config, num_slots), num_slots)


def add_requests(engine, number, seed=0, longest=20):
    """Requests of many lengths; some prompts begin alike, some leave one token for their last chunk."""
    pick = random.Random(seed)
    common = [pick.randrange(48) for _ in range(longest)]
    requests = []
    for i in range(number):
        prompt = common[: pick.randrange(longest)] + [pick.randrange(48) for _ in range(pick.choice((1, 2, 8)))]
        requests.append(engine.add(prompt, max_new_tokens=pick.randrange(2, longest), seed=100 * seed + i))
    return requests


def generated(requests):
    return [request.generated for request in requests]
