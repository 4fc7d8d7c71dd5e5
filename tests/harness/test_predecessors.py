from contextlib import nullcontext

import pytest
import torch

from benchmarks.harness import predecessors
from benchmarks.harness.clock import CapturedGraph
from benchmarks.harness.errors import MeasurementError
from benchmarks.harness.predecessors import Predecessors

CPU = torch.device("cpu")


class FakeStream:
    """Idle at the n-th question."""

    def __init__(self, num_questions=3):
        self.num_questions = num_questions

    def query(self):
        self.num_questions -= 1
        return self.num_questions <= 0


@pytest.fixture
def order(monkeypatch):
    """What was captured on which stream, replayed and restored."""
    found = []

    class Timer:
        def __init__(self, device, capture_stream):
            found.append(capture_stream)

        def capture(self, launches, rounds):
            found.append((len(launches), rounds))
            return CapturedGraph(lambda: found.append("replay"), len(launches))

    monkeypatch.setattr(predecessors, "CudaEventTimer", Timer)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: FakeStream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return found


def test_what_launches_change_is_restored_before_all_of_them_are_replayed(order):
    before = Predecessors([print, print], lambda: order.append("restore"), CPU)
    before.replay()

    assert before.num_nodes == 2
    assert order == [before._stream, (2, 1), "restore", "replay"]


def test_with_nothing_to_restore_the_replay_alone_runs(order):
    Predecessors([print], None, CPU).replay()

    assert order[2:] == ["replay"]


def test_a_stream_that_is_held_up_is_an_error_and_not_waited_for(order, monkeypatch):
    before = Predecessors([print], None, CPU)
    before._stream = FakeStream(num_questions=10**9)
    monkeypatch.setattr(predecessors, "SETTLING_S", 0.0)

    with pytest.raises(MeasurementError, match="did not end within"):
        before.replay()
