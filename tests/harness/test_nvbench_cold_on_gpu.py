"""NVBench on a real card, beside torch and Triton in one process."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.harness.control import BLOCK, _mix, stream
from benchmarks.harness.errors import MeasurementError, MissingToolError
from benchmarks.harness.measure import measure_graph_cold
from benchmarks.harness.nvbench_cold import COLD_SAMPLING, load_nvbench, measure_nvbench_cold
from benchmarks.harness.stats.summary import median
from tests.harness.test_clock_on_gpu import spinning

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20

PROGRAM = """
import torch
from benchmarks.harness.nvbench_cold import measure_nvbench_cold
tensor = torch.zeros(2**20, device="cuda")
print(len(measure_nvbench_cold([lambda: tensor.add_(1)]).values_us))
"""


@pytest.fixture(autouse=True)
def _nvbench():
    try:
        load_nvbench()
    except MissingToolError as error:  # there are hosts without a wheel of it, and this test runs on GPU hosts only
        pytest.skip(str(error))


def reading(num_bytes):
    programs = num_bytes // (16 * BLOCK)
    return partial(_mix, torch.rand(programs * 4 * BLOCK, device="cuda"), torch.zeros(BLOCK, device="cuda"), 4, 0)


def test_spin_of_a_millisecond_is_measured_as_a_millisecond():
    launch, spun_ns = spinning(1000.0)
    samples = measure_nvbench_cold([launch])

    assert spun_ns.item() / 1000 == pytest.approx(1000.0, rel=0.01)
    assert median(samples.values_us) == pytest.approx(1000.0, rel=0.01)
    assert len(samples.values_us) == len(samples.ended_s)


def test_one_series_follows_another_and_torch_goes_on_as_before(capfd):
    current, device = torch.cuda.current_stream(), torch.cuda.current_device()
    capfd.readouterr()
    medians = [median(measure_nvbench_cold([spinning(us)[0]]).values_us) for us in (200.0, 50.0, 100.0)]
    printed = capfd.readouterr()

    assert medians == pytest.approx([200.0, 50.0, 100.0], abs=6.0)
    assert (torch.cuda.current_stream(), torch.cuda.current_device()) == (current, device)
    assert median(measure_graph_cold([spinning(200.0)[0]]).values_us) == pytest.approx(200.0, abs=4.0)
    assert (printed.out, printed.err) == ("", "")


def test_a_series_is_bounded_by_number_and_time():
    launch, _ = spinning(10.0)
    samples = measure_nvbench_cold([launch])

    assert len(samples.values_us) == COLD_SAMPLING.max_samples
    assert samples.ended_s[-1] - samples.ended_s[0] < COLD_SAMPLING.max_s


def test_what_launches_change_is_restored_before_each_replay_and_the_timed_launch_follows_it():
    tensor = torch.zeros(1024, device="cuda")
    measure_nvbench_cold([lambda: tensor.add_(1), lambda: tensor.mul_(2)], restore=tensor.zero_)
    torch.cuda.synchronize()

    assert tensor.tolist() == [3.0] * 1024  # restored to 0, replayed to 2, and the first launch once more


def test_restoring_is_not_timed():
    large = torch.zeros(256 * MIB, device="cuda")  # 1 GiB: a quarter of a millisecond at least
    small = torch.zeros(1024, device="cuda")
    samples = measure_nvbench_cold([lambda: small.add_(1)], restore=large.zero_)

    assert median(samples.values_us) < 50.0


def trickling(num_bytes):
    """One program reads one piece after the other, so that the latency of each counts."""
    num_read = num_bytes // 4
    return partial(stream, torch.rand(num_read, device="cuda"), torch.zeros(BLOCK, device="cuda"), num_read, 0, 1)


def test_memory_that_all_launches_share_is_read_from_the_l2_and_what_they_take_turns_on_is_cold():
    shared, turns = trickling(2 * MIB), [trickling(2 * MIB) for _ in range(80)]
    # Not held against the time in a graph: there the one program stays on its SM, while here the SM that blocks
    # NVBench's stream is free only after the replay, and another SM may read from the L2's other half, a third slower.
    warm_us = median(measure_nvbench_cold([shared] * 3).values_us)
    cold_us = median(measure_nvbench_cold(turns).values_us)

    assert cold_us > 1.2 * warm_us


def test_the_launches_before_are_not_timed_and_leave_the_current_stream_alone():
    small, large = torch.zeros(1024, device="cuda"), torch.zeros(64 * MIB, device="cuda")
    current = torch.cuda.current_stream()
    samples = measure_nvbench_cold([lambda: small.add_(1), lambda: large.add_(1)], restore=small.zero_)
    torch.cuda.synchronize()

    assert median(samples.values_us) < 20.0  # the second one takes ten times as long
    assert small.tolist() == [2.0] * 1024
    assert torch.cuda.current_stream() == current


def test_a_long_stream_takes_as_long_alone_as_in_a_graph():
    launch = reading(512 * MIB)
    graph_us, alone_us = (median(take([launch]).values_us) for take in (measure_graph_cold, measure_nvbench_cold))

    assert abs(alone_us - graph_us) <= max(3.0, 0.03 * graph_us)


def test_launches_that_go_nowhere_are_an_error():
    with pytest.raises(MeasurementError, match="empty"):
        measure_nvbench_cold([lambda: None])


def test_a_process_ends_well_after_measuring_and_prints_nothing_of_nvbenchs():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )

    assert (done.returncode, done.stdout) == (0, f"{COLD_SAMPLING.max_samples}\n"), done.stderr
