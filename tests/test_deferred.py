"""Deferred commits: accepted tokens wait while the next window fits behind them, and come into the state together."""

import pytest
import torch

from recoverssm import RequestBatch, SampledByRow
from tests.deferred import advance, holds_truth, layer_of, limit
from tests.one_layer import OneLayer
from tests.test_lifecycle import T, backend, config_of
from tests.windows import int32

__all__ = ["backend", "limit"]  # fixtures


def test_a_state_stays_behind_until_a_flush(limit):
    layer = layer_of()
    request = layer.add()
    before = layer.pool[request.state_slot].clone()

    advance(layer, [request])
    assert torch.equal(layer.pool[request.state_slot], before)
    step = layer.step([(request, T)])
    assert layer.life.waiting_requests == ()
    assert holds_truth(layer, request) == (limit > 1)  # where it is committed before the verify
    layer.commit(step, {request.request_slot: 1})
    assert layer.life.waiting_requests == (request.request_slot,)
    layer.life.flush([request.request_slot])

    assert layer.life.waiting_requests == ()
    layer.check()
    assert holds_truth(layer, request)


@pytest.mark.parametrize("limit", [0], indirect=True)
def test_tokens_of_several_steps_wait_while_the_next_window_fits_and_then_go_into_the_state_together(limit, backend):
    layer = layer_of(backend)
    steady, other = layer.add(), layer.add()
    before = layer.pool[steady.state_slot].clone()
    moved = []
    for accepted in (1, 2, 0, 1, 1, 4, 1, 3, 1):  # of four tokens that may wait
        step = layer.step([(other, T), (steady, T)])
        layer.commit(step, {steady.request_slot: accepted, other.request_slot: 2})
        moved.append(not torch.equal(layer.pool[steady.state_slot], before))
        before = layer.pool[steady.state_slot].clone()
        assert holds_truth(layer, steady) == moved[-1]
        layer.check()

    assert moved == [False, False, False, False, True, False, True, False, False]
    layer.life.flush()
    layer.check()


def test_a_discarded_step_leaves_states_and_what_waits_for_them(limit, backend):
    layer = layer_of(backend, debug=True)
    first, second, new = (layer.add() for _ in range(3))
    advance(layer, [first, second], accepted=2)
    states = layer.pool.clone()

    layer.discard(layer.step([(second, T), (new, T), (first, 1)]))

    if limit < 3:
        assert torch.equal(layer.pool.nan_to_num(), states.nan_to_num())
        assert {*layer.life.waiting_requests} == {first.request_slot, second.request_slot}
        assert sorted(layer.life._waiting.lens.tolist())[-3:] == [0, 2, 2]
    else:  # it was committed before
        assert layer.life.waiting_requests == ()
    layer.check()
    advance(layer, [first, new, second])
    layer.life.flush()
    layer.check()


def test_a_request_that_is_computed_anew_after_a_discard_drops_what_waited():
    layer = layer_of()
    request = layer.add()
    advance(layer, [request])
    layer.discard(layer.step([(request, T)]))

    layer.life.drop_request(request.request_slot)
    layer.prefill(request)
    advance(layer, [request], accepted=2)
    layer.life.flush()

    layer.check()


def test_who_leaves_a_step_that_is_discarded_leaves_nothing_to_its_successor():
    layer = layer_of()
    leaves, stays = layer.add(), layer.add()
    advance(layer, [leaves, stays])
    step = layer.step([(leaves, T), (stays, T)])
    layer.remove(leaves)
    successor = layer.add()

    layer.discard(step)

    assert successor.request_slot == leaves.request_slot
    assert successor.request_slot not in layer.life.waiting_requests
    advance(layer, [successor, stays])
    layer.life.flush()
    layer.check()


def test_requests_come_in_any_order_leave_out_steps_and_have_rows_without_tokens(backend):
    layer = layer_of(backend)
    first, second, third = (layer.add() for _ in range(3))
    advance(layer, [first, second, third])
    advance(layer, [third, first], accepted=1)

    step = layer.step([(second, T), (first, 0), (third, 1)])
    layer.commit(step, {second.request_slot: 4, third.request_slot: 1, first.request_slot: 0})

    assert set(layer.life.waiting_requests) == {r.request_slot for r in (first, second, third)}
    layer.life.flush()
    layer.check()


