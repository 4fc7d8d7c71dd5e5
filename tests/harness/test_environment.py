import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.harness import environment
from benchmarks.harness.environment import (
    collect_environment,
    collect_silicon,
    collect_subject,
    gpu_slug,
    source_hash,
)
from tests.harness.fake_nvml import FakeNvml

H200 = SimpleNamespace(
    name="NVIDIA H200",
    total_memory=150_000_000_000,
    multi_processor_count=132,
    L2_cache_size=62_914_560,
    major=9,
    minor=0,
    uuid="1234",
)
NVML_FIELDS = {
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetEccMode": "ecc",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_w",
    "nvmlSystemGetDriverVersion": "driver",
}


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    card = SimpleNamespace(**vars(H200))
    monkeypatch.setattr(environment, "_properties", lambda _: card)
    return card


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout" / "thing"
    (folder / "kernels").mkdir(parents=True)
    (folder / "__init__.py").write_text("one = 1\n")
    (folder / "kernels" / "verify.py").write_text("two = 2\n")
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("NVIDIA GB300 (MIG 1g.35gb)", "nvidia-gb300-mig-1g-35gb"),
    ],
)
def test_slug_of_a_gpu_fits_into_a_path(name: str, slug: str):
    assert gpu_slug(name) == slug


def test_environment_of_a_card_is_complete(h200: SimpleNamespace):
    found = collect_environment(nvml=FakeNvml())

    assert found.gpu_model == "nvidia-h200"
    assert (found.gpu_memory_bytes, found.num_sms, found.l2_bytes) == (150_000_000_000, 132, 62_914_560)
    assert found.compute_capability == "9.0"
    assert (found.mig, found.ecc, found.power_limit_w, found.driver) == ("disabled", "enabled", 700.0, "580.159.03")
    assert set(found.missing) <= {"cuda"}  # absent in a CPU build of torch


@pytest.mark.parametrize("call", NVML_FIELDS)
def test_refused_question_leaves_one_field_out_with_the_reason(h200: SimpleNamespace, call: str):
    found = collect_environment(nvml=FakeNvml(refused=call))

    assert getattr(found, NVML_FIELDS[call]) is None
    assert found.missing[NVML_FIELDS[call]] == "NVMLError: Not Supported"
    assert set(found.missing) <= {NVML_FIELDS[call], "cuda"}


@pytest.mark.parametrize("attribute", ["L2_cache_size", "total_memory"])
def test_size_reported_as_zero_is_unknown_and_not_zero(h200: SimpleNamespace, attribute: str):
    setattr(h200, attribute, 0)
    found = collect_environment(nvml=FakeNvml())

    field = {"L2_cache_size": "l2_bytes", "total_memory": "gpu_memory_bytes"}[attribute]
    assert getattr(found, field) is None
    assert found.missing[field] == f"torch reports {attribute} = 0"


def test_machine_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = collect_environment()

    assert found.gpu_model == "cpu"
    assert found.l2_bytes is None
    assert found.missing["l2_bytes"] == "torch sees no CUDA device"
    assert found.torch == torch.__version__
    assert found.ptxas is None or found.ptxas[0].isdigit()
    for field in ("gpu_memory_bytes", "compute_capability", "driver", "mig", "ecc", "power_limit_w"):
        assert field in found.missing


def test_same_machine_twice_is_one_environment():
    first, second = collect_environment(), collect_environment()

    assert first.cut_key(host=True) == second.cut_key(host=True)


def test_aarch64_processor_without_a_name_is_named_by_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n\nprocessor\t: 1\n")
    monkeypatch.setattr(environment, "CPUINFO", cpuinfo)
    monkeypatch.setattr(environment.platform, "machine", lambda: "aarch64")

    assert collect_environment().cpu_model == "aarch64 cpu implementer 0x41, cpu part 0xd4f"


def test_silicon_names_card_and_host(h200: SimpleNamespace):
    found = collect_silicon(nvml=FakeNvml())

    assert (found.gpu_uuid, found.vbios) == ("GPU-1234", "96.00.A5")
    assert found.host


def test_source_hash_does_not_depend_on_the_folder(package: Path, tmp_path: Path):
    moved = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(package, moved)

    assert source_hash(moved) == source_hash(package)


def test_compiled_files_do_not_change_the_source_hash(package: Path):
    before = source_hash(package)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "thing.pyc").write_bytes(b"\0")

    assert source_hash(package) == before


@pytest.mark.parametrize("change", ["content", "name", "moved text"])
def test_changed_source_changes_the_hash(package: Path, change: str):
    before = source_hash(package)
    if change == "content":
        (package / "kernels" / "verify.py").write_text("two = 3\n")
    elif change == "name":
        (package / "kernels" / "verify.py").rename(package / "kernels" / "commit.py")
    else:  # the same bytes, cut in two at another place
        (package / "__init__.py").write_text("one = 1\ntwo = 2\n")
        (package / "kernels" / "verify.py").write_text("")

    assert source_hash(package) != before


def test_subject_without_git_has_no_commit_but_its_source_hash(package: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(package))
    found = collect_subject(package)

    assert (found.commit, found.commit_utc, found.dirty) == (None, None, None)
    assert found.source_hash == source_hash(package)


def test_subject_without_git_takes_the_commit_it_is_given(package: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(package))

    assert collect_subject(package, commit="abc123").commit == "abc123"


def test_subject_in_a_repository_names_commit_time_and_changes(package: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2026-11-29T14:00:00+02:00")
    git(package.parent, "init", "-q")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-q", "-m", "begin")
    clean = collect_subject(package)
    (package / "__init__.py").write_text("one = 2\n")

    assert clean.commit == git(package, "rev-parse", "HEAD").strip()
    assert clean.commit_utc == "2026-11-29T12:00:00Z"
    assert clean.dirty is False
    assert collect_subject(package).dirty is True


def test_version_is_read_from_the_checkout(package: Path):
    (package.parent / "pyproject.toml").write_text('[project]\nname = "thing"\nversion = "7.8.9"\n')

    assert collect_subject(package).version == "7.8.9"
