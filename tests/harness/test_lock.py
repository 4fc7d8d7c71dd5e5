import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.errors import LockHeldError
from benchmarks.harness.lock import FOLDER_VARIABLE, GpuLock, lock_folder

UUID = "GPU-0d3c"
HOLD = """
import sys
from pathlib import Path
from benchmarks.harness.lock import GpuLock
with GpuLock(sys.argv[1], Path(sys.argv[2]), command="ci nightly"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path):
    """Another process that holds the lock until its standard input ends."""
    command = [sys.executable, "-c", HOLD, UUID, str(tmp_path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_second_process_is_refused_with_the_name_of_the_first(other: subprocess.Popen, tmp_path: Path):
    with pytest.raises(LockHeldError, match=rf"{UUID}: in use by pid {other.pid} \(ci nightly\) since 20") as caught:
        GpuLock(UUID, tmp_path).__enter__()

    assert FOLDER_VARIABLE in str(caught.value)


def test_part_of_a_gpu_is_locked_with_and_without_its_prefix(tmp_path: Path):
    with GpuLock("MIG-7f3a", tmp_path), pytest.raises(LockHeldError):
        GpuLock("7f3a", tmp_path).__enter__()


def test_uuid_without_its_prefix_is_the_same_gpu(other: subprocess.Popen, tmp_path: Path):
    with pytest.raises(LockHeldError):
        GpuLock("0d3c", tmp_path).__enter__()


def test_other_gpu_is_free(other: subprocess.Popen, tmp_path: Path):
    with GpuLock("GPU-ffff", tmp_path):
        assert True


def test_killed_process_gives_its_lock_back(other: subprocess.Popen, tmp_path: Path):
    other.kill()
    other.wait()

    with GpuLock(UUID, tmp_path, timeout_s=60, command="second"):
        holder = json.loads((tmp_path / "0d3c.holder.json").read_text())
    assert holder["command"] == "second"
    assert holder["pid"] == os.getpid()


def test_waiting_run_gets_the_lock_when_the_other_ends(other: subprocess.Popen, tmp_path: Path):
    assert other.stdin is not None
    other.stdin.close()

    with GpuLock(UUID, tmp_path, timeout_s=60):
        assert (tmp_path / "0d3c.holder.json").exists()
    assert not (tmp_path / "0d3c.holder.json").exists()


def test_unreadable_description_of_the_holder_is_admitted(other: subprocess.Popen, tmp_path: Path):
    (tmp_path / "0d3c.holder.json").write_text('{"pid": 1')

    with pytest.raises(LockHeldError, match="a process that left no description"):
        GpuLock(UUID, tmp_path).__enter__()


def test_folder_comes_from_argument_then_variable_then_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(FOLDER_VARIABLE, "/shared/locks")

    assert lock_folder(tmp_path) == tmp_path
    assert lock_folder() == Path("/shared/locks")
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert lock_folder().name == f"recoverssm-locks-{os.getuid()}"


def test_description_that_cannot_be_written_does_not_keep_a_free_gpu(tmp_path: Path):
    # A killed run of another user may have left one; a folder in its place refuses root as well.
    (tmp_path / "abc.holder.json").mkdir()

    with GpuLock("GPU-abc", tmp_path), pytest.raises(LockHeldError, match="left no description"):
        GpuLock("GPU-abc", tmp_path).__enter__()
    with GpuLock("GPU-abc", tmp_path):
        pass


@pytest.mark.parametrize(
    "spoil", [lambda place: place.write_text(""), lambda place: (place / "0d3c.lock").mkdir(parents=True)]
)
def test_folder_in_which_no_lock_can_be_kept_is_told_with_the_way_out(tmp_path: Path, spoil):
    spoil(tmp_path / "locks")

    with (
        pytest.raises(OSError, match=r"no lock of GPU GPU-0d3c can be kept: .*RECOVERSSM_LOCK_DIR"),
        GpuLock(UUID, tmp_path / "locks"),
    ):
        pass
