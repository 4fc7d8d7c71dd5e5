"""Cases that crash, hang or lose the CUDA context cost themselves; what was finished is never measured again."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.lock import GpuLock
from benchmarks.journal import read_journal
from ci.config import load_nightly
from ci.exits import Exit
from ci.gpus import Gpu
from ci.processes import Ended
from ci.watching import JournalWatch
from tests.ci.fake_cases import CASES

PROGRAM = Path(__file__).with_name("fake_cases.py")
ROOT = Path(__file__).parents[2]
CONFIG = """
version = 1
processes = 1
max_failed_processes = 1
max_successors = 2
max_crashes_of_a_case = 1
case_cap_s = 30
precompile_cap_s = 1
fork = "no"
[time_cap_s]
smoke = 60
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


def outcomes(record):
    return {m.case: (m.status, m.reason) for m in record.measurements if m.metric == "device_us"}


def lines(fake_night, name):
    path = fake_night.folder / name
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("what", "reason", "ended"),
    [
        ("SIGSEGV", "killed by SIGSEGV", "killed by SIGSEGV"),
        ("hang", "hung: no case finished for 6 s", "hung: no case finished for 6 s"),
        ("lost", "lost the CUDA context: fake", "exit code 75; last line: lost the CUDA context in b"),
    ],
)
def test_crash_costs_its_case_and_a_process_not_the_night(fake_night, crashing, what, reason, ended):
    if what == "hang":
        config = fake_night.tmp / "nightly.toml"
        config.write_text(config.read_text().replace("case_cap_s = 30", "case_cap_s = 6"))

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


def kill_at_random(fake_night, moments, processes):
    """Run the night in a process of its own, SIGKILL it at random moments, and resume until it is complete."""
    for case in CASES:
        (fake_night.folder / case).write_text("slow")
    script = fake_night.tmp / "night.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.ci.nights import FakeNight\n"
        "import ci.nightly\n"
        "from ci.config import load_nightly\n"
        f"ci.nightly.load_nightly = lambda: load_nightly(Path({str(fake_night.tmp / 'nightly.toml')!r}))\n"
        "FakeNight.__post_init__ = lambda self: None\n"
        f"night = FakeNight(Path({str(fake_night.tmp)!r}))\n"
        f"night.store, night.folder = Path({str(fake_night.store)!r}), Path({str(fake_night.folder)!r})\n"
        f"command = (sys.executable, {str(PROGRAM)!r}, {str(fake_night.folder)!r})\n"
        "processes = int(sys.argv[1])\n"
        "options = {'processes': processes, 'command': command, 'selected': list('abcde')}\n"
        "result = night.run(**options, resume='--resume' in sys.argv)\n"
        "sys.exit(int(result.code))\n"
    )
    rng, killed = random.Random(7), 0
    command = [sys.executable, str(script), str(processes)]
    while True:
        begun = (fake_night.tmp / "out" / "night-state.json").exists()
        child = subprocess.Popen([*command, *(["--resume"] if begun else [])], start_new_session=True)
        try:
            child.wait(timeout=rng.uniform(0.3, 2.5) if killed < moments else 60)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            killed += 1
            continue
        if child.returncode == 0:
            return killed
        assert child.returncode == Exit.USAGE  # complete: killed after the night was written


def assert_nothing_was_lost(fake_night, processes):
    records = fake_night.stored()
    measured = lines(fake_night, "measured.txt")
    assert len(records) == processes
    for record in records:
        assert {case: status for case, (status, _) in outcomes(record).items()} == dict.fromkeys(CASES, "ok")
    # A line is written after the journal has the case: none may come twice.
    assert len(measured) == len(set(measured))


def test_sigkill_at_random_moments_loses_no_finished_case(fake_night, crashing):
    kill_at_random(fake_night, moments=3, processes=2)

    assert_nothing_was_lost(fake_night, 2)


@pytest.mark.long
def test_sigkill_at_fifty_random_moments_loses_no_finished_case(fake_night, crashing):
    # Cases so slow that most kills fall between the first and the last of them.
    assert kill_at_random(fake_night, moments=50, processes=12) == 50

    assert_nothing_was_lost(fake_night, 12)


def test_night_tells_which_processes_its_records_lost(fake_night, crashing):
    (night,) = crashing({"b": "SIGSEGV"}).nights

    assert any("ended early: killed by SIGSEGV" in note and "(case b)" in note for note in night.notes)
