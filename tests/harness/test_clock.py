import ctypes

import pytest

from benchmarks.harness.clock import clock_mhz, count_nodes
from benchmarks.harness.errors import MeasurementError


def test_clock_is_cycles_over_time():
    assert clock_mhz([(1_000, 5_000)], [(1_981_000, 1_005_000)]) == pytest.approx(1980.0)


def test_sm_that_was_not_visited_at_both_ends_is_left_out():
    begun = [(0, 0), (10, 10), (10, 10)]
    ended = [(99_999, 20), (0, 0), (30, 20)]

    assert clock_mhz(begun, ended) == pytest.approx(2000.0)


def test_sm_that_stopped_counting_while_idle_does_not_lower_the_clock():
    assert clock_mhz([(10, 10), (10, 10)], [(11, 1010), (1990, 1010)]) == pytest.approx(1980.0)


def test_without_any_sm_in_both_tables_there_is_no_clock():
    assert clock_mhz([(0, 0)], [(50, 50)]) is None


def test_nodes_that_cannot_be_counted_are_an_error(monkeypatch: pytest.MonkeyPatch):
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)

    with pytest.raises(MeasurementError, match=r"cannot be counted: libcuda\.so\.1"):
        count_nodes(1)
