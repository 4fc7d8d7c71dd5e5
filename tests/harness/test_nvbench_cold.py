import sys
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch

from benchmarks.harness import nvbench_cold, predecessors
from benchmarks.harness.errors import BelowResolutionError, MeasurementError, MissingToolError, NoDeviceError
from benchmarks.harness.nvbench_cold import BLOCKED_S, WARM_UP_RUNS, NVBenchRun, load_nvbench, measure_nvbench_cold
from benchmarks.harness.stats.summary import median
from benchmarks.harness.stopping import Sampling
from tests.harness.fake_nvbench import FakeBench, on_stream

SAMPLING = Sampling(min_samples=10, max_samples=20, warmup_s=0.0, max_s=0.4)


def nothing():
    pass


@contextmanager
def running(bench, **options):
    run = NVBenchRun(bench, 0, **options)
    try:
        yield run
    finally:
        run.close()


def test_every_sample_comes_from_nvbenchs_own_files():
    with running(FakeBench(lambda n: 10.0 + n)) as run:
        samples = run.measure(nothing, SAMPLING, on_stream)

    assert samples.values_us == pytest.approx([10.0 + n for n in range(20)])
    assert samples.launches_per_sample == 1
    assert samples.sm_mhz == pytest.approx([1980.0] * 20)
    assert len(samples.ended_s) == 20
    assert samples.stop_reason.startswith("most samples: 20 samples, interval half width ")
    assert samples.stop_reason.endswith("SM clock 1980 MHz; NVBench 0.3.0")


def test_a_process_measures_one_series_after_the_other_in_nvbenchs_one_run():
    bench = FakeBench(lambda n: 10.0)
    with running(bench) as run:
        first = run.measure(nothing, SAMPLING, on_stream)
        bench.call_us = lambda n: 30.0
        second = run.measure(nothing, SAMPLING, on_stream)

    assert (median(first.values_us), median(second.values_us)) == pytest.approx((10.0, 30.0))


def test_samples_are_bounded_by_number_and_time_and_nothing_is_printed():
    bench = FakeBench()
    with running(bench) as run:
        run.measure(nothing, SAMPLING, on_stream)

    assert bench.benchmarks[0].settings == {"criterion": "sample-count", "target-samples": 1}
    assert bench.settings == {"samples": 20, "timeout": 0.4, "warm_up": WARM_UP_RUNS, "blocked": BLOCKED_S}
    assert "--quiet" in bench.argv
    assert bench.argv[bench.argv.index("--devices") + 1] == "0"


def test_the_launches_before_run_after_nvbenchs_flush_and_before_the_timed_one():
    bench = FakeBench()
    with running(bench) as run:
        run.measure(
            lambda: bench.log.append("launch"), SAMPLING, on_stream, lambda: bench.log.append("launches before")
        )

    events = [event for event in bench.log if not event.startswith("skip")]
    assert events == ["flush", "start", "launches before", "launch", "stop"] * (20 + WARM_UP_RUNS)


def test_launches_before_that_do_not_end_cost_that_series_and_not_the_next():
    def stuck():
        raise MeasurementError("the launches before it did not end")

    with running(FakeBench()) as run:
        with pytest.raises(MeasurementError, match="did not end"):
            run.measure(nothing, SAMPLING, on_stream, stuck)
        samples = run.measure(nothing, SAMPLING, on_stream)

    assert len(samples.values_us) == 20


def test_samples_dropped_under_throttle_are_counted():
    with running(FakeBench(throttled={0, 1, 7})) as run:
        samples = run.measure(nothing, SAMPLING, on_stream)

    assert len(samples.values_us) == len(samples.ended_s) == 20
    assert "; 3 dropped under throttle" in samples.stop_reason


def test_a_time_limit_keeps_what_was_taken_and_says_so():
    with running(FakeBench(budget=8)) as run:
        samples = run.measure(nothing, SAMPLING, on_stream)

    assert samples.stop_reason.startswith("time limit of 0.4 s: 8 samples")


def test_a_card_under_throttle_all_the_time_yields_no_number():
    with running(FakeBench(budget=8, throttled=range(5))) as run, pytest.raises(MeasurementError, match="3 samples"):
        run.measure(nothing, SAMPLING, on_stream)


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_time_below_the_resolution_is_refused(value):
    with running(FakeBench(lambda n: value)) as run, pytest.raises(BelowResolutionError):
        run.measure(nothing, SAMPLING, on_stream)


