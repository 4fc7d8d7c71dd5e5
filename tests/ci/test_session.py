"""Nights that end early: what they keep, what goes on with `--resume`, and what leaves no process behind."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.harness.errors import StoreError, StoreFullError
from benchmarks.harness.store import Store
from ci.config import load_nightly
from ci.exits import BrokenEnvironmentError, Exit, Interrupted, MissingDataError, UsageError
from ci.processes import interruptible, run_child
from ci.starting import ForkServer
from tests.ci.nights import make_records

SLEEPING = (sys.executable, "-S", "-c", "import time; time.sleep(300)")


def test_process_without_a_record_can_be_run_again(fake_night):
    crashed = fake_night.night([*make_records()[:4], None], do={4: "7"})
    assert crashed.code == Exit.INVALID
    assert "exit code 7" in crashed.nights[0].notes[0]

    fake_night.prepare(make_records()[:1])
    result = fake_night.run(resume=True)

    assert result.code == Exit.PASS
    assert len(result.nights[0].records) == 5
    assert len(fake_night.started) == 6
    assert fake_night.started[4].split()[1] == fake_night.started[5].split()[1]  # the same seed


def test_night_stops_after_two_processes_without_a_record(fake_night):
    result = fake_night.night([None] * 5, do=dict.fromkeys(range(5), "1"))

    assert result.code == Exit.INVALID
    assert result.nights == []
    assert len(fake_night.started) == 2


def test_process_beyond_its_time_cap_is_ended(fake_night, monkeypatch):
    config = fake_night.tmp / "nightly.toml"
    config.write_text("version = 1\nprocesses = 1\nmax_failed_processes = 1\n[time_cap_s]\nsmoke = 600\n")

    def an_hour_later_once_it_has_begun():
        return time.monotonic() + 3600 * len(fake_night.started)

    monkeypatch.setattr("ci.processes.time", SimpleNamespace(monotonic=an_hour_later_once_it_has_begun))
    monkeypatch.setattr("ci.nightly.load_nightly", lambda: load_nightly(config))

    result = fake_night.night([None], do={0: "hang"}, processes=1)

    assert result.code == Exit.INVALID
    assert "ended after 600 s" in result.messages[0]
    assert not is_running(fake_night.started[0])


def test_interrupted_night_keeps_what_it_has_and_goes_on(fake_night):
    handler = signal.getsignal(signal.SIGINT)
    interrupted = fake_night.night([*make_records()[:2], None], do={2: "interrupt"})
    assert interrupted.code == Exit.INTERRUPTED
    assert interrupted.nights == []
    assert "2 of 5 processes measured" in interrupted.messages[0]
    assert "--resume" in interrupted.messages[1]
    assert len(fake_night.stored()) == 2
    assert not is_running(fake_night.started[2])
    assert signal.getsignal(signal.SIGINT) is handler

    fake_night.prepare(make_records()[:3])
    result = fake_night.run(resume=True)

    assert result.code == Exit.PASS
    assert len(result.nights[0].records) == 5
    assert fake_night.started[2].split()[1] == fake_night.started[3].split()[1]


def test_complete_night_is_not_resumed(fake_night):
    fake_night.night(make_records())

    with pytest.raises(UsageError, match="is complete"):
        fake_night.run(resume=True)


def test_resume_without_a_begun_night_is_refused(fake_night):
    with pytest.raises(UsageError, match=r"night-state\.json does not exist"):
        fake_night.run(resume=True)


def test_resume_of_another_set_is_refused(fake_night):
    fake_night.night([None], do={0: "interrupt"})

    with pytest.raises(UsageError, match="begun with set"):
        fake_night.run(resume=True, case_set="pr")


@pytest.mark.parametrize(("code", "error"), [("2", UsageError), ("3", MissingDataError), ("5", BrokenEnvironmentError)])
def test_what_holds_for_all_processes_ends_the_night(fake_night, code, error):
    with pytest.raises(error):
        fake_night.night([make_records()[0], None], do={1: code})

    assert len(fake_night.started) == 2
    assert len(fake_night.stored()) == 1


def test_full_disk_loses_no_measured_process(fake_night, monkeypatch):
    def full(self, record, samples):
        raise StoreFullError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "add_record", full)
        with pytest.raises(BrokenEnvironmentError, match="measured, but not stored: no space left"):
            fake_night.night(make_records())
    assert len(fake_night.started) == 1

    fake_night.prepare(make_records()[:4])
    result = fake_night.run(resume=True)

    assert result.code == Exit.PASS
    assert len(fake_night.started) == 5  # the first one was stored, not measured again


def test_night_that_could_not_be_stored_is_judged_and_stored_by_resume(fake_night, monkeypatch):
    def full(self, night):
        raise StoreFullError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "add_night", full)
        broken = fake_night.night(make_records())
    assert broken.code == Exit.BROKEN
    assert any("--resume" in message for message in broken.messages)

    result = fake_night.run(resume=True)

    assert result.code == Exit.PASS
    assert len(fake_night.started) == 5
    assert Store(fake_night.store).nights() == result.nights


def test_state_that_cannot_be_written_names_its_folder_and_leaves_nothing(fake_night, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ci.whole_files.os", SimpleNamespace(getpid=os.getpid, fsync=full))
    with pytest.raises(BrokenEnvironmentError, match=r"night-state\.json: cannot be written: No space left") as caught:
        fake_night.night(make_records())
    assert "another --out" in caught.value.next_step
    assert [path.name for path in fake_night.options.out.iterdir()] == [".lock"]


def test_trouble_of_the_store_while_judging_is_no_mistake_of_the_program(fake_night, monkeypatch):
    def stuck(self, ids=None):
        raise StoreError("another writer has held it")

    monkeypatch.setattr(Store, "records", stuck)
    with pytest.raises(BrokenEnvironmentError, match="another writer has held it") as caught:
        fake_night.night(make_records())
    assert "--resume" in caught.value.next_step


def test_folder_of_records_on_their_way_is_named_by_the_commit(fake_night, monkeypatch):
    monkeypatch.setattr("ci.nightly.commit_of", lambda folder: "fedcba9876")

    fake_night.night([None, None])

    (folder,) = (fake_night.tmp / "out" / "processes").iterdir()
    assert "-fedcba98-" in folder.name


def test_killed_night_leaves_no_process_behind(tmp_path):
    child = "import os, time; from benchmarks.harness.parent import end_with_parent; end_with_parent(); "
    child += "print(os.getpid(), flush=True); time.sleep(60)"
    night = (
        "import os, sys; from pathlib import Path; from ci.processes import run_child; "
        f"run_child([sys.executable, '-c', {child!r}], env=os.environ, cwd=Path.cwd(), cap_s=60, "
        "on_line=lambda line: print(line, flush=True))"
    )
    with subprocess.Popen([sys.executable, "-c", night], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = process.stdout.readline()
        process.kill()

    while is_running(pid):  # whatever the kernel takes
        time.sleep(0.02)


def start_child():
    run_child(SLEEPING, env=os.environ, cwd=Path.cwd(), cap_s=60, on_line=print)


def start_fork_server():
    ForkServer(os.environ, Path.cwd(), SLEEPING).__enter__()


@pytest.mark.parametrize("start", [start_child, start_fork_server])
def test_signal_amid_the_start_of_a_process_leaves_none_behind(monkeypatch, start):
    started = []

    class Interrupting(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            started.append(self)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupting)
    with interruptible(), pytest.raises(Interrupted, match="SIGINT"):
        start()

    assert [child.poll() is not None for child in started] == [True]


def is_running(line):
    try:
        status = Path("/proc", line.split()[0], "stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(") ")[2][0] != "Z"  # dead, and not looked after by whoever has adopted it
