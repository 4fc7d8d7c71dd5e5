import gc
import itertools

import pytest
import torch

from benchmarks.harness.clock import CapturedGraph, CudaEventTimer, Launch, no_garbage_collection
from benchmarks.harness.errors import BelowResolutionError, HostLateError, MeasurementError, NoDeviceError
from benchmarks.harness.measure import (
    HOST_CALLS,
    HOST_LEADS,
    ThrottledError,
    measure_cpu_reference,
    measure_graph_cold,
    measure_host_dispatch,
)
from benchmarks.harness.quiet import QuietCard
from benchmarks.harness.stopping import Sampling
from tests.harness.fake_timer import FakeTimer, ReplayingTimer, Throttle

SAMPLING = Sampling(min_samples=10, max_samples=20, warmup_s=0.001)


class FakeClock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now_s = 5.0

    def __call__(self) -> float:
        return self.now_s

    def passing(self, seconds: float) -> Launch:
        def launch() -> None:
            self.now_s += seconds

        return launch


def test_window_is_made_long_enough_and_divided_by_its_op_calls():
    timer = FakeTimer(lambda _: 7.0)
    samples = measure_graph_cold([lambda: None] * 3, sampling=SAMPLING, timer=timer)

    assert samples.values_us == pytest.approx([7.0] * 10)
    assert samples.launches_per_sample % 3 == 0  # whole rounds: every buffer set as often as the others
    assert samples.launches_per_sample * 7.0 >= SAMPLING.min_sample_us
    assert timer.captured[-1] == samples.launches_per_sample


def test_round_that_lasts_long_enough_is_captured_once():
    timer = FakeTimer(lambda _: 600.0)
    measure_graph_cold([lambda: None], sampling=SAMPLING, timer=timer)

    assert timer.captured == [1]


def test_every_launch_is_captured_in_order():
    order: list[int] = []
    timer = FakeTimer(lambda _: 300.0)
    measure_graph_cold([lambda i=i: order.append(i) for i in range(4)], sampling=SAMPLING, timer=timer)

    assert order == [0, 1, 2, 3]


def test_samples_taken_while_clocks_ramp_up_are_left_out():
    timer = FakeTimer(lambda run: 600.0 * max(1.0, 5.0 - 0.1 * run))  # settles after 40 runs
    samples = measure_graph_cold([lambda: None], sampling=Sampling(min_samples=10, warmup_s=0.02), timer=timer)

    assert max(samples.values_us) == pytest.approx(600.0)


def test_warm_up_of_times_that_never_settle_is_capped():
    flip = itertools.cycle([600.0, 600.0, 600.0, 900.0, 900.0, 900.0])
    timer = FakeTimer(lambda _: next(flip))
    samples = measure_graph_cold([lambda: None], sampling=SAMPLING, timer=timer)

    assert len(samples.values_us) == SAMPLING.max_samples
    assert samples.stop_reason.startswith("most samples")


def test_slow_samples_stay_in():
    timer = FakeTimer(lambda run: 1200.0 if run % 10 == 0 else 600.0)
    samples = measure_graph_cold([lambda: None], sampling=SAMPLING, timer=timer)

    assert max(samples.values_us) == pytest.approx(1200.0)


@pytest.mark.parametrize("reading", [0.0, float("nan"), float("inf"), -1.0])
def test_unreadable_time_is_below_resolution_and_never_infinite(reading: float):
    with pytest.raises(BelowResolutionError, match=r"resolution of 0\.5 us"):
        measure_graph_cold([lambda: None], sampling=SAMPLING, timer=FakeTimer(lambda _: reading))


def test_window_that_turns_zero_while_sampling_is_below_resolution():
    timer = FakeTimer(lambda run: 0.0 if run == 12 else 600.0)

    with pytest.raises(BelowResolutionError):
        measure_graph_cold([lambda: None], sampling=SAMPLING, timer=timer)


def test_windows_that_the_host_enqueued_too_late_are_retaken_and_counted():
    timer = FakeTimer(lambda run: 600.0 + (40.0 if run in {8, 11} else 0.0), late=lambda run: run in {8, 11})
    samples = measure_graph_cold([lambda: None], sampling=SAMPLING, timer=timer)

    assert len(samples.values_us) >= SAMPLING.min_samples
    assert max(samples.values_us) == pytest.approx(600.0)
    assert samples.stop_reason.endswith("2 windows retaken (host late)")


