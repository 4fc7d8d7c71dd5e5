"""What the device clock must get right, tried on a real card; the spin kernel's own clock is the witness."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from benchmarks.harness.clock import CudaEventTimer
from benchmarks.harness.cold_cache import num_rotations
from benchmarks.harness.control import BLOCK, _mix, matched_stream, measure_controls
from benchmarks.harness.environment import collect_environment, collect_silicon
from benchmarks.harness.errors import MeasurementError
from benchmarks.harness.gpu_monitor import GpuMonitor
from benchmarks.harness.measure import measure_graph_cold, measure_host_dispatch
from benchmarks.harness.stats.summary import median
from benchmarks.harness.stopping import Sampling

pytestmark = pytest.mark.gpu

MIB = 2**20


@triton.jit
def _spin_kernel(spun_ns_ptr, duration_ns):
    """One program handles nothing: it waits on the device until its clock has advanced."""
    begun = globaltimer()
    now = begun
    while now - begun < duration_ns:
        now = globaltimer()
    tl.store(spun_ns_ptr, now - begun)


def spinning(duration_us: float) -> tuple[Callable[[], None], torch.Tensor]:
    spun_ns = torch.zeros(1, dtype=torch.int64, device="cuda")
    return lambda: _spin_kernel[(1,)](spun_ns, int(1000 * duration_us), num_warps=1), spun_ns


def test_spin_of_a_millisecond_is_measured_as_a_millisecond():
    launch, spun_ns = spinning(1000.0)
    samples = measure_graph_cold([launch])

    assert spun_ns.item() / 1000 == pytest.approx(1000.0, rel=0.02)
    assert median(samples.values_us) == pytest.approx(1000.0, rel=0.02)


def test_short_spins_are_batched_and_divided():
    launch, _ = spinning(20.0)
    samples = measure_graph_cold([launch] * 5)

    # Each spin begins and ends with a launch inside the graph, which costs one to three microseconds.
    assert 19.5 <= median(samples.values_us) <= 24.0
    assert samples.launches_per_sample % 5 == 0


def test_host_dispatch_does_not_wait_for_the_device():
    launch, _ = spinning(2000.0)
    samples = measure_host_dispatch(launch, sampling=Sampling(max_s=3.0))

    assert median(samples.values_us) < 500.0


def test_host_keeps_ahead_of_a_long_graph():
    launch, _ = spinning(3.0)
    samples = measure_graph_cold([launch] * 500)

    assert "host late" not in samples.stop_reason


def test_launches_that_miss_the_capture_are_an_error():
    before = torch.cuda.current_stream()

    with pytest.raises(MeasurementError, match="empty"):
        measure_graph_cold([lambda: None])
    assert torch.cuda.current_stream() == before


def test_rotated_buffers_are_slower_than_one_that_stays_in_l2():
    l2_bytes = collect_environment().l2_bytes
    assert l2_bytes is not None
    set_bytes = l2_bytes // 3 // (16 * BLOCK) * (16 * BLOCK)
    sets = torch.zeros(num_rotations(set_bytes, l2_bytes), set_bytes // 4, device="cuda")
    unwritten = torch.zeros(BLOCK, device="cuda")
    cold = measure_graph_cold([partial(_mix, one, unwritten, reads=4, writes=0) for one in sets])
    warm = measure_graph_cold([partial(_mix, sets[0], unwritten, reads=4, writes=0)])

    assert median(warm.values_us) < 0.9 * median(cold.values_us)


def test_controls_reach_a_plausible_rate():
    controls = {control.name: control for control in measure_controls()}

    # Every data-centre card since 2020 has over 1.5 TB/s; none announced so far has 20.
    assert all(1.0e12 < control.bytes_per_s < 20e12 for control in controls.values())


def test_matched_stream_of_large_buffers_runs_at_the_rate_of_the_controls():
    best = max(control.bytes_per_s for control in measure_controls())
    median_us = matched_stream(256 * MIB, 256 * MIB)

    assert median_us is not None
    assert 0.8 * best < 512 * MIB / median_us * 1e6 < 1.05 * best


def test_timer_works_on_every_device():
    for index in range(torch.cuda.device_count()):
        with torch.cuda.device(index):
            tensor = torch.zeros(64 * MIB, device="cuda")
            samples = measure_graph_cold([lambda tensor=tensor: tensor.add_(1)], timer=CudaEventTimer(index))

        assert median(samples.values_us) > 10.0


def test_monitor_and_environment_read_this_card():
    launch, _ = spinning(1000.0)
    silicon, environment = collect_silicon(), collect_environment()
    with GpuMonitor(silicon.gpu_uuid) as monitor:
        measure_graph_cold([launch])
    summary = monitor.summary()

    assert environment.gpu_model != "cpu"
    assert environment.l2_bytes is not None
    assert summary.num_readings >= 2 or "nvml" in summary.missing
    assert (summary.sm_clock_mhz_max is not None) or {"sm_clock_mhz", "nvml"} & summary.missing.keys()
