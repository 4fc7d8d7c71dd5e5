from types import SimpleNamespace

import msgspec
import pytest
import torch

from benchmarks import gpu_process
from benchmarks.cases import SETS
from benchmarks.cold_launches import GRAPH_COLD, choose_contracts
from benchmarks.cpu_process import shrunken
from benchmarks.harness.errors import ContextLostError, HostLateError, MissingToolError
from benchmarks.harness.measure import Samples
from benchmarks.harness.quiet import QuietCard
from benchmarks.harness.records import Control
from benchmarks.harness.samples import samples_table
from benchmarks.journal import Blamed, Journal, append
from benchmarks.peers.beside import PeerProvider
from benchmarks.providers import Series
from benchmarks.results import Results
from examples.provider import TorchRecurrence
from recoverssm.cost import Cost
from tests.harness.fake_timer import Device, FakeTimer, ReplayingTimer, Throttle

CASE = SETS["smoke"][0]
COPY = Control(name="copy", read_bytes=10**9, write_bytes=10**9, median_us=500.0, bytes_per_s=4e12)
COST = Cost(read_bytes=30_000_000, write_bytes=10_000_000, flops=0)  # 10 us at 4 TB/s


class FakePrepared:
    def __init__(self, provider):
        self.provider = provider

    def check(self, checklist):
        if self.provider.error is not None:
            raise self.provider.error
        checklist.count("verify", "untouched", self.provider.num_touched, "layer 0")

    def series(self):
        restore = self.provider.restore
        return [
            Series(op, contract, (self.provider.call,), COST, 1, 384, restore if contract == "graph-cold" else None)
            for op, contract in self.provider.series_names
        ]

    def num_non_finite(self):
        return self.provider.num_nan


class FakeProvider:
    name = "recoverssm"
    series_names = (("verify", "graph-cold"), ("verify", "host-dispatch"))

    def __init__(self, *, needed=1, num_touched=0, num_nan=0, error=None):
        self.needed, self.num_touched, self.num_nan, self.error = needed, num_touched, num_nan, error
        self.num_restored = 0

    def call(self):
        pass

    def restore(self):
        self.num_restored += 1

    def cache_bytes(self, case):
        return 1

    def needed_bytes(self, case, l2_bytes):
        return self.needed

    def prepare(self, case, device, seed, l2_bytes):
        return FakePrepared(self)


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


@pytest.mark.gpu
def test_a_case_is_measured_from_end_to_end(tmp_path):
    from rich.console import Console

    from benchmarks.harness.records import decode_record
    from benchmarks.process import Request, measure, write_record
    from benchmarks.providers.full_state import FullStateProvider
    from benchmarks.providers.recoverssm import RecoverSSMProvider

    (case,) = (case for case in SETS["smoke"] if case.name == "kimi_k3_tp8_b32_t3_a2.73_fp32")
    record, samples, failures = measure(Request("smoke", [case], 1, None, ["test"]), Console(quiet=True))
    write_record(tmp_path / "record.json", record, samples)
    stored = decode_record((tmp_path / "record.json").read_bytes())

    assert failures == []
    assert {item.status for item in stored.measurements} == {"ok"}
    timed = {(item.provider, item.op, item.contract) for item in stored.measurements if item.contract != "exact"}
    assert timed == {
        (provider.name, op, contract)
        for provider in (RecoverSSMProvider, FullStateProvider)
        for op, contract in provider.series_names
    }
    assert {(control.name, control.when) for control in stored.controls} == {
        (name, when) for name in ("copy", "read", "read4_write1", "fma") for when in ("start", "end")
    }
    assert set(stored.drift_pct) == {"copy", "read", "read4_write1", "fma"}
    assert all(abs(change) < 5.0 for change in stored.drift_pct.values())
    device = [item for item in stored.measurements if item.contract == "graph-cold"]
    assert all(item.n_samples >= 30 for item in device)
    assert all(200 < item.sm_mhz < 4000 for item in device)
    assert all(check.passed for check in stored.checks)
    assert samples.num_rows == sum(item.n_samples + item.n_dropped for item in stored.measurements)


class FakeProgress:
    def __init__(self):
        self.ended = []

    def expect(self, total):
        pass

    def case_started(self, name):
        pass

    def case_ended(self, name, outcome):
        self.ended.append((name, outcome))


def fake_controls(device, *, when="start", **_):
    if when == "end" and fake_controls.end_error is not None:
        raise fake_controls.end_error
    return [msgspec.structs.replace(COPY, when=when)]


fake_controls.end_error = None


