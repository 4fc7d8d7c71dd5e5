"""Gates of this repository that ran on a card (docs/gates): judged again, they say the same, byte for byte."""

import datetime as dt
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness.record_files import decode_record
from ci.accept.regression import Decision, make_entries, of_gate
from ci.calibrate.identical import identical_pairs
from ci.calibrate.trust import load
from ci.exits import Exit
from ci.gate.evidence import Evidence
from ci.gate.judge import judge, judge_evidence
from ci.gate.outputs import FILES, write
from ci.gate.result import encode
from ci.policy import KnownRegressions

ROOT = Path(__file__).resolve().parents[2]
GATES = sorted(path.parent for path in ROOT.glob("docs/gates/*/folder.tar.xz"))
SAID = "terminal.txt"  # all that the command prints but its last line, which names the folder


@pytest.fixture(params=GATES, ids=lambda gate: gate.name)
def gate(request):
    return request.param


@pytest.fixture
def folder(gate, tmp_path):
    """What was measured, without the two trees."""
    with tarfile.open(gate / "folder.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "gate"


def contents(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


def judged_by_command(folder, *options, **environment):
    """Exit code and what it printed, from a process in ``folder``."""
    command = [sys.executable, *options, "-m", "ci", "gate", "judge", str(folder)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **environment}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, check=False)
    return done.returncode, done.stdout


def test_judged_again_every_output_has_the_same_bytes(gate, folder, tmp_path):
    write(judge(folder), tmp_path / "again")

    assert contents(tmp_path / "again") == contents(gate)


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ((), {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "Asia/Tokyo"}),
        (("-OO",), {"PYTHONHASHSEED": "2", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "COLUMNS": "40"}),
    ],
    ids=["another clock and locale", "optimised and narrow"],
)
def test_the_command_says_the_same_in_other_surroundings(gate, folder, options, environment):
    code, said = judged_by_command(folder, *options, **environment)

    assert contents(folder) == contents(gate)
    assert said.splitlines()[:-1] == (gate / SAID).read_bytes().splitlines()
    assert code == judge(folder).exit_code


def test_order_and_age_of_the_files_say_nothing(gate, folder, tmp_path):
    for number, path in enumerate(sorted((folder / "records").iterdir(), reverse=True)):
        copy = path.read_bytes()
        path.unlink()
        path.write_bytes(copy)
        os.utime(path, (number, number))
    write(judge(folder), tmp_path / "again")

    assert contents(tmp_path / "again") == contents(gate)


def test_a_single_time_that_is_another_is_seen(gate, folder):
    path = min((folder / "records").glob("screen-*-head.json"))
    time = next(m.value for m in decode_record(path.read_bytes()).measurements if m.metric == "device_us" and m.value)
    path.write_text(path.read_text().replace(f'"value": {time!r}', f'"value": {time * 1.001!r}'))

    assert encode(judge(folder)) != (gate / "verdict.json").read_bytes()


def test_with_what_an_owner_takes_on_no_regression_is_left(gate, folder):
    evidence = Evidence.read(folder)
    day = evidence.plan.date
    decision = Decision("kernels", "what it gains elsewhere", day, day + dt.timedelta(days=30))
    entries = make_entries(of_gate(gate / "verdict.json"), decision, evidence.policy.known)
    evidence.policy = replace(evidence.policy, known=KnownRegressions(regression=entries))
    before, after = judge(folder), judge_evidence(evidence)

    assert [one.key for one in after.verdicts if one.known == "acknowledged"] == [
        one.key for one in before.verdicts if one.fails
    ]
    assert after.exit_code == Exit.PASS


def test_the_newest_trust_record_counts_them_all():
    newest = max(map(load, (ROOT / "reports" / "trust").glob("*.json")), key=lambda record: record.newest_utc)

    assert newest.identical == identical_pairs([gate / "verdict.json" for gate in GATES], newest.gpu_model)