def test_windows_without_drafts_and_requests_that_accept_nothing(backend):
    layer = layer_of(backend)
    first, second = layer.add(), layer.add()

    advance(layer, [first, second], accepted=1, query_len=1)
    step = layer.step([(second, 1), (first, T)])
    layer.commit(step, {first.request_slot: 0, second.request_slot: 1})
    advance(layer, [first, second], accepted=4)
    layer.life.flush()

    layer.check()


def test_a_request_goes_on_in_another_lane():
    layer = layer_of(pipeline_parallel=2)
    first, second = layer.add(), layer.add()

    for _ in range(3):
        steps = [layer.step([(request, T)]) for request in (first, second)]
        for request, step in zip((first, second), steps, strict=True):
            layer.commit(step, {request.request_slot: 2})
        advance(layer, [second, first])
    layer.life.flush()

    layer.check()


def test_a_dropped_request_leaves_its_slot_to_another(backend):
    layer = layer_of(backend)
    stays, aborted, preempted = (layer.add() for _ in range(3))
    advance(layer, [stays, aborted, preempted])
    step = layer.step([(preempted, T), (stays, T)])

    layer.remove(aborted)  # whose tokens wait
    layer.remove(preempted)  # whose step is in flight
    successor = layer.add()
    layer.commit(step, {preempted.request_slot: 4, stays.request_slot: 2})
    advance(layer, [successor, stays])
    layer.life.flush()

    assert successor.state_slot in (aborted.state_slot, preempted.state_slot)
    layer.check()


def test_captures_leave_nothing_and_find_the_addresses_of_every_later_step():
    layer = layer_of(cuda_graph_sizes=(2, 4))
    requests = [layer.add() for _ in range(4)]

    captured = layer.life.record_step(layer.builder.build_dummy(4)).written.data_ptr()
    for number in (3, 4, 4):
        step = layer.builder.build(
            RequestBatch(
                [T] * number,
                [T - 1] * number,
                [False] * number,
                [request.state_slot for request in requests[:number]],
                [request.request_slot for request in requests[:number]],
            )
        )
        rows = layer.life.record_step(step)
        assert rows.written.data_ptr() == captured
        assert (rows.written[:number] >= 0).all()
        assert (rows.written[number:] == -1).all()
        layer.life.commit_step(step, SampledByRow(int32([2] * number, "cpu")))
    assert layer.life.waiting_requests == (0, 1, 2, 3)


@pytest.mark.parametrize("sizes", [(), (4,)], ids=["one row", "four with padding"])
def test_rows_with_padding_say_whether_verify_takes_history_or_a_commit_comes_before_it(sizes, limit, backend):
    takes_history = (4 if sizes else 1) >= limit
    layer = layer_of(backend, cuda_graph_sizes=sizes)
    request = layer.add()
    advance(layer, [request])
    before = layer.pool[request.state_slot].clone()
    step = layer.builder.build(RequestBatch([T], [T - 1], [False], [request.state_slot], [request.request_slot]))

    rows = layer.life.record_step(step)

    if takes_history:
        assert rows.history_lens.tolist() == [3, 0, 0, 0][: len(rows.written)]
        assert torch.equal(layer.pool[request.state_slot], before)
    else:
        assert rows.history_lens is None
        assert holds_truth(layer, request)


@pytest.mark.parametrize("limit", [0], indirect=True)
def test_lens_that_verify_reads_lie_at_one_address(device, limit):
    """Of the context, whose vector a captured graph reads."""
    layer = OneLayer(config_of(commit="deferred", cuda_graph_sizes=(4,)), device=device)
    request = layer.add()
    given = []
    for _ in range(3):
        given.append(layer.life.record_step(layer.builder.build_dummy(4)).history_lens.data_ptr())
        advance(layer, [request])

    assert len(set(given)) == 1


def test_commits_every_step_ask_for_nothing():
    layer = OneLayer(config_of())
    request = layer.add()
    step = layer.builder.build(RequestBatch([1], [0], [False], [request.state_slot], [request.request_slot]))

    assert layer.life.record_step(step) is None
    layer.life.commit_step(step, SampledByRow(int32([1], "cpu")))
    layer.life.flush([request.request_slot])
    assert layer.life.waiting_requests == ()
