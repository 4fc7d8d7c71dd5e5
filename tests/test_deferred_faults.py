"""Deferred commits where something goes wrong: calls that raise, steps in another order, misuse; no token is lost."""

import pytest
import torch

from recoverssm import ArgumentError, RecordRows, RequestBatch, ShapeError, StepError, committer
from tests.deferred import advance, layer_of
from tests.one_layer import OneLayer
from tests.test_deferred_records import context_of, records_of
from tests.test_lifecycle import T, config_of
from tests.windows import int32


class LaunchFailedError(Exception):
    pass


def fail(*args, **options):
    raise LaunchFailedError


def batch_of(request, query_len=T, state_slot=None):
    slot = request.state_slot if state_slot is None else state_slot
    return RequestBatch([query_len], [query_len - 1], [False], [slot], [request.request_slot])


def entries(layer):
    """Those of the pool, however they are held."""
    waiting = layer.life._waiting
    written = [entry for step in waiting._written.values() for entry in step.entries if entry >= 0]
    return sorted([*waiting._free, *(each.entry for each in waiting._of.values()), *written])


def test_a_flush_that_raises_loses_no_token_and_no_entry(monkeypatch):
    """By itself, or for a decode that is too long for the window."""
    layer = layer_of()
    requests = [layer.add() for _ in range(3)]
    advance(layer, requests)
    step = layer.builder.build(batch_of(requests[0], T + 1))

    with monkeypatch.context() as patch:
        patch.setattr(layer.committers[0], "commit_waiting", fail)
        for call in (layer.life.flush, lambda: layer.life.record_step(step)):
            with pytest.raises(LaunchFailedError):
                call()
    assert layer.life.waiting_requests == (0, 1, 2)
    assert entries(layer) == list(range(layer.config.num_record_rows))
    layer.life.record_step(step)
    layer.life.flush()

    layer.check()


@pytest.mark.parametrize("name", ["plan_waiting", "commit_waiting"])
def test_a_step_that_could_not_be_recorded_finds_what_waits_when_it_is_recorded_again(name, monkeypatch):
    monkeypatch.setattr(committer, "MIN_HISTORY_HEADS", 0 if name == "plan_waiting" else 99)
    layer = layer_of()
    request = layer.add()
    advance(layer, [request])
    step = layer.builder.build(batch_of(request))

    with monkeypatch.context() as patch:
        patch.setattr(layer.committers[0], name, fail)
        with pytest.raises(LaunchFailedError):
            layer.life.record_step(step)
    assert layer.life.waiting_requests == (request.request_slot,)
    assert entries(layer) == list(range(layer.config.num_record_rows))
    layer.life.discard_step(step)
    advance(layer, [request])
    layer.life.flush()

    layer.check()


def test_a_flush_after_record_leaves_what_that_steps_verifies_read(device, monkeypatch):
    """Also the flush that another lane's step brings about."""
    monkeypatch.setattr(committer, "MIN_HISTORY_HEADS", 0)
    layer = OneLayer(config_of(commit="deferred", pipeline_parallel=2), device=device)
    first, second, third = (layer.add() for _ in range(3))
    step = layer.step([(first, T), (second, T), (third, T)])
    layer.commit(step, {first.request_slot: 3, second.request_slot: 1, third.request_slot: 2})

    rows = layer.life.record_step(layer.builder.build(batch_of(first)))
    layer.life.flush([second.request_slot])
    assert rows.history_lens.tolist() == [3]
    layer.life.record_step(layer.builder.build(batch_of(third, T + 1)))

    assert rows.history_lens.tolist() == [3]
    assert layer.life.waiting_requests == ()


def test_debug_names_a_request_that_has_lost_its_slot():
    """A row without a slot takes no history, and what waited would be forgotten."""
    layer = layer_of(debug=True)
    request = layer.add()
    advance(layer, [request])

    with pytest.raises(
        StepError, match=r"3 accepted tokens wait after step 1 for state slot 1.* now it reads state slot 0"
    ):
        layer.life.record_step(layer.builder.build(batch_of(request, state_slot=0)))


def test_debug_lets_rows_without_tokens_name_any_slot():
    layer = layer_of(debug=True)
    request, other = layer.add(), layer.add()
    advance(layer, [request, other])
    slots = [0, layer.free_slots[0]]
    batch = RequestBatch([0, 0], [0, 0], [False, False], slots, [request.request_slot, other.request_slot])
    step = layer.builder.build(batch)

    layer.life.record_step(step)
    layer.life.discard_step(step)
    layer.life.flush()

    layer.check()


