"""What the device clock must get right, tried on a real card; the spin kernel's own clock is the witness."""

import time
from collections.abc import Callable
from functools import partial

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from benchmarks.harness.clock import CudaEventTimer
from benchmarks.harness.cold_cache import num_rotations
from benchmarks.harness.control import BLOCK, FMA_TRIPS, _mix, matched_stream, measure_controls
from benchmarks.harness.environment import collect_environment, collect_silicon
from benchmarks.harness.errors import MeasurementError
from benchmarks.harness.gpu_monitor import GpuMonitor
from benchmarks.harness.measure import measure_graph_cold, measure_host_dispatch
from benchmarks.harness.restore import SavedMemory
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
    samples = measure_graph_cold([launch], num_kernels=1)

    assert spun_ns.item() / 1000 == pytest.approx(1000.0, rel=0.01)
    assert median(samples.values_us) == pytest.approx(1000.0, rel=0.01)


def test_spin_behind_a_restore_is_measured_as_if_there_were_none():
    launch, _ = spinning(1000.0)
    tensor = torch.zeros(64 * MIB, device="cuda")
    samples = measure_graph_cold([launch], restore=SavedMemory([tensor]).restore)

    assert median(samples.values_us) == pytest.approx(1000.0, rel=0.01)


class Witness:
    """State that an op changes, and a tally of what windows right behind a restore found."""

    def __init__(self) -> None:
        self.state = torch.rand(4 * MIB, device="cuda")
        self.before = self.state.clone()
        self._saved = SavedMemory([self.state])
        self._is_restored, self.num_seen, self.num_differing = torch.zeros(3, dtype=torch.int64, device="cuda").unbind()

    def restore(self) -> None:
        self._saved.restore()
        self._is_restored.fill_(1)

    def op(self) -> None:
        """Look at the state, then change all of it."""
        self.num_seen.add_(self._is_restored)
        self.num_differing.add_((self.state != self.before).sum() * self._is_restored)
        self._is_restored.zero_()
        self.state.add_(1.0)


def test_every_window_finds_the_bits_that_were_saved():
    witness, (spin, _) = Witness(), spinning(600.0)
    samples = measure_graph_cold([lambda: (witness.op(), spin())], restore=witness.restore)

    assert witness.num_seen.item() > len(samples.values_us)
    assert witness.num_differing.item() == 0
    assert not torch.equal(witness.state, witness.before)


@pytest.mark.parametrize("share", [3, 30], ids=["third", "thirtieth"])
def test_restoring_neither_flatters_nor_costs(share: int):
    l2_bytes = collect_environment().l2_bytes
    assert l2_bytes is not None
    set_bytes = l2_bytes // share // 4096 * 4096
    sets = torch.ones(num_rotations(set_bytes, l2_bytes), set_bytes // 4, device="cuda")
    launches = [partial(one.mul_, 1.0) for one in sets]
    plain = measure_graph_cold(launches)
    restored = measure_graph_cold(launches, restore=SavedMemory([sets]).restore)

    # What a restore leaves dirty in the L2 against what the op leaves: at most 60 MB of the 2 GB that a window moves.
    assert median(restored.values_us) == pytest.approx(median(plain.values_us), rel=0.03)


def test_launches_of_another_stream_are_missed_and_refused():
    launch, _ = spinning(300.0)
    elsewhere = torch.cuda.Stream()

    def astray() -> None:
        with torch.cuda.stream(elsewhere):
            launch()

    with pytest.raises(MeasurementError, match="1 nodes for 2 op calls"):
        measure_graph_cold([launch, astray])
    torch.cuda.synchronize()


def test_launches_are_counted():
    launch, _ = spinning(300.0)

    assert measure_graph_cold([lambda: (launch(), launch())], num_kernels=2)
    with pytest.raises(MeasurementError, match="expected 1 op calls of 1 kernels"):
        measure_graph_cold([lambda: (launch(), launch())], num_kernels=1)


def test_sm_clock_from_cycles_agrees_with_nvml():
    tensor = torch.ones(256 * MIB, device="cuda")
    with GpuMonitor(collect_silicon().gpu_uuid) as monitor:
        samples = measure_graph_cold([lambda: tensor.mul_(1.0)])
    by_cycles = [mhz for mhz in samples.sm_mhz if mhz is not None]
    by_nvml = monitor.summary().sm_clock_mhz_max

    assert len(by_cycles) == len(samples.values_us)
    assert all(200 < mhz < 4000 for mhz in by_cycles)
    assert by_nvml is None or max(by_cycles) == pytest.approx(by_nvml, rel=0.03)


def test_sm_clock_is_read_though_most_sms_are_idle():
    launch, _ = spinning(600.0)
    tensor = torch.ones(256 * MIB, device="cuda")
    busy = measure_graph_cold([lambda: tensor.mul_(1.0)])
    idle = measure_graph_cold([launch])

    assert min(idle.sm_mhz) == pytest.approx(max(busy.sm_mhz), rel=0.03)


def test_throttle_counters_cost_milliseconds_at_most():
    with GpuMonitor(collect_silicon().gpu_uuid) as monitor:
        begun_s = time.monotonic()
        for _ in range(10):
            monitor.throttle_us()
        each_s = (time.monotonic() - begun_s) / 10

    assert each_s < 0.02


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
    streams = [control for control in measure_controls() if control.name != "fma"]

    # Every data-centre card since 2020 has over 1.5 TB/s; none announced so far has 20.
    assert len(streams) == 3
    assert all(1.0e12 < control.bytes_per_s < 20e12 for control in streams)


def test_matched_stream_of_large_buffers_runs_at_the_rate_of_the_controls():
    best = max(control.bytes_per_s for control in measure_controls())
    median_us = matched_stream(256 * MIB, 256 * MIB)

    assert median_us is not None
    assert 0.8 * best < 512 * MIB / median_us * 1e6 < 1.05 * best


def test_arithmetic_control_runs_at_a_plausible_rate():
    (fma,) = (control for control in measure_controls() if control.name == "fma")
    num_fmas = fma.write_bytes / 4 * FMA_TRIPS * 16
    per_sm_and_us = num_fmas / torch.cuda.get_device_properties(0).multi_processor_count / fma.median_us

    # 128 a cycle on each SM at most, at 1 to 2.5 GHz, and half of that if the loop were badly scheduled.
    assert 64 * 1000 < per_sm_and_us < 128 * 2500


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
