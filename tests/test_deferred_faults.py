"""Deferred commits where something goes wrong: calls in another order, misuse; no token is lost."""

import pytest

from recoverssm import ArgumentError, RecordRows, RequestBatch, committer
from tests.one_layer import OneLayer
from tests.test_deferred import context_of, records_of
from tests.test_lifecycle import T, config_of
from tests.windows import int32


def batch_of(request, query_len=T, state_slot=None):
    slot = request.state_slot if state_slot is None else state_slot
    return RequestBatch([query_len], [query_len - 1], [False], [slot], [request.request_slot])


def test_a_flush_after_record_leaves_what_that_steps_verifies_read(device, monkeypatch):
    """Also the flush that another lane's step brings about."""
    monkeypatch.setattr(committer, "MIN_FOLDING_HEADS", 0)
    layer = OneLayer(config_of(commit="deferred", pipeline_parallel=2), device=device)
    first, second, third = (layer.add() for _ in range(3))
    step = layer.step([(first, T), (second, T), (third, T)])
    layer.commit(step, {first.request_slot: 3, second.request_slot: 1, third.request_slot: 2})

    rows = layer.life.record_step(layer.builder.build(batch_of(first)))
    layer.life.flush([second.request_slot])
    assert rows.waiting_lens.tolist() == [3]
    layer.life.record_step(layer.builder.build(batch_of(third, T + 1)))

    assert rows.waiting_lens.tolist() == [3]
    assert layer.life.waiting_requests == ()


def test_half_of_what_defers_is_refused():
    one, context = int32([1], "cpu"), context_of(records_of(4))
    with pytest.raises(ArgumentError, match="waiting, waiting_lens: expected both, or neither"):
        RecordRows(one, one)
    for half in ({"record_rows": one}, {"waiting_lens": one}):
        with pytest.raises(ArgumentError, match="record_rows, waiting_lens: expected both, with deferred"):
            context.commit(one, int32([0, 1], "cpu"), one, **half)
