"""Steps of one layer whose commits are deferred, and the fixture of who takes what waits as history."""

import pytest

from recoverssm import committer
from tests.one_layer import OneLayer
from tests.test_lifecycle import T, config_of


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