@pytest.mark.parametrize(("value_us", "said"), [(9.9, True), (10.1, False)])
def test_a_launch_too_short_for_the_event_clock_says_so(value_us, said):
    with running(FakeBench(lambda n: value_us)) as run:
        samples = run.measure(nothing, SAMPLING, on_stream)

    assert ("shorter than 20 steps of the event clock" in samples.stop_reason) is said


def test_an_error_in_a_launch_costs_that_series_and_not_the_next():
    def fails():
        raise ValueError("no such slot")

    with running(FakeBench()) as run:
        with pytest.raises(MeasurementError, match="ValueError: no such slot"):
            run.measure(fails, SAMPLING, on_stream)
        samples = run.measure(nothing, SAMPLING, on_stream)

    assert len(samples.values_us) == 20


def test_a_run_that_cannot_begin_fails_every_series_with_its_reason():
    with running(FakeBench(broken=RuntimeError("no such device"))) as run:
        for _ in range(2):
            with pytest.raises(MeasurementError, match="RuntimeError: no such device"):
                run.measure(nothing, SAMPLING, on_stream)


def test_more_series_than_states_are_refused():
    with running(FakeBench(), max_series=1) as run:
        run.measure(nothing, SAMPLING, on_stream)
        run._thread.join(5.0)
        with pytest.raises(MeasurementError, match="as many series as it can"):
            run.measure(nothing, SAMPLING, on_stream)


def test_missing_files_are_no_samples():
    with running(FakeBench(writes=False)) as run, pytest.raises(MeasurementError, match="wrote no sample times"):
        run.measure(nothing, SAMPLING, on_stream)


def test_closing_ends_the_thread_and_leaves_no_files():
    with running(FakeBench()) as run:
        run.measure(nothing, SAMPLING, on_stream)
        folder = Path(run._folder.name)
        assert folder.exists()

    assert not folder.exists()
    assert "nvbench" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(MeasurementError, match="closed"):
        run.measure(nothing, SAMPLING, on_stream)


def test_a_host_without_the_package_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bench", None)

    with pytest.raises(MissingToolError, match=r"cuda-bench cannot be used here: .*extra `nvbench`"):
        load_nvbench()


def test_a_package_without_its_native_part_is_a_missing_tool(monkeypatch):
    class Bench:
        def __getattr__(self, name):
            raise ImportError("No cuda-bench extension found for CUDA 14.x.")

    monkeypatch.setitem(sys.modules, "cuda", type(sys)("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bench", Bench())

    with pytest.raises(MissingToolError, match=r"No cuda-bench extension found for CUDA 14\.x"):
        load_nvbench()


@pytest.mark.parametrize(("num_nodes", "fits"), [(2, True), (3, False)])
def test_launches_are_counted_before_any_is_timed(monkeypatch, num_nodes, fits):
    order = []

    class Before:
        def __init__(self, launches, restore, device):
            order.append("count")
            self.num_nodes = num_nodes

        def replay(self):
            order.append("replay")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(nvbench_cold, "_torch_stream", lambda _, address: on_stream(address))
    monkeypatch.setattr(predecessors, "Predecessors", Before)
    with running(FakeBench()) as run:
        monkeypatch.setattr(nvbench_cold, "open_run", lambda _: run)
        with nullcontext() if fits else pytest.raises(MeasurementError, match="2 op calls ran 3 kernels"):
            measure_nvbench_cold([nothing, nothing], num_kernels=1, device_index=0, sampling=SAMPLING)

    assert order == ["count"] + ["replay"] * (1 + 20 + WARM_UP_RUNS if fits else 0)  # once before a stream is blocked


def test_no_gpu_is_no_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(NoDeviceError):
        measure_nvbench_cold([nothing])


def test_a_second_device_of_one_process_is_refused(monkeypatch):
    bench = FakeBench()
    monkeypatch.setattr(nvbench_cold, "load_nvbench", lambda: bench)
    first = nvbench_cold.open_run(0)
    first.measure(nothing, SAMPLING, on_stream)

    try:
        with pytest.raises(MeasurementError, match="once per process"):
            nvbench_cold.open_run(1)
        assert nvbench_cold.open_run(0) is first
    finally:
        first.close()
        nvbench_cold.open_run.cache_clear()
