"""Forked measuring processes: from a clean parent, one at a time, ended with everything they started."""

import os
import re
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.harness.clean_parent import NotCleanError, native_threads, require_clean
from ci.config import choose_fork, load_nightly
from ci.exits import BrokenEnvironmentError, Exit, UsageError
from ci.session import Plan, State
from ci.starting import ForkServer
from tests.ci.nights import make_records

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="module")
def server():
    with ForkServer(ENV, ROOT) as started:
        yield started


def run(server, *arguments, watch=lambda: None):
    lines = []
    return server.run(arguments, cap_s=60, on_line=lines.append, watch=watch), lines


def test_forked_process_does_what_a_fresh_one_does(server):
    ended, lines = run(server, "--set", "smoke", "--case", "*_b1_*_fp32", "--list")

    assert ended.code == 0
    assert [line.split()[0] for line in lines] == ["kimi_k3_tp8_b1_t8_a3.84_fp32"]


def test_exit_code_and_last_words_of_a_forked_process_arrive(server):
    ended, _ = run(server, "--set", "smok", "--list")

    assert ended.code == Exit.USAGE
    assert ended.tail[-1].startswith("--set: expected one of smoke, pr")


def test_hung_forked_process_is_ended_and_the_parent_goes_on(server, tmp_path):
    arguments = ("--set", "smoke", "--seed", "1", "--out", str(tmp_path / "r.json"))
    ended, _ = run(server, *arguments, watch=lambda: "hung" if (tmp_path / "r.journal").exists() else None)

    assert (ended.code, ended.hung) == (-15, "hung")
    assert run(server, "--set", "smoke", "--list")[0].code == 0


def test_record_says_that_its_process_was_forked(server, tmp_path):
    from benchmarks.harness.record_files import decode_record

    out = tmp_path / "r.json"
    case = "kimi_k3_tp8_b32_t3_a2.73_fp32"
    ended, _ = run(server, "--set", "smoke", "--case", case, "--seed", "1", "--out", str(out), "--started", "forked")

    assert ended.code == 0
    assert decode_record(out.read_bytes()).started == "forked"


def test_parent_that_does_not_come_up_is_a_broken_environment():
    command = (sys.executable, "-c", "print('no torch here')")

    with pytest.raises(BrokenEnvironmentError, match="no torch here"), ForkServer(ENV, ROOT, command):
        pass


def test_parent_that_dies_is_a_broken_environment_and_does_not_hang():
    program = "import sys; print(sys.argv[1] + 'ready', flush=True); sys.stdin.readline(); print('out of memory')"

    command = (sys.executable, "-c", program)
    with ForkServer(ENV, ROOT, command) as server, pytest.raises(BrokenEnvironmentError) as caught:
        run(server, "--list")
    assert "out of memory" in str(caught.value)


def test_clean_parent_has_no_open_gpu_and_no_other_thread(tmp_path, monkeypatch):
    monkeypatch.setattr("threading.active_count", lambda: 1)
    (tmp_path / "fd").mkdir()
    (tmp_path / "task" / "1").mkdir(parents=True)
    (tmp_path / "task" / "1" / "comm").write_text("python\n")
    (tmp_path / "task" / "2").mkdir()
    (tmp_path / "task" / "2" / "comm").write_text("jemalloc_bg_thd\n")
    require_clean(tmp_path)

    (tmp_path / "fd" / "3").symlink_to("/dev/nvidiactl")
    with pytest.raises(NotCleanError, match="/dev/nvidiactl: CUDA or NVML"):
        require_clean(tmp_path)
    (tmp_path / "fd" / "3").unlink()
    (tmp_path / "task" / "2" / "comm").write_text("OpenBLAS\n")
    with pytest.raises(NotCleanError, match="OpenBLAS, python"):
        require_clean(tmp_path)


def test_python_thread_in_the_parent_is_refused(tmp_path):
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="prefetch")
    thread.start()
    try:
        with pytest.raises(NotCleanError, match="prefetch"):
            require_clean(tmp_path)
    finally:
        done.set()
        thread.join()


def test_initialised_cuda_in_the_parent_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)

    with pytest.raises(NotCleanError, match="CUDA is initialised"):
        require_clean(tmp_path)


def test_native_threads_of_this_process_are_seen():
    assert len(native_threads()) >= 1


def test_mixed_night_forks_every_second_process(fake_night):
    fake_night.night(make_records(), fork="mixed")

    text = (fake_night.tmp / "progress.txt").read_text()
    assert len(fake_night.started) == 5
    assert len(re.findall("forked", text)) == 2
    state = State(Plan("id", "smoke", "*", "s", None, ["cpu"], [11, 12, 13], fork="mixed"), {})
    assert [state.is_forked(seed) for seed in (11, 12, 13)] == [False, True, False]


def test_choice_of_the_command_line_comes_before_the_file():
    config = load_nightly()

    assert config.fork == "no"  # until equal spread has been shown on the card that measures
    assert choose_fork(None, config) == "no"
    assert choose_fork("mixed", config) == "mixed"
    with pytest.raises(UsageError, match="no, yes or mixed"):
        choose_fork("maybe", config)


@pytest.mark.gpu
def test_forked_process_measures_on_the_gpu(tmp_path):
    from benchmarks.harness.record_files import decode_record
    from ci.gpus import find_gpus

    gpu, out = find_gpus()[0], tmp_path / "r.json"
    arguments = ["--set", "smoke", "--case", "*_t3_*_fp32", "--seed", "1", "--out", str(out), "--started", "forked"]
    env = {name: value for name, value in gpu.child_env(os.environ).items() if name != "TRITON_INTERPRET"}
    with ForkServer(env, ROOT) as server:
        for _ in range(2):  # the second child shows that the first left the parent clean
            out.unlink(missing_ok=True)
            ended = server.run(arguments, cap_s=300, on_line=sys.stdout.write, watch=lambda: None)
            assert ended.code == 0, ended.tail

    record = decode_record(out.read_bytes())
    assert record.environment.gpu_model != "cpu"
    assert {m.status for m in record.measurements} == {"ok"}
