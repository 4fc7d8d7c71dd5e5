"""From a journal of a tuning sweep to what was launched there, planned without a card."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.static.variants import timed_variants
from benchmarks.tuning_journal import Candidate, Checked, Opened, Point, Timed, append, read_findings

ROOT = Path(__file__).parents[2]
POINT = Point("verify", "bf16", 12, 8, 4)
TIMED = Candidate("recurrence", {"BV": 32, "BK": 32, "NUM_STAGES": 3, "num_warps": 1})
WRONG = Candidate("recurrence", {"BV": 16, "BK": 32, "NUM_STAGES": 3, "num_warps": 1})


@pytest.fixture
def journal(tmp_path):
    path = tmp_path / "verify.journal"
    append(path, Opened(POINT, TIMED, [TIMED, WRONG], ["recurrence"]))
    append(path, Checked(POINT.name, TIMED.key, "right", "", "bits"))
    append(path, Timed(POINT.name, TIMED.key, 0, 6.5, 6.4, 6.6))
    append(path, Checked(POINT.name, WRONG.key, "wrong", "out: 1e-1"))
    return path


def test_a_variant_is_what_the_op_would_launch_with_its_constants(journal):
    (variant,) = timed_variants(read_findings(journal), "sm_100")
    assert (variant.us, variant.job.kernel, variant.job.arch) == (6.5, "verify", "sm_100")
    assert variant.job.constants.items() >= TIMED.constants.items()
    assert math.prod(variant.job.launch.grid) == 8 * 12 * 128 // 32
    assert variant.num_bytes > 8 * 12 * 128 * 128 * 2  # the states alone


def test_the_program_names_what_is_no_journal_and_what_has_no_times(tmp_path):
    def ran(text):
        (tmp_path / "j").write_text(text)
        command = [sys.executable, "-m", "benchmarks.static.variants", "--journal", str(tmp_path / "j")]
        env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        return subprocess.run(
            [*command, "--out", str(tmp_path / "o")], cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )

    bad, empty = ran("not a line\n"), ran("")
    assert (bad.returncode, empty.returncode) == (2, 3), bad.stderr + empty.stderr
    assert "not a journal of ci tune" in bad.stderr
    assert "no variant has a time" in empty.stderr
