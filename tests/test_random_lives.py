"""Random schedules through builder, life and commit beside a float64 twin: reference, interpreted, compiled."""

import os
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from recoverssm import committer
from tests.one_layer import OneLayer
from tests.test_lifecycle import config_of

SOME_TAKE_HISTORY = 3  # rows


class Life(RuleBasedStateMachine):
    """Random schedules on the reference, up to two steps in flight, with NaN in every slot that nobody owns.

    Three rules, as hypothesis takes each as often as the others: with a rule for every event, few steps were accepted.
    """

    device: str | None = None
    options: ClassVar[dict[str, object]] = {"debug": True}
    commit = "every_step"
    num_looks = num_accepted = 0
    ways: ClassVar[set[bool]] = set()  # whether verify took what waited, in lives in which it depends on the batch

    @initialize(
        stages=st.integers(1, 2),
        sizes=st.sampled_from([(), (2, 6)]),
        bound=st.sampled_from([-5.0, None]),
        history_from=st.sampled_from([SOME_TAKE_HISTORY, 0, 7]),
    )
    def start(self, stages, sizes, bound, history_from):
        """With deferred commits verify takes history from so many rows on; of fewer it is committed before."""
        self.preempted, self.history_from = [], history_from
        options = {"pipeline_parallel": stages, "cuda_graph_sizes": sizes, "gate_lower_bound": bound}
        self.layer = OneLayer(config_of(**options, commit=self.commit, **self.options), device=self.device)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(committer, "MIN_HISTORY_HEADS", history_from * self.layer.config.num_heads)
        for _ in range(4):
            self.layer.add()

    def teardown(self):
        if hasattr(self, "patch"):
            self.patch.undo()

    @precondition(lambda self: len(self.layer.in_flight) < self.layer.config.steps_in_flight)
    @rule(data=st.data(), prompts=st.sampled_from([0, 0, 0, 1, 2, 3]))
    def step(self, data, prompts):
        rows = data.draw(st.permutations(self.layer.idle))[: data.draw(st.sampled_from([6, 3, 1, 0]))]
        lens = data.draw(st.lists(st.integers(0, self.layer.config.spec_query_len), min_size=6, max_size=6))
        windows = list(zip(rows, lens, strict=False))
        waiting = {*self.layer.life.waiting_requests}
        step = self.layer.step(windows, min(prompts, len(self.layer.free_slots)))
        if self.history_from == SOME_TAKE_HISTORY and any(row.request_slot in waiting and n for row, n in windows):
            type(self).ways.add(self.layer.committers[0].takes_history(step.state_indices.numel()))

    @precondition(lambda self: self.layer.in_flight)
    @rule(data=st.data(), by_slot=st.booleans(), fails=st.sampled_from([False] * 9 + [True]))
    def end_after_a_reorder(self, data, by_slot, fails):
        flight = data.draw(st.sampled_from(list(self.layer.in_flight.values())))
        step = flight.step
        self.layer.requests = data.draw(st.permutations(self.layer.requests))
        if fails:
            self.layer.discard(step)
            return
        accepted = {
            slot: data.draw(st.integers(0, query_len))
            for slot, query_len in zip(step.spec_request_slots, step.spec_query_lens, strict=True)
        }
        self.layer.commit(step, accepted, by_slot=by_slot)
        type(self).num_accepted += 1

    @rule(data=st.data())
    def happen(self, data):
        happens = data.draw(st.sampled_from([name for name, may in self.may_happen.items() if may]))
        getattr(self, happens)(data)

    @property
    def may_happen(self):
        layer = self.layer
        has_room = len(layer.free_slots) > 0 and len(layer.requests) < 8
        return {
            "arrive": has_room,
            "abort": layer.requests,
            "abort_and_succeed": layer.requests,
            "preempt": layer.requests,
            "resume": self.preempted and has_room,
            "cache_a_prefix": layer.idle and layer.free_slots and len(layer.cached) < 3,
            "hit_a_prefix": layer.cached and has_room,
            "evict_a_prefix": len(layer.cached) > 1,
            "flush": True,
            "capture": not layer.in_flight,
        }

    def arrive(self, data):
        self.layer.add()

    def abort(self, data):
        return self.layer.remove(data.draw(st.sampled_from(self.layer.requests)))

    def abort_and_succeed(self, data):
        self.abort(data)
        self.layer.add()

    def preempt(self, data):
        self.preempted.append(self.abort(data))
        self.layer.free_slots.append(self.layer.free_slots.pop(0))

    def resume(self, data):
        self.layer.add(self.preempted.pop(0))

    def cache_a_prefix(self, data):
        self.layer.cache(data.draw(st.sampled_from(self.layer.idle)))

    def hit_a_prefix(self, data):
        self.layer.hit(data.draw(st.sampled_from(self.layer.cached)))

    def evict_a_prefix(self, data):
        self.layer.evict(data.draw(st.sampled_from(self.layer.cached)))

    def flush(self, data):
        layer = self.layer
        idle = [request.request_slot for request in layer.idle]
        layer.life.flush(data.draw(st.none() | st.lists(st.sampled_from(idle), unique=True) if idle else st.none()))

    def capture(self, data):
        rows, query_len = data.draw(st.integers(0, 6)), data.draw(st.integers(0, self.layer.config.spec_query_len + 2))
        self.layer.life.record_step(self.layer.builder.build_dummy(rows, query_len=query_len))

    @invariant()
    def every_request_holds_its_own_state(self):
        if hasattr(self, "layer"):
            self.layer.check()
            assert len(self.layer.life.pending_steps) == len(self.layer.in_flight)
            type(self).num_looks += 1


