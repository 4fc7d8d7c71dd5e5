"""Deferred commits before anybody else reads a state: flushes, and what debug and a shutdown say without one."""

import pytest

from recoverssm import RequestBatch, StepError
from tests.deferred import advance, holds_truth, layer_of, limit
from tests.test_lifecycle import T

__all__ = ["limit"]  # a fixture


def test_what_is_in_flight_cannot_be_flushed():
    layer = layer_of()
    busy, idle = layer.add(), layer.add()
    advance(layer, [busy, idle])
    step = layer.step([(busy, T)])

    with pytest.raises(StepError, match="request slot 0 cannot be flushed: it is in step 2"):
        layer.life.flush([busy.request_slot, idle.request_slot])
    assert layer.life.waiting_requests == (idle.request_slot,)
    layer.life.flush()  # all that wait
    layer.commit(step, {busy.request_slot: 1})
    layer.life.flush([busy.request_slot])

    layer.check()


def test_who_has_no_tokens_in_a_step_can_be_flushed_meanwhile():
    layer = layer_of()
    busy, idle = layer.add(), layer.add()
    advance(layer, [busy, idle])
    step = layer.step([(busy, T), (idle, 0)])

    layer.life.flush([idle.request_slot])

    assert holds_truth(layer, idle)
    layer.commit(step, {busy.request_slot: 1, idle.request_slot: 0})
    assert layer.life.waiting_requests == (busy.request_slot,)
    layer.life.flush()
    layer.check()


def test_a_prefix_is_copied_after_a_flush_and_would_lack_tokens_without(monkeypatch):
    for flushes in (True, False):
        layer = layer_of()
        request = layer.add()
        advance(layer, [request])
        if not flushes:
            monkeypatch.setattr(layer.life, "flush", lambda request_slots: None)
        hit = layer.hit(layer.cache(request))
        advance(layer, [hit])
        if flushes:
            layer.check()
        else:
            with pytest.raises(AssertionError, match="off by"):
                layer.check()


def test_a_decode_too_long_for_the_window_finds_its_state():
    layer = layer_of()
    request = layer.add()
    advance(layer, [request])
    batch = RequestBatch([T + 1], [T], [False], [request.state_slot], [request.request_slot])

    step = layer.builder.build(batch)
    layer.life.record_step(step)

    assert step.long_request_rows == (0,)
    layer.check()


def test_debug_names_step_slot_and_remedy_where_a_state_moves_without_a_flush():
    layer = layer_of(debug=True)
    request = layer.add()
    advance(layer, [request])
    layer.copy(request.state_slot, layer.free_slots[0])
    request.state_slot = layer.free_slots.pop(0)

    expected = (
        r"step 2 cannot be recorded: 3 accepted tokens wait after step 1 for state slot 1 of request slot 0, and now "
        r"it reads state slot 2; call flush\(\[0\]\) before the state is read or moved, or drop_request\(0\)"
    )
    with pytest.raises(StepError, match=expected):
        layer.step([(request, T)])


@pytest.mark.parametrize("is_prompt", [True, False])
def test_debug_names_who_reads_a_slot_whose_request_never_left(is_prompt):
    layer = layer_of(debug=True)
    gone = layer.add()
    advance(layer, [gone])
    layer.forget(gone)  # without drop_request
    layer.free_requests.append(layer.free_requests.pop(0))
    successor = layer.add()
    assert successor.state_slot == gone.state_slot
    batch = RequestBatch([2], [-1 if is_prompt else 1], [is_prompt], [1], [successor.request_slot])
    step = layer.builder.build(batch)

    with pytest.raises(StepError, match="wait after step 1 for state slot 1 of request slot 0, and now request slot 1"):
        layer.life.record_step(step)


def test_debug_lets_pass_what_was_committed_at_once_or_dropped_or_accepted_nothing():
    layer = layer_of(debug=True)
    request, other = layer.add(), layer.add()
    step = layer.step([(request, T), (other, T)])
    layer.commit(step, {request.request_slot: 0, other.request_slot: 2})
    layer.copy(request.state_slot, layer.free_slots[0])
    layer.free(request.state_slot)
    request.state_slot = layer.free_slots.pop(1)
    layer.remove(other)

    advance(layer, [request])
    layer.life.flush()

    layer.check()


def test_a_shutdown_asks_for_what_waits():
    layer = layer_of()
    request = layer.add()
    advance(layer, [request])

    with pytest.raises(
        StepError, match=r"accepted tokens wait for state slot 1 \(request slot 0, step 1\); call flush"
    ):
        layer.life.check_idle()
    layer.life.flush()
    layer.life.check_idle()
