"""``ci static`` with a made-up report: what is printed, what is handed on, and what ends it."""

import io
import json
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ci import static
from ci.__main__ import app
from ci.exits import BrokenEnvironmentError, Exit

PROGRAM = (sys.executable, "-m", "tests.ci.fake_static")


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def run(case_set="smoke", console=None):
        console = console or Console(file=io.StringIO())
        return static.compile_static(case_set, "*", "sm_90", tmp_path, console, PROGRAM)

    return run


def test_the_compiling_process_sees_no_gpu_and_interprets_nothing(compiled, tmp_path):
    code, report = compiled()
    assert code == Exit.BROKEN
    seen = report["seen"]
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["TRITON_INTERPRET"]) == ("", None)
    assert (seen["--set"], seen["--case"], seen["--arch"]) == ("smoke", "*", "sm_90")
    assert seen["--cache"] == str(tmp_path / "cache")


def test_kernels_are_lines_and_what_could_not_be_had_is_named(compiled):
    text = io.StringIO()
    static.show(compiled()[1], Console(file=text))
    lines = text.getvalue().splitlines()
    assert lines[0].split()[:4] == ["arch", "id", "kernel", "regs"]
    cells = dict(zip(lines[0].split(), lines[1].split(), strict=False))
    assert (cells["regs"], cells["stack"], cells["smem"], cells["CTAs"], cells["occ%"]) == (
        "168",
        "16",
        "512",
        "3",
        "18.75",
    )
    assert (cells["limit"], cells["tensor"], cells["ld16/ld"], cells["hash"]) == ("registers", "-", "-", "01234567")
    assert lines[1].endswith("one +1")
    assert "problem: nvdisasm is missing from Triton" in lines
    assert "problem: sm_90 conv b2 (one): does not compile: SIGABRT: LLVM ERROR" in lines


def test_that_nothing_is_worse_is_said_and_an_unknown_architecture_leaves_no_compiler(compiled):
    report = compiled()[1] | {"kernels": [], "regressions": [], "compiler": {"triton": "3.6.0", "ptxas": {}}}
    text = io.StringIO()
    static.show(report, Console(file=text))
    assert text.getvalue().splitlines()[:2] == [
        "0 kernels compiled: none; Triton 3.6.0",
        "nothing is worse than in --base",
    ]


def test_without_a_report_the_last_word_is_the_error_and_said_once(compiled, tmp_path):
    compiled()
    progress = io.StringIO()
    with pytest.raises(BrokenEnvironmentError, match="--set: expected one of smoke"):
        compiled("unknown", Console(file=progress))
    assert progress.getvalue() == ""
    assert not (tmp_path / static.REPORT).exists()  # an old one would be taken for this one


def test_json_has_the_exit_code_and_the_report(monkeypatch, tmp_path):
    report = {"kernels": [], "problems": ["one"]}
    monkeypatch.setattr(static, "compile_static", lambda *_: (Exit.INVALID, report))
    ended = CliRunner().invoke(app, ["static", "--out", str(tmp_path), "--json"])
    assert ended.exit_code == Exit.INVALID
    assert json.loads(ended.stdout) == {"exit_code": 4} | report


def test_an_unknown_set_is_wrong_usage(tmp_path):
    ended = CliRunner().invoke(app, ["static", "--set", "everything", "--out", str(tmp_path)])
    assert ended.exit_code == Exit.USAGE
    assert "expected one of smoke, pr, nightly, roofline" in ended.stderr
