"""Cases that crash, hang or lose the CUDA context cost themselves; what was finished is never measured again."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from benchmarks.harness.lock import GpuLock
from benchmarks.journal import read_journal
from ci.config import load_nightly
from ci.exits import Exit
from ci.gpus import Gpu
from ci.processes import Ended
from ci.session import load
from ci.watching import JournalWatch
from tests.ci.fake_cases import CASES
from tests.ci.nights import FakeNight

PROGRAM = Path(__file__).with_name("fake_cases.py")
ROOT = Path(__file__).parents[2]
CONFIG = """
version = 1
processes = 1
max_failed_processes = 1
max_successors = 2
max_crashes_of_a_case = 1
case_cap_s = 300
precompile_cap_s = 1
fork = "no"
[time_cap_s]
smoke = 600
"""


@pytest.fixture
def crashing(fake_night, monkeypatch):
    """A night of one process by fake_cases.py; call it with what the cases do."""
    config = fake_night.tmp / "nightly.toml"
    config.write_text(CONFIG)
    monkeypatch.setattr("ci.nightly.load_nightly", lambda: load_nightly(config))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(do, **changes):
        for case, what in do.items():
            (fake_night.folder / case).write_text(what)
        options = {"command": (sys.executable, str(PROGRAM), str(fake_night.folder)), "selected": list(CASES)}
        return fake_night.run(**{"processes": 1, **options, **changes})

    return run


@pytest.fixture
def leaping(fake_night, monkeypatch):
    """For whoever watches a journal hours pass while a process of fake_cases.py hangs, and no other time."""
    leapt_s = [0.0]

    def clock():
        leapt_s[0] += 3600 * any(Path("/proc", pid).exists() for pid in lines(fake_night, "hanging.txt"))
        return time.monotonic() + leapt_s[0]

    monkeypatch.setattr("ci.succession.JournalWatch", partial(JournalWatch, clock=clock))


def outcomes(record):
    return {m.case: (m.status, m.reason) for m in record.measurements if m.metric == "device_us"}


def lines(fake_night, name):
    path = fake_night.folder / name
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("what", "reason", "ended"),
    [
        ("SIGSEGV", "killed by SIGSEGV", "killed by SIGSEGV"),
        ("hang", "hung: no case finished for 300 s", "hung: no case finished for 300 s"),
        ("lost", "lost the CUDA context: fake", "exit code 75; last line: lost the CUDA context in b"),
    ],
)
def test_crash_costs_its_case_and_a_process_not_the_night(fake_night, crashing, leaping, what, reason, ended):
    result = crashing({"b": what})

    assert result.code == Exit.INVALID
    (record,) = fake_night.stored()
    found = outcomes(record)
    status, said = found.pop("b")
    assert status == "failed"
    assert said.startswith(reason)
    assert set(found.values()) == {("ok", "")}
    assert set(found) == set(CASES) - {"b"}
    (attempt,) = record.attempts
    assert attempt.ended.startswith(ended)
    assert attempt.num_parts == (2 if what == "lost" else 1)
    assert attempt.lost == (None if what == "lost" else "b")
    assert [line.split()[1] for line in lines(fake_night, "measured.txt")] == list(CASES)
    (night,) = result.nights
    assert [v.case for v in night.verdicts if v.verdict == "invalid"] == ["b"]


def test_two_crashing_cases_need_two_successors(fake_night, crashing):
    crashing({"a": "SIGABRT", "d": "SIGKILL"})

    (record,) = fake_night.stored()
    assert [attempt.lost for attempt in record.attempts] == ["a", "d"]
    assert len(lines(fake_night, "started.txt")) == 3


def test_successors_are_bounded_and_what_was_finished_waits_for_resume(fake_night, crashing):
    result = crashing(dict.fromkeys("abc", "SIGSEGV"))

    assert result.code == Exit.INVALID
    assert fake_night.stored() == []
    assert len(lines(fake_night, "started.txt")) == 1 + 2

    for case in "abc":
        (fake_night.folder / case).unlink()
    resumed = crashing({}, resume=True)

    assert resumed.code == Exit.INVALID
    (record,) = fake_night.stored()
    assert outcomes(record)["e"] == ("ok", "")
    assert outcomes(record)["a"][0] == "failed"


def test_case_that_has_ended_as_many_processes_as_allowed_is_not_tried_again(fake_night, crashing):
    crashing({"c": "SIGSEGV"}, processes=2)

    by_seed = {record.seed: record for record in fake_night.stored()}
    reasons = sorted(outcomes(record)["c"][1] for record in by_seed.values())
    assert reasons[0] == "killed by SIGSEGV, without a word"
    assert reasons[1] == "not tried: processes of this night that it ended before: 1"
    assert len(lines(fake_night, "started.txt")) == 3


@pytest.mark.parametrize(
    ("what", "how"), [("SIGSEGV", "killed by SIGSEGV"), ("lost", "exit code 75"), ("exit 2", "exit code 2")]
)
def test_another_projects_kernel_that_ends_processes_costs_one_of_each_two_and_ours_nothing(
    fake_night, crashing, what, how
):
    parts = [f"{case} of mine" for case in "abcde"]
    (fake_night.folder / "parts.txt").write_text("\n".join(["a", *parts[:4], "b", parts[4], "a of yours"]))

    crashing(dict.fromkeys(parts, what), processes=2)

    first, second = (outcomes(record) for record in fake_night.stored())
    for found in (first, second):
        assert [found[part][0] for part in ("a", "b", "a of yours")] == ["ok"] * 3
        assert {found[part][0] for part in parts} == {"failed"}
    assert first["b of mine"][1].startswith(f"not tried after a of mine: {how}")
    assert second["a of mine"][1] == "not tried: processes of this night that it ended before: 1"
    assert len(lines(fake_night, "started.txt")) == 3


def test_interrupted_process_goes_on_from_its_journal_and_blames_nobody(fake_night, crashing):
    result = crashing({"c": "interrupt"})
    assert result.code == Exit.INTERRUPTED
    (journal,) = (fake_night.tmp / "out").rglob("*.journal")
    assert read_journal(journal).finished == {"a", "b"}

    resumed = crashing({}, resume=True)

    assert resumed.code == Exit.PASS
    (record,) = fake_night.stored()
    assert {status for status, _ in outcomes(record).values()} == {"ok"}
    assert record.attempts[0].ended == "interrupted: SIGINT"
    assert [line.split()[1] for line in lines(fake_night, "measured.txt")] == list(CASES)
    assert list((fake_night.tmp / "out").rglob("*.journal")) == []


def test_process_that_dies_before_it_begins_blames_no_case_of_its_predecessor(fake_night, crashing):
    crashing({"c": "interrupt"})
    dying = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert crashing({}, command=dying, resume=True).code == Exit.INVALID

    assert crashing({}, resume=True).code == Exit.PASS

    (record,) = fake_night.stored()
    assert {status for status, _ in outcomes(record).values()} == {"ok"}
    assert [attempt.ended for attempt in record.attempts] == ["interrupted: SIGINT"]


def test_gpu_lock_is_free_and_no_process_lives_after_a_hang_is_cancelled(fake_night, crashing, monkeypatch):
    monkeypatch.setattr("ci.nightly.find_gpus", lambda: [Gpu("GPU-1", "NVIDIA H200")])
    monkeypatch.setattr("ci.nightly.require_usable", lambda gpu: None)

    assert crashing({"a": "interrupt"}).code == Exit.INTERRUPTED

    with GpuLock("GPU-1"):
        pass
    pid = int(lines(fake_night, "started.txt")[0].split()[0])
    assert not Path(f"/proc/{pid}").exists()


def test_watch_speaks_when_the_journal_has_not_grown_for_the_cap(tmp_path):
    now, path = [0.0], tmp_path / "x.journal"
    watch = JournalWatch(path, cap_s=10, clock=lambda: now[0])

    assert watch() is None
    now[0] = 9
    path.write_text("line\n")
    assert watch() is None
    now[0] = 18
    assert watch() is None
    now[0] = 19
    assert "no case finished for 10 s" in watch()


def test_a_hung_process_is_described_by_what_the_watch_said():
    assert Ended(-15, timed_out=False, tail=("case a",), hung="hung: so").describe(60) == "hung: so"


NIGHT = """
import sys
from pathlib import Path
import ci.nightly
from ci.config import load_nightly
from tests.ci.nights import FakeNight
tmp, program, processes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
ci.nightly.load_nightly = lambda: load_nightly(tmp / "nightly.toml")
night = FakeNight(tmp)
command = (sys.executable, program, str(night.folder))
result = night.run(processes=processes, command=command, selected=list("abcde"), resume="--resume" in sys.argv)
sys.exit(int(result.code))
"""


def footprint(folder):
    """Sizes of all files of a night: other ones after each step of it."""
    found = {}
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # moved on
                found[base, name] = Path(base, name).stat().st_size
    return found


def wait_for_step(child, folder):
    """Wait until the night has got on, however slow the machine is; returns for how long."""
    before, begun_s = footprint(folder), time.monotonic()
    while child.poll() is None and footprint(folder) == before:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=0.005)
    return time.monotonic() - begun_s


def kill_at_random(folder, rng, moments, processes):
    """Run a night in a process of its own, SIGKILL it at random moments, and resume it until it is complete.

    A moment is a number of steps of the night and a part of one step's time, so that a slow machine has the same ones.
    Returns the night and how often it was killed: less than ``moments`` times when it was complete before.
    """
    folder.mkdir()
    night = FakeNight(folder)
    (folder / "nightly.toml").write_text(CONFIG)
    (folder / "night.py").write_text(NIGHT)
    for case in CASES:
        (night.folder / case).write_text("slow")
    command = [sys.executable, str(folder / "night.py"), str(folder), str(PROGRAM), str(processes)]
    killed, step_s = 0, 0.3
    while (state := load(folder / "out")) is None or not state.is_complete:
        child = subprocess.Popen([*command, *(["--resume"] if state else [])], start_new_session=True)
        try:
            watched = rng.choice([folder, *3 * [folder / "out" / "processes"]])  # the journals more often than the rest
            for _ in range(rng.randrange(7) if killed < moments else 0):
                step_s = wait_for_step(child, watched)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=rng.uniform(0, step_s) if killed < moments else None)
        finally:
            child.kill()
            child.wait()
        assert child.returncode in (Exit.PASS, -signal.SIGKILL)
        killed += child.returncode == -signal.SIGKILL
    return night, killed


def num_killed_without_loss(night, processes):
    """How many measuring processes were killed after they had begun; every case must have been measured, and once."""
    records = night.stored()
    measured = lines(night, "measured.txt")
    assert len(records) == processes
    for record in records:
        assert {case: status for case, (status, _) in outcomes(record).items()} == dict.fromkeys(CASES, "ok")
    # A line is written after the journal has the case: none may come twice.
    assert len(measured) == len(set(measured))
    return sum(len(record.attempts) for record in records)


@pytest.fixture
def rng(fake_night, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return random.Random(7)


def test_sigkill_at_random_moments_loses_no_finished_case(tmp_path, rng):
    night, _ = kill_at_random(tmp_path / "killed", rng, moments=3, processes=2)

    num_killed_without_loss(night, 2)


@pytest.mark.long
def test_sigkill_at_fifty_random_moments_loses_no_finished_case(tmp_path, rng):
    killed = amid = 0
    while killed < 50:
        night, times = kill_at_random(tmp_path / f"killed-{killed}", rng, 50 - killed, processes=12)
        killed += times
        amid += num_killed_without_loss(night, 12)

    assert killed == 50
    assert amid >= 5  # others fell before the first case, after the last, or into the parent alone


def test_night_tells_which_processes_its_records_lost(fake_night, crashing):
    (night,) = crashing({"b": "SIGSEGV"}).nights

    assert any("ended early: killed by SIGSEGV" in note and "(case b)" in note for note in night.notes)