@pytest.fixture
def measure_all(monkeypatch):
    """Measures the smoke set where ``crash`` maps case names to what their measuring raises."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=50_000_000))
    monkeypatch.setattr(gpu_process, "measure_controls", fake_controls)
    monkeypatch.setattr(gpu_process, "CudaEventTimer", lambda _: FakeTimer(lambda _: 20.0))
    monkeypatch.setattr(gpu_process, "add_exact_figures", lambda *_: None)
    monkeypatch.setattr(gpu_process, "PROVIDERS", (FakeProvider(),))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1, 1))

    def run(crash, lost=(), path=None, peers=(), cases=SETS["smoke"]):
        state = {"lost": None}

        def measure_case(self, case):
            self._results.add_without_value("verify", "recoverssm", case.name, "graph-cold", "skipped", "measured here")
            state["lost"] = "CUDA error: an illegal memory access" if case.name in lost else None
            if case.name in crash:
                raise crash[case.name]
            return "fine"

        def synchronize(device):
            if state["lost"]:
                raise RuntimeError(state["lost"])

        monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
        monkeypatch.setattr(gpu_process.GpuProcess, "measure_case", measure_case)
        results, progress = Results(), FakeProgress()
        with Journal(path, results, {"seed": "1"}) as journal:
            progress.controls = gpu_process.measure_cases(
                cases, 1, torch.device("cpu"), results, progress, journal, peers=peers
            )
            progress.attempts = journal.attempts(progress.controls)
        return results, progress

    return run


def test_controls_are_taken_at_both_ends_of_the_process(measure_all):
    _, progress = measure_all({})

    assert [control.when for control in progress.controls] == ["start", "end"]


@pytest.mark.parametrize("error", [HostLateError("7 of 9 windows began too early"), torch.OutOfMemoryError("full")])
def test_controls_that_cannot_be_taken_at_the_end_cost_no_record(measure_all, monkeypatch, error):
    monkeypatch.setattr(fake_controls, "end_error", error)
    _, progress = measure_all({})

    assert [control.when for control in progress.controls] == ["start"]


def test_a_case_that_raises_costs_itself_and_the_process_goes_on(measure_all):
    results, _ = measure_all({CASE.name: ZeroDivisionError("oops")})

    reasons = {item.case: item.reason for item in results.measurements}
    assert reasons.pop(CASE.name) == "raised ZeroDivisionError: oops"
    assert set(reasons.values()) == {"measured here"}
    assert len(reasons) == len(SETS["smoke"]) - 1
    assert all(item.status == "failed" for item in results.measurements if item.case == CASE.name)


@pytest.mark.parametrize("crash", [{}, {CASE.name: RuntimeError("CUDA error: illegal")}], ids=["swallowed", "raised"])
def test_a_lost_context_ends_the_process_after_noting_the_case_and_a_successor_has_the_rest(
    measure_all, tmp_path, crash
):
    path = tmp_path / "record.journal"
    with pytest.raises(ContextLostError, match=CASE.name):
        measure_all(crash, lost=[CASE.name], path=path)

    results, progress = measure_all({}, path=path)

    found = {item.case: item for item in results.measurements}
    assert len(found) == len(SETS["smoke"])
    assert found.pop(CASE.name).reason.startswith("lost the CUDA context: RuntimeError: CUDA error: ")
    assert {item.reason for item in found.values()} == {"measured here"}
    before = [outcome for _, outcome in progress.ended if outcome == "finished by an earlier process"]
    (attempt,) = progress.attempts
    assert len(before) == attempt.num_parts >= 1
    assert (attempt.controls, attempt.drift_pct) == ([COPY], {"copy": 0.0})


def test_a_blamed_case_is_not_touched(measure_all, tmp_path):
    path = tmp_path / "record.journal"
    append(path, [Blamed(CASE.name, "killed by SIGSEGV")])

    results, _ = measure_all({CASE.name: AssertionError("was tried")}, path=path)

    assert {item.reason for item in results.measurements if item.case == CASE.name} == {"killed by SIGSEGV"}


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


class Somebody(TorchRecurrence):
    """A peer whose ``unsupported`` answers or raises."""

    def __init__(self, answer):
        self.version, self.answer = "1", answer

    def unsupported(self, case, device):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [("bf16 alone", "skipped", "bf16 alone"), (KeyError("x"), "failed", "unsupported raised KeyError: 'x'")],
)
def test_a_peer_that_cannot_do_a_case_has_rows_that_say_why(measure_all, answer, status, reason):
    results, _ = measure_all({}, peers=[PeerProvider(Somebody(answer))], cases=[CASE])

    found = [(m.op, m.status, m.reason) for m in results.measurements if m.provider == "torch_recurrence"]
    assert found == [(op, status, reason) for op in ("verify", "commit_state", "conv", "step")]


def test_a_peer_cannot_end_the_process_nor_leave_torch_set_otherwise(measure_all, monkeypatch):
    def prepare(self, workload):
        torch.set_default_dtype(torch.float64)
        raise SystemExit(2)

    monkeypatch.setattr(gpu_process, "available_bytes", lambda _: 2**40)
    monkeypatch.setattr(Somebody, "prepare", prepare)
    results, _ = measure_all({}, peers=[PeerProvider(Somebody(None))], cases=[shrunken(CASE)])

    reasons = {m.reason for m in results.measurements if m.provider == "torch_recurrence"}
    assert reasons == {"raised ExitedError: sys.exit(2)"}
    assert torch.get_default_dtype() == torch.float32


def test_a_peer_that_raises_costs_itself_alone(measure_all, monkeypatch):
    monkeypatch.setattr(PeerProvider, "needed_bytes", lambda *_: 1 / 0)

    results, progress = measure_all({}, peers=[PeerProvider(Somebody(None))], cases=[CASE])

    reasons = {(m.provider, m.reason) for m in results.measurements}
    assert reasons == {
        ("recoverssm", "measured here"),
        ("torch_recurrence", "raised ZeroDivisionError: division by zero"),
    }
    assert sorted(name for name, _ in progress.ended) == [CASE.name, f"{CASE.name} of torch_recurrence"]


def test_a_peer_is_checked_and_timed_as_ours_are(measure_all, monkeypatch):
    monkeypatch.setattr(gpu_process, "available_bytes", lambda _: 2**40)
    monkeypatch.setattr(Somebody, "ops", ("verify",))
    results, _ = measure_all({}, peers=[PeerProvider(Somebody(None))], cases=[shrunken(CASE)])

    (verify,) = [m for m in results.measurements if m.provider == "torch_recurrence"]
    assert (verify.op, verify.status, verify.value) == ("verify", "ok", pytest.approx(20.0))
    assert {(check.provider, check.passed) for check in results.checks} == {("torch_recurrence", True)}


def test_failures_of_a_peer_fail_no_process(measure):
    results = measure(FakeProvider(num_touched=3))

    assert results.failures({"recoverssm"}) == []
    assert results.failures() != []