def test_host_that_never_keeps_ahead_is_an_error():
    timer = FakeTimer(lambda _: 600.0, late=lambda _: True)

    with pytest.raises(HostLateError, match="before the host had enqueued"):
        measure_graph_cold([lambda: None], sampling=SAMPLING, timer=timer)


def test_sampling_stops_at_the_time_limit():
    timer = FakeTimer(lambda _: 50_000.0)
    samples = measure_graph_cold([lambda: None], sampling=Sampling(max_s=0.5), timer=timer)

    assert len(samples.values_us) == 10
    assert samples.stop_reason.startswith("time limit of 0.5 s")


def test_end_times_rise_with_the_samples():
    samples = measure_graph_cold([lambda: None], sampling=SAMPLING, timer=FakeTimer(lambda _: 600.0))

    assert len(samples.ended_s) == len(samples.values_us)
    assert all(earlier < later for earlier, later in itertools.pairwise(samples.ended_s))


def test_memory_is_restored_before_every_window_and_outside_it():
    state, found = [0], list[int]()

    def op() -> None:
        found.append(state[0])
        state[0] += 1

    def restore() -> None:
        state[0] = 0

    samples = measure_graph_cold([op], sampling=SAMPLING, timer=ReplayingTimer(lambda _: 600.0), restore=restore)

    # The captures call everything once or twice before the first window opens.
    assert found[-len(samples.values_us) :] == [0] * len(samples.values_us)
    assert samples.values_us == pytest.approx([600.0] * 10)


@pytest.mark.parametrize(
    ("num_kernels", "expected"), [(2, "expected 3 op calls of 2 kernels"), (None, None), (1, None)]
)
def test_launches_that_the_graph_does_not_hold_are_an_error(num_kernels: int | None, expected: str | None):
    timer = ReplayingTimer(lambda _: 300.0)
    if expected is None:
        assert measure_graph_cold([lambda: None] * 3, sampling=SAMPLING, timer=timer, num_kernels=num_kernels)
        return
    with pytest.raises(MeasurementError, match=expected):
        measure_graph_cold([lambda: None] * 3, sampling=SAMPLING, timer=timer, num_kernels=num_kernels)


def test_graph_with_fewer_nodes_than_op_calls_is_an_error():
    timer = FakeTimer(lambda _: 300.0)
    timer.capture = lambda launches, rounds: CapturedGraph(lambda: None, 1)  # type: ignore[method-assign]

    with pytest.raises(MeasurementError, match="1 nodes for 2 op calls"):
        measure_graph_cold([lambda: None] * 2, sampling=SAMPLING, timer=timer)


def test_samples_taken_under_throttle_are_dropped_counted_and_kept_beside():
    timer = FakeTimer(lambda run: 600.0 if run >= 16 else 700.0)
    pauses = list[float]()
    card = QuietCard(Throttle("thermal", lambda reading: reading == 1), sleep=pauses.append)
    samples = measure_graph_cold([lambda: None], sampling=SAMPLING, timer=timer, card=card)

    assert samples.values_us == pytest.approx([600.0] * 10)
    assert [sample.value_us for sample in samples.dropped] == pytest.approx([700.0] * 10)
    assert samples.throttle_us == {"thermal": 1000}
    assert samples.stop_reason.endswith("10 samples dropped (throttled: thermal 1.0 ms)")
    assert len(pauses) == 1


def test_card_that_is_always_held_back_gives_no_number_but_its_samples():
    card = QuietCard(Throttle("thermal", lambda _: True), sleep=lambda _: None)

    with pytest.raises(ThrottledError, match=r"no accepted samples in 1 s: \d+ were taken") as caught:
        measure_graph_cold([lambda: None], sampling=SAMPLING, timer=FakeTimer(lambda _: 6000.0), card=card)
    assert caught.value.samples.values_us == ()
    assert len(caught.value.samples.dropped) > 100


def test_warm_up_goes_on_until_the_sm_clock_settles():
    timer = FakeTimer(lambda _: 600.0, sm_mhz=lambda run: min(1980.0, 345.0 + 100 * run))
    samples = measure_graph_cold([lambda: None], sampling=Sampling(min_samples=10, warmup_s=0.002), timer=timer)

    assert set(samples.sm_mhz) == {1980.0}


