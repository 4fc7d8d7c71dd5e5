"""Entries of deferred commits: whose one is, how long, and who is committed where they run out."""

from tests.deferred import advance, layer_of, limit
from tests.one_layer import OneLayer
from tests.test_lifecycle import T, config_of

__all__ = ["limit"]  # a fixture


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


def test_a_discarded_step_gives_its_entries_back():
    layer = layer_of()
    request = layer.add()
    for _ in range(20):
        advance(layer, [request])
        layer.discard(layer.step([(request, T)]))
        layer.check()


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
