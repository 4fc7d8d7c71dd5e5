"""What one measuring process does with its cases, its controls and its peers, and where the context is lost."""

from types import SimpleNamespace

import msgspec
import pytest
import torch

from benchmarks import gpu_process
from benchmarks.cases import SETS
from benchmarks.cpu_process import shrunken
from benchmarks.harness.errors import ContextLostError, HostLateError
from benchmarks.journal import Blamed, Journal, append
from benchmarks.peers.beside import PeerProvider
from benchmarks.results import Results
from examples.provider import TorchRecurrence
from tests.benchmarks.fake_provider import CASE, COPY, FakeProvider
from tests.harness.fake_timer import FakeTimer


@pytest.mark.gpu
def test_a_case_is_measured_from_end_to_end(tmp_path):
    from rich.console import Console

    from benchmarks.harness.record_files import decode_record
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
