"""`ci doctor`: what is found on this machine, and the repair."""

import json
import re

import pytest

from ci import doctor
from ci.exits import Exit
from ci.gpus import Gpu, TorchView
from tests.ci.command_line import invoke
from tests.ci.nights import make_records

pytestmark = pytest.mark.usefixtures("no_gpu")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(doctor, "ask_torch", lambda env: TorchView("2.11", None, (), None))
    monkeypatch.setattr(doctor, "_interpreter", lambda: doctor.Finding("interpreter", "ok", "not tried"))


def test_machine_without_a_gpu_can_run_the_nightly(tmp_path):
    result = invoke("doctor", "--json", "--store", str(tmp_path / "store"))

    found = json.loads(result.output)
    assert result.exit_code == found["exit_code"] == 0
    assert {f["level"] for f in found["findings"]} <= {"ok", "limited"}
    assert any("on the CPU" in what for what in found["will_run"])
    assert any("device times" in what for what in found["will_not_run"])


def test_absent_nvml_is_no_ok(tmp_path, quick):
    result = invoke("doctor", "--json", "--store", str(tmp_path / "store"))

    nvml = next(f for f in json.loads(result.output)["findings"] if f["name"] == "nvml")
    assert (nvml["level"] == "ok") == nvml["found"].startswith("driver ")
    assert nvml["level"] == "ok" or "no GPU to watch" in nvml["found"]


def test_missing_package_is_named_with_its_repair_and_exits_5(monkeypatch, tmp_path, quick):
    real = doctor.importlib.util.find_spec
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name == "scipy" else real(name))

    result = invoke("doctor", "--store", str(tmp_path))

    assert result.exit_code == Exit.BROKEN
    assert re.search(r"BROKEN +scipy +not installed\n +fix: make setup", result.output)
    assert "will not run: the nightly, until this is repaired: scipy" in result.output


def test_interpreter_that_fails_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "ROOT", tmp_path)  # there is no probe there
    monkeypatch.setattr(
        doctor, "ask_torch", lambda env: doctor.importlib.import_module("ci.gpus").TorchView("2", None, (), None)
    )

    examination = doctor.examine(str(tmp_path))

    (finding,) = [f for f in examination.findings if f.name == "interpreter"]
    assert finding.level == "broken"
    assert "numpy" in finding.found


def test_held_lock_is_named_and_torch_leaves_that_gpu_alone(monkeypatch, tmp_path, quick):
    from benchmarks.harness.lock import GpuLock

    monkeypatch.setattr(doctor, "find_gpus", lambda: [Gpu("GPU-1", "NVIDIA H200")])
    monkeypatch.setattr(doctor, "ask_torch", lambda env: pytest.fail("asked"))
    with GpuLock("GPU-1", command="a night"):
        examination = doctor.examine(str(tmp_path))

    levels = {f.name: (f.level, f.found) for f in examination.findings}
    assert levels["lock"][0] == levels["torch"][0] == "limited"
    assert "a night" in levels["lock"][1]


def test_lock_that_cannot_be_kept_is_a_finding_and_not_the_end(monkeypatch, tmp_path, quick):
    (tmp_path / "locks").write_text("no folder")
    monkeypatch.setattr(doctor, "find_gpus", lambda: [Gpu("GPU-1", "NVIDIA H200")])
    monkeypatch.setattr(doctor, "ask_torch", lambda env: pytest.fail("asked"))

    found = {f.name: f for f in doctor.examine(str(tmp_path)).findings}

    assert (found["lock"].level, found["torch"].level) == ("broken", "limited")
    assert "no lock of GPU GPU-1 can be kept" in found["lock"].found


def test_no_git_is_limited_and_says_how_to_name_the_commit(monkeypatch, tmp_path, quick):
    monkeypatch.setattr(doctor, "ROOT", tmp_path)

    (finding,) = [f for f in doctor.examine(str(tmp_path)).findings if f.name == "git"]

    assert finding.level == "limited"
    assert "--commit SHA" in finding.fix


def test_branch_store_needs_a_repository(monkeypatch, tmp_path, quick):
    monkeypatch.chdir(tmp_path)

    (finding,) = [f for f in doctor.examine("branch:perf-history").findings if f.name == "store"]

    assert finding.level == "broken"
    assert "in no git repository" in finding.found


@pytest.mark.parametrize(
    ("installed", "machine", "level", "found"),
    [
        ({"cuda.bench", "cuda.bindings"}, "x86_64", "ok", "cuda-bench of unknown version"),
        (
            {"cuda.bindings"},
            "x86_64",
            "limited",
            "cuda-bench is not installed: series under nvbench-cold are skipped",
        ),
        ({"cuda.bench"}, "x86_64", "limited", "without cuda-bindings"),
        (set(), "aarch64", "limited", "no wheel for aarch64"),
    ],
)
def test_nvbench_is_there_or_its_series_are_skipped(monkeypatch, installed, machine, level, found):
    monkeypatch.setattr(doctor, "_installed", installed.__contains__)
    monkeypatch.setattr(doctor, "_version", lambda _: "of unknown version")
    monkeypatch.setattr(doctor.platform, "machine", lambda: machine)

    finding = doctor._nvbench(on_gpu=True)

    assert finding.level == level
    assert found in finding.found


def test_a_module_of_a_package_that_is_not_there_is_not_installed():
    assert doctor._installed("no_such_package.bench") is False
    assert doctor._installed("importlib.metadata") is True


def test_damaged_store_is_named_and_left_as_it_is(fake_night, quick):
    night = fake_night.night(make_records()).nights[0]
    path = next(fake_night.store.rglob(f"nights/**/{night.id}.json"))
    path.write_text("{")

    (finding,) = [f for f in doctor.examine(str(fake_night.store)).findings if f.name == "store"]

    assert finding.level == "limited"
    assert night.id in finding.found
    assert path.read_text() == "{"


def test_doctor_names_a_gpu_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(doctor, "silent_gpus", lambda: ["GPU 2 of 2 does not answer: GPU is lost"])

    *_, finding = doctor._gpu([Gpu("GPU-1", "NVIDIA H200")])

    assert (finding.level, finding.found) == ("limited", "GPU 2 of 2 does not answer: GPU is lost")
