"""From one provider's launches to series with a value, or with the reason for having none."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks import gpu_process
from benchmarks.cold_launches import GRAPH_COLD, choose_contracts
from benchmarks.harness.errors import MissingToolError
from benchmarks.harness.measure import Samples
from benchmarks.harness.quiet import QuietCard
from benchmarks.harness.samples import samples_table
from benchmarks.results import Results
from tests.benchmarks.fake_provider import CASE, COPY, FakeProvider
from tests.harness.fake_timer import Device, FakeTimer, ReplayingTimer, Throttle


@pytest.fixture
def measure(monkeypatch):
    """Measures CASE with one provider on a card that exists only here, where each op call takes ``value_us``."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=50_000_000))
    monkeypatch.setattr(gpu_process, "available_bytes", lambda _: 1000)

    def run(provider, value_us=20.0, timer=None, card=None, contracts=GRAPH_COLD, delay=None):
        run.controls = []

        def control(*args, **options):
            run.controls.append((args, options))
            return 15.0

        host = Samples((value_us,) * 12, 3, "precise", tuple(float(at) for at in range(12)))
        monkeypatch.setattr(gpu_process, "measure_host_dispatch", lambda *_, **__: host)
        monkeypatch.setattr(gpu_process, "matched_stream", control)
        monkeypatch.setattr(gpu_process, "add_exact_figures", lambda *_: None)
        monkeypatch.setattr(gpu_process, "PROVIDERS", (provider,))
        results = Results()
        timer = timer or FakeTimer(lambda _: value_us)
        process = gpu_process.GpuProcess(
            0, torch.device("cpu"), COPY.bytes_per_s, results, contracts, timer=timer, card=card, delay=delay
        )
        process.measure_case(CASE)
        results.finish()
        return results

    return run


def series_of(results, contract="graph-cold"):
    (found,) = [item for item in results.measurements if item.contract == contract]
    return found


def test_a_measured_series_says_how_near_it_came_to_roofline_and_control(measure):
    results = measure(FakeProvider(), value_us=20.0)
    verify = series_of(results)

    assert (verify.status, verify.n_samples, verify.n_dropped) == ("ok", 30, 0)
    assert (verify.value, verify.low, verify.high) == pytest.approx((20.0, 20.0, 20.0))
    assert 20.0 * verify.launches_per_sample >= gpu_process.SAMPLING.min_sample_us
    assert (verify.read_bytes, verify.write_bytes) == (30_000_000, 10_000_000)
    assert verify.roofline_pct == pytest.approx(50)
    assert verify.control_pct == pytest.approx(75)
    assert results.failures() == []
    assert {series.contract: len(series.values) for series in results.samples} == {
        "graph-cold": 30,
        "host-dispatch": 12,
    }


def test_delay_lengthens_device_times_and_is_recorded_with_each(measure):
    card, provider = Device(), FakeProvider()
    provider.call = card.op(700.0)
    results = measure(provider, timer=card, delay=card.delay(2))
    verify, host = series_of(results), series_of(results, "host-dispatch")

    assert verify.delay_pct == pytest.approx(2, rel=1e-3)
    assert verify.value == pytest.approx(714.0, rel=1e-3)
    assert host.delay_pct is None
    assert results.failures() == []


def test_control_has_the_bytes_and_the_grid_of_the_op(measure):
    measure(FakeProvider())
    ((args, options),) = measure.controls

    assert args == (30_000_000, 10_000_000)
    assert options["num_programs"] == 384


def test_a_result_faster_than_memory_is_invalid(measure):
    results = measure(FakeProvider(), value_us=9.7)
    verify = series_of(results)

    assert verify.status == "invalid"
    assert "impossible: 9.70 us for 40000000 bytes" in verify.reason
    assert len(results.failures()) == 1


def test_a_result_within_two_percent_of_the_roofline_is_believed(measure):
    assert series_of(measure(FakeProvider(), value_us=9.81)).status == "ok"


def test_a_case_that_does_not_fit_is_skipped_with_the_reason_and_fails_nothing(measure):
    results = measure(FakeProvider(needed=2**40))

    assert {item.status for item in results.measurements} == {"skipped"}
    assert series_of(results).reason == "needs 1024.0 GiB of device memory, 0.0 GiB are free"
    assert results.failures() == []


def test_a_red_check_yields_no_number(measure):
    results = measure(FakeProvider(num_touched=3))

    assert {(item.status, item.value) for item in results.measurements} == {("failed", None)}
    assert series_of(results).reason == "correctness: verify untouched 3 is above 0"
    assert results.samples == []
    assert len(results.failures()) == 3  # the check, and both series


def test_a_kernel_that_raises_costs_its_case_the_numbers_and_no_more(measure):
    results = measure(FakeProvider(error=RuntimeError("misaligned address")))

    assert {(item.status, item.value) for item in results.measurements} == {("failed", None)}
    assert "RuntimeError: misaligned address" in series_of(results).reason