def test_nothing_to_launch_is_refused():
    with pytest.raises(ValueError, match="at least one op call"):
        measure_graph_cold([], timer=FakeTimer(lambda _: 600.0))


def test_without_cuda_no_other_timer_takes_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(NoDeviceError, match="ci doctor"):
        CudaEventTimer()
    with pytest.raises(NoDeviceError, match="ci doctor"):
        measure_host_dispatch(lambda: None)


def test_host_dispatch_counts_the_call_and_not_the_device():
    clock = FakeClock()
    samples = measure_host_dispatch(clock.passing(20e-6), sampling=SAMPLING, drain=clock.passing(3e-3), clock=clock)

    assert samples.values_us == pytest.approx([20.0] * len(samples.values_us))


def test_host_dispatch_drains_the_queue_before_each_window_and_never_fills_it():
    clock, queued, longest = FakeClock(), [0], [0]
    advance = clock.passing(1e-6)

    def launch() -> None:
        queued[0] += 1
        longest[0] = max(longest[0], queued[0])
        advance()

    def drain() -> None:
        queued[0] = 0

    samples = measure_host_dispatch(launch, sampling=SAMPLING, drain=drain, clock=clock)

    assert samples.launches_per_sample == HOST_CALLS
    assert longest[0] == HOST_CALLS + HOST_LEADS


def test_host_window_opens_behind_calls_that_warm_the_host_up():
    clock, calls = FakeClock(), [0]

    def launch() -> None:
        calls[0] += 1
        clock.now_s += 300e-6 if calls[0] <= 2 else 90e-6

    def drain() -> None:
        calls[0] = 0

    samples = measure_host_dispatch(launch, sampling=SAMPLING, drain=drain, clock=clock)

    assert samples.values_us == pytest.approx([90.0] * len(samples.values_us))


@pytest.mark.parametrize("call_s", [1e-6, 95e-6, 185e-6, 900e-6])
def test_host_windows_of_all_processes_hold_the_same_number_of_calls(call_s: float):
    clock = FakeClock()
    samples = measure_host_dispatch(clock.passing(call_s), sampling=SAMPLING, drain=lambda: None, clock=clock)

    assert samples.launches_per_sample == HOST_CALLS


@pytest.mark.parametrize("hiccup_at", range(6))
def test_a_hiccup_in_the_warm_up_does_not_change_the_number_of_calls(hiccup_at: int):
    clock, calls, night = FakeClock(), [0], Sampling(max_samples=30, min_samples=30, warmup_s=400e-6, max_s=0.25)

    def launch() -> None:
        clock.now_s += 4e-3 if calls[0] == hiccup_at else 100e-6
        calls[0] += 1

    samples = measure_host_dispatch(launch, sampling=night, drain=lambda: None, clock=clock)

    assert samples.launches_per_sample == HOST_CALLS


def test_host_window_is_short_when_the_device_is_slow():
    clock = FakeClock()
    queued = [0]
    advance = clock.passing(10e-6)

    def launch() -> None:
        queued[0] += 1
        advance()

    def drain() -> None:
        clock.now_s += 20e-3 * queued[0]
        queued[0] = 0

    begun_s = clock.now_s
    samples = measure_host_dispatch(launch, sampling=Sampling(max_s=1.0), drain=drain, clock=clock)

    assert samples.launches_per_sample == 1
    assert clock.now_s - begun_s < 1.5


def test_host_clock_that_stands_still_is_below_resolution():
    with pytest.raises(BelowResolutionError, match="host's clock"):
        measure_cpu_reference(lambda: None, sampling=Sampling(warmup_s=0.0), clock=FakeClock())


def test_cpu_reference_times_whole_calls():
    clock = FakeClock()
    samples = measure_cpu_reference(clock.passing(4e-3), sampling=SAMPLING, clock=clock)

    assert samples.values_us == pytest.approx([4000.0] * len(samples.values_us))
    assert samples.launches_per_sample == 1


def test_garbage_collection_is_off_inside_and_as_before_outside():
    with no_garbage_collection():
        inside = gc.isenabled()

    assert not inside
    assert gc.isenabled()