@pytest.mark.parametrize("commit", ["every_step", "deferred"])
def test_a_dummy_whose_lane_was_given_away_is_refused(commit):
    """It would take the entries of the step there."""
    layer = OneLayer(config_of(commit=commit))
    request = layer.add()
    dummy = layer.builder.build_dummy(1)
    step = layer.step([(request, T)])

    with pytest.raises(StepError, match="dummy step 1 cannot be recorded: its lane is that of step 2, which has been"):
        layer.life.record_step(dummy)
    layer.commit(step, {request.request_slot: 2})
    layer.life.flush()

    layer.check()


@pytest.mark.parametrize("commit", ["every_step", "deferred"])
def test_a_long_decode_of_a_request_in_flight_is_refused(commit):
    layer = OneLayer(config_of(commit=commit, pipeline_parallel=2))
    request = layer.add()
    layer.step([(request, T)])

    with pytest.raises(StepError, match="step 2 cannot be recorded: request slot 0 is also in step 1"):
        layer.life.record_step(layer.builder.build(batch_of(request, T + 1)))


@pytest.mark.parametrize("commit", ["every_step", "deferred"])
def test_request_slots_on_the_device_are_refused_and_not_passed_over(commit):
    layer = OneLayer(config_of(commit=commit))
    request = layer.add()
    advance(layer, [request])

    for call in (layer.life.flush, lambda slots: layer.life.drop_request(slots[0])):
        with pytest.raises(ArgumentError, match="request slots: expected numbers on the host, got a tensor"):
            call(torch.tensor([request.request_slot]))


def test_half_of_what_defers_is_refused():
    one, context = int32([1], "cpu"), context_of(records_of(4))
    for half in ({"record_rows": RecordRows(one)}, {"waiting_lens": one}):
        with pytest.raises(ArgumentError, match="record_rows, waiting_lens: expected both, with deferred"):
            context.commit(one, int32([0, 1], "cpu"), one, **half)


def test_rows_without_tokens_and_padding_neither_take_nor_give_back_an_entry():
    layer = layer_of(cuda_graph_sizes=(4,))
    first, second, third = (layer.add() for _ in range(3))
    advance(layer, [first, second])
    layer.commit(layer.step([(first, T), (second, 0)]), {first.request_slot: 1, second.request_slot: 0})
    layer.discard(layer.step([(second, 0), (third, T)]))

    assert entries(layer) == list(range(layer.config.num_record_rows))


def test_lens_of_fewer_entries_than_there_are_are_refused_as_their_tokens_would_be_forgotten():
    one, context, short = int32([1], "cpu"), context_of(records_of(4)), int32([0] * 3, "cpu")
    rows = (one, int32([0, 1], "cpu"), one)
    for call in (
        lambda: context.commit(*rows, record_rows=RecordRows(int32([3], "cpu")), waiting_lens=short),
        lambda: context.plan_waiting(int32([3], "cpu"), short, one),
        lambda: context.commit_waiting(int32([3], "cpu"), short, one),
    ):
        with pytest.raises(ShapeError, match=r"waiting_lens: expected \[R=4\], got \[3\]"):
            call()


def test_history_where_records_have_no_room_for_it_is_refused():
    one, context = int32([1], "cpu"), context_of(records_of(4, history_len=0))

    with pytest.raises(ArgumentError, match="record_rows: expected no history_lens with history_len=0, got some"):
        context.commit(
            one, int32([0, 1], "cpu"), one, record_rows=RecordRows(one, one), waiting_lens=int32([0] * 4, "cpu")
        )


def test_a_window_that_has_no_room_to_wait_is_committed_at_once():
    """Which no config asks for: entries have room for a whole window."""
    records, lens = records_of(2, history_len=2), int32([9, 9], "cpu")
    for held in (records.correction, records.key_gate):
        held.normal_()
    context = context_of(records)
    rows = (int32([2, 4], "cpu"), int32([0, 4, 8], "cpu"), int32([1, 2], "cpu"))

    context.commit(*rows, record_rows=RecordRows(int32([1, 0], "cpu")), waiting_lens=lens)

    assert lens.tolist() == [0, 2]
    assert [bool(state.any()) for state in context._states.tensors[0]] == [False, False, True]