def test_running_out_of_memory_is_a_skip(measure):
    results = measure(FakeProvider(error=torch.OutOfMemoryError("tried to allocate 9 GiB")))

    assert series_of(results).status == "skipped"
    assert "tried to allocate 9 GiB" in series_of(results).reason


def test_values_that_stop_being_finite_while_timed_take_the_number_back(measure):
    results = measure(FakeProvider(num_nan=5))

    assert {(item.status, item.value) for item in results.measurements} == {("failed", None)}
    assert series_of(results).roofline_pct is None
    assert results.samples == []


def test_a_contract_that_cannot_be_kept_is_invalid(measure):
    results = measure(FakeProvider(), timer=FakeTimer(lambda _: 600.0, late=lambda _: True))
    verify = series_of(results)

    assert (verify.status, verify.value) == ("invalid", None)
    assert "began before the host had enqueued them" in verify.reason


def test_a_result_under_the_resolution_of_the_timer_says_so(measure):
    verify = series_of(measure(FakeProvider(), timer=FakeTimer(lambda _: 0.0)))

    assert (verify.status, verify.value) == ("invalid", None)
    assert verify.reason == "a window read 0 us: below the timer's resolution of 0.5 us"


def test_memory_is_restored_before_each_window_and_once_more_for_the_next_series(measure):
    provider = FakeProvider()
    verify = series_of(measure(provider, timer=ReplayingTimer(lambda _: 600.0)))

    assert provider.num_restored > verify.n_samples


def test_a_throttled_series_has_no_number_and_keeps_its_samples(measure):
    card = QuietCard(Throttle("thermal", lambda _: True), sleep=lambda _: None)
    results = measure(FakeProvider(), value_us=600.0, card=card)
    verify = series_of(results)
    rows = [row for row in samples_table(results.samples).to_pylist() if row["contract"] == "graph-cold"]

    assert (verify.status, verify.value, verify.n_samples) == ("invalid", None, 0)
    assert verify.reason.startswith("no accepted samples in 0.25 s")
    assert verify.n_dropped == len(rows) > 100
    assert not any(row["accepted"] for row in rows)
    assert verify.throttle_us["thermal"] > 0


def test_a_series_throttled_at_first_counts_what_came_after(measure):
    card = QuietCard(Throttle("thermal", lambda reading: reading == 1), sleep=lambda _: None)
    verify = series_of(measure(FakeProvider(), value_us=600.0, card=card))

    assert (verify.status, verify.n_samples, verify.n_dropped) == ("ok", 30, 30)
    assert verify.throttle_us == {"thermal": 1000}


def test_launches_alone_are_a_series_of_their_own(measure, monkeypatch):
    asked = []

    def cold(series, device):
        asked.append(series.op)
        return Samples((23.0,) * 12, 1, "most samples", tuple(float(at) for at in range(12)))

    monkeypatch.setattr(gpu_process, "measure_cold_launches", cold)
    results = measure(FakeProvider(), contracts=choose_contracts("graph-cold,nvbench-cold", "pr"))

    assert asked == ["verify"]
    assert (series_of(results).value, series_of(results, "nvbench-cold").value) == pytest.approx((20.0, 23.0))
    assert series_of(results, "nvbench-cold").metric == "device_us"
    assert series_of(results, "nvbench-cold").control_pct is None


def test_a_host_without_nvbench_skips_its_series_and_takes_no_other_timer(measure, monkeypatch):
    def missing(series, device):
        raise MissingToolError("cuda-bench cannot be used here: No module named 'cuda.bench'")

    monkeypatch.setattr(gpu_process, "measure_cold_launches", missing)
    results = measure(FakeProvider(), contracts=choose_contracts("graph-cold,nvbench-cold", "pr"))
    skipped = series_of(results, "nvbench-cold")

    assert (skipped.status, skipped.value) == ("skipped", None)
    assert skipped.reason == "cuda-bench cannot be used here: No module named 'cuda.bench'"
    assert series_of(results).status == "ok"
    assert results.failures() == []


def test_a_case_that_fails_its_check_has_no_launch_alone_either(measure):
    results = measure(FakeProvider(num_touched=1), contracts=choose_contracts("graph-cold,nvbench-cold", "pr"))

    assert series_of(results, "nvbench-cold").status == "failed"


def test_a_lean_process_measures_no_matched_streams(measure):
    results = measure(FakeProvider(), contracts=choose_contracts(None, "pr", lean=True))

    assert [item.contract for item in results.measurements] == ["graph-cold"]
    assert series_of(results).control_pct is None
    assert not measure.controls


def test_failures_of_a_peer_fail_no_process(measure):
    results = measure(FakeProvider(num_touched=3))

    assert results.failures({"recoverssm"}) == []
    assert results.failures() != []
