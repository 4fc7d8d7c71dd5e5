"""Deferred commits: accepted tokens wait while the next window fits behind them, nobody reads a state without them."""

import pytest
import torch

from recoverssm import (
    RequestBatch,
    SampledByRow,
    StepError,
    committer,
)
from tests.one_layer import OneLayer
from tests.test_lifecycle import T, backend, config_of
from tests.windows import int32

__all__ = ["backend"]  # a fixture


def layer_of(device=None, **options):
    return OneLayer(config_of(commit="deferred", **options), device=device)


def advance(layer, requests, accepted=3, query_len=T):
    """One step of these requests, each accepting so many tokens."""
    step = layer.step([(request, query_len) for request in requests])
    layer.commit(step, {request.request_slot: accepted for request in requests})
    return step


@pytest.fixture(autouse=True, params=[0, 2, 96], ids=["all take history", "two rows do", "none does"])
def limit(request, monkeypatch):
    """Request-heads from which verify takes history, and so the rows, as these layers have one head."""
    monkeypatch.setattr(committer, "MIN_HISTORY_HEADS", request.param)
    return request.param


def holds_truth(layer, request):
    error = (layer.pool[request.state_slot] - layer.truth[request.state_slot]).norm()
    return bool(error <= 1e-6 * layer.truth[request.state_slot].norm())


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


def test_the_pool_of_entries_serves_more_requests_than_a_batch_has_rows():
    """Where entries run out, the longest waiting are committed; nobody else's entry is written."""
    layer = OneLayer(config_of(commit="deferred", max_num_requests=2), num_slots=10)
    requests = [layer.add() for _ in range(8)]

    for pair in (requests[:2], requests[2:4], requests[4:6], requests[6:], requests[:4:3]):
        advance(layer, pair)
        layer.check()
        assert len(layer.life.waiting_requests) <= 2
    layer.life.flush()

    layer.check()


def test_who_is_in_the_batch_keeps_its_entry_however_long_it_has_waited():
    layer = OneLayer(config_of(commit="deferred", max_num_requests=2), num_slots=10)
    first, second, third = (layer.add() for _ in range(3))
    advance(layer, [first], accepted=1)
    advance(layer, [second], accepted=1)

    step = layer.step([(third, T), (first, 0)])

    assert layer.life.waiting_requests == (first.request_slot,)
    layer.commit(step, {third.request_slot: 2, first.request_slot: 0})
    advance(layer, [first, third], accepted=1)
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


def test_a_decode_too_long_for_the_window_finds_its_state():
    layer = layer_of()
    request = layer.add()
    advance(layer, [request])
    batch = RequestBatch([T + 1], [T], [False], [request.state_slot], [request.request_slot])

    step = layer.builder.build(batch)
    layer.life.record_step(step)

    assert step.long_request_rows == (0,)
    layer.check()


def test_a_discarded_step_gives_its_entries_back():
    layer = layer_of()
    request = layer.add()
    for _ in range(20):
        advance(layer, [request])
        layer.discard(layer.step([(request, T)]))
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


def test_a_request_keeps_its_entry_while_it_runs_and_leaves_it_to_others_at_its_end():
    """Also to those of another lane; not while a step is yet to be committed from it."""
    layer = layer_of(pipeline_parallel=2, max_num_requests=1)
    first, second = layer.add(), layer.add()
    held = []
    for _ in range(3):
        steps = [layer.step([(request, T)]) for request in (first, second)]
        held.append([layer.life._waiting.rows_of(step).written.item() for step in steps])
        for request, step in zip((second, first), reversed(steps), strict=True):
            layer.commit(step, {request.request_slot: 1})
    assert held == [held[0]] * 3
    step = layer.step([(first, T)])
    layer.remove(first)
    third = layer.add()
    other = layer.step([(third, T)])  # for whom the second, which waits, is flushed
    assert layer.life._waiting.rows_of(other).written.item() == held[0][1]
    layer.commit(step, {first.request_slot: 4})
    layer.commit(other, {third.request_slot: 2})
    layer.check()
    advance(layer, [second])
    layer.life.flush()

    layer.check()
