"""Commands whose reader has gone: they end as they would have, and a night loses nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.store import Store

ROOT = Path(__file__).parents[2]
NIGHT = """
import sys
from pathlib import Path
from rich.console import Console
from benchmarks.harness.closed_pipes import outlive_readers
from ci.nightly import run_nightly
from tests.ci.nights import FakeNight, make_records
outlive_readers()
night = FakeNight(Path(sys.argv[1]))
night.prepare(make_records())
result = run_nightly(night.options, Console(stderr=True))
print("done", flush=True)
print("done", file=sys.stderr)
sys.exit(int(result.code))
"""


@pytest.fixture
def nobody():
    """The writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def run(nobody, *arguments, **options):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], stdout=nobody, cwd=ROOT, env=environment, check=False, **options
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["ci", "nightly", "--set", "nightly", "--list"], 0),
        (["ci", "nightly", "--set", "smoke", "--case", "*zzz*"], 3),
        (["benchmarks.run", "--set", "nightly", "--list"], 0),
        (["reports", "--help"], 0),
        (["recoverssm", "shapes"], 0),
    ],
    ids=str,
)
def test_a_closed_pipe_leaves_the_exit_code_alone(nobody, command, code):
    done = run(nobody, "-m", *command, stderr=subprocess.PIPE, text=True)

    assert done.returncode == code
    assert "Broken pipe" not in done.stderr


def test_a_night_whose_readers_have_gone_measures_and_stores_all(nobody, tmp_path):
    done = run(nobody, "-c", NIGHT, str(tmp_path), stderr=nobody)

    assert done.returncode == 0
    store = Store(tmp_path / "store")
    assert len(store.records()) == 5
    assert store.nights()[0].accepted