class InterpretedLife(Life):
    """The same with the kernels, interpreted."""

    device = "cpu"


class CompiledLife(Life):
    """The same with the forms that production takes, and without waiting for the device where it does not.

    With eight heads the betas of every token begin at a multiple of 16 bytes, and no kernel is compiled twice.
    """

    device = "cuda"
    options: ClassVar[dict[str, object]] = {
        "num_heads": 8, "key_dim": 128, "value_dim": 128, "draft_tokens": 7, "activation_dtype": torch.bfloat16,
    }  # fmt: skip


def run_steps(life, commit, num_steps, *, steps_of_a_life):
    """Live until so many looks at every slot, one after each step, and a tenth as many commits show no difference.

    Each look asserts (``OneLayer.check``). Returns how many there were. With deferred commits verify took history in
    some batches and not in others, in lives that had both.
    """
    life = type(life.__name__, (life,), {"commit": commit, "num_looks": 0, "num_accepted": 0, "ways": set()})
    num_lives, ways = -(-num_steps // steps_of_a_life), {True, False} if commit == "deferred" else set()
    for _ in range(10):
        if min(life.num_looks, 10 * life.num_accepted) >= num_steps and life.ways == ways:
            break
        num_lives *= 2  # what is drawn alike each day begins alike each time, and few lives may all be dull
        lives = settings(
            max_examples=num_lives,
            stateful_step_count=steps_of_a_life,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        run_state_machine_as_test(life, settings=lives)
    assert life.ways == ways
    return life.num_looks


COMMITS = pytest.mark.parametrize("commit", ["every_step", "deferred"])


@COMMITS
def test_1_000_steps_of_life(commit):
    assert run_steps(Life, commit, 1_000, steps_of_a_life=50) >= 1_000


@pytest.mark.long
@COMMITS
def test_50_000_steps_of_life(commit):
    assert run_steps(Life, commit, 50_000, steps_of_a_life=100) >= 50_000


@COMMITS
def test_300_steps_of_life_with_interpreted_kernels(commit):
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels are compiled here: run with TRITON_INTERPRET=1")
    assert run_steps(InterpretedLife, commit, 300, steps_of_a_life=50) >= 300


@pytest.mark.gpu
@pytest.mark.long
@COMMITS
def test_10_000_steps_of_life_with_compiled_kernels(commit):
    assert run_steps(CompiledLife, commit, 10_000, steps_of_a_life=100) >= 10_000
