"""`make sanitize`: what it makes of the tool's answers, and that it says why when it cannot run."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sanitize import CLEAN, COULD_NOT, FOUND, judge, main

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("tool", "code", "output", "expected"),
    [
        ("memcheck", 0, "19 calls done\n========= ERROR SUMMARY: 0 errors\n", CLEAN),
        ("racecheck", 0, "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", CLEAN),
        ("memcheck", 97, "========= Invalid __global__ read of size 16 bytes\n", FOUND),
        ("memcheck", 0, "========= Error: Device not supported.\n", COULD_NOT),
        ("racecheck", 1, "RuntimeError: no CUDA device\n", COULD_NOT),
        ("racecheck", 255, "", COULD_NOT),
    ],
)
def test_only_a_summary_without_errors_counts_as_clean(tool, code, output, expected):
    verdict, line = judge(tool, code, output)

    assert verdict == expected
    assert line.startswith(f"{tool}: ")


def test_a_missing_tool_is_said_so(monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)

    assert main() == COULD_NOT
    assert "compute-sanitizer: not found" in capsys.readouterr().out


def test_findings_of_one_tool_outweigh_that_the_other_could_not_run(tmp_path):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text('#!/bin/sh\n[ "$2" = memcheck ] && { echo "Invalid read"; exit 97; }\necho refused >&2; exit 3\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    env = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    done = subprocess.run(
        [sys.executable, "-m", "tests.sanitize"], cwd=ROOT, env=env, text=True, capture_output=True, check=False
    )

    assert done.returncode == FOUND, done.stderr
    assert "Invalid read" in done.stdout
    assert "racecheck: could not be run here (exit code 3): refused" in done.stdout
