"""Two builds held against each other, made up: what is printed of kernels that differ, fail or stand alone."""

import copy
import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.static.sass import count_instructions
from benchmarks.static.series import compiled_ops
from ci.__main__ import app
from ci.exits import Exit, MissingDataError
from ci.static_compare import compare, load, show
from tests.ci.fake_static import FIGURES

CODE = "/*0000*/ LDG.E.128 R4, [R2] ;\n/*0010*/ FFMA R0, R1, R2, R3 ;\n/*0020*/ BAR.SYNC 0x0 ;"


def build(code=CODE, triton="3.6.0", **changes):
    figures = FIGURES | {"instructions": count_instructions(code), "binary_hash": code} | changes
    facts = {"arch": "sm_90", "launched_by": ["recoverssm/verify"], "cases": ["one", "two"], "failure": None}
    entry = facts | {"id": "a1", "kernel": "verify", "figures": figures, "lines": {}, "source": "verify.py:3"}
    return {
        "schema_version": 2,
        "compiler": {"triton": triton, "ptxas": {"sm_90": "12.8"}},
        "num_launches": {"sm_90": {"recoverssm/verify": {"one": 1, "two": 1}, "recoverssm/commit": {"one": 3}}},
        "kernels": [entry],
    }


def shown(a, b):
    text = io.StringIO()
    show(compare(a, b), Console(file=text, width=80))
    return text.getvalue().splitlines()


def test_changed_figures_and_classes_of_a_kernel_are_one_paragraph():
    code = CODE.replace("LDG.E.128", "LDG.E").replace("FFMA R0", "FADD R0")
    lines = shown(build(), build(code, triton="3.9.0", registers=170))
    assert lines == [
        "A: Triton 3.6.0 (ptxas 12.8)",
        "B: Triton 3.9.0 (ptxas 12.8)",
        "sm_90 verify a1 (one +1)",
        "    registers a thread 168 -> 170",
        "    SASS: fma 1 -> 0, other_float 0 -> 1, global_load of 16 bytes 1 -> 0, global_load of 4 bytes 0 -> 1",
        "1 kernels in both: 0 of the same binary, 1 differ",
    ]


def test_equal_binaries_are_counted_and_not_shown():
    assert shown(build(), build())[2:] == ["1 kernels in both: 1 of the same binary, 0 differ"]


def test_another_kernel_for_the_same_work_and_other_launches_are_named():
    other = build()
    other["kernels"][0] |= {"id": "b2", "kernel": "verify_mma", "figures": FIGURES | {"instructions": None}}
    other["num_launches"]["sm_90"]["recoverssm/commit"]["one"] = 4
    other["num_launches"]["sm_90"]["recoverssm/conv"] = {"one": 1}
    lines = shown(build(), other)
    assert "sm_90 verify -> verify_mma a1 -> b2 (one +1)" in lines
    assert "sm_90 recoverssm/commit one: 3 launches a call -> 4" in lines
    assert lines[-1] == "ops and cases in B alone: 1"


def test_what_does_not_compile_in_one_build_is_said():
    broken = copy.deepcopy(build())
    broken["kernels"][0] |= {"figures": None, "failure": "SIGABRT: LLVM ERROR"}
    assert "    does not compile in B: SIGABRT: LLVM ERROR" in shown(build(), broken)


def test_the_same_figures_of_another_binary_are_said_to_be():
    assert "    the same figures, in another order or of other registers" in shown(build(), build(binary_hash="other"))


def test_a_kernel_that_only_a_larger_op_launches_counts_with_the_op_of_its_kernel():
    report = build()
    within = copy.deepcopy(report["kernels"][0])
    within |= {"id": "c3", "launched_by": ["recoverssm/commit"], "cases": ["one"]}
    within["figures"]["registers"] = 200
    report["kernels"].insert(0, within)
    ops = compiled_ops(report)
    assert [ops["sm_90", "recoverssm/verify", case].value("registers") for case in ("one", "two")] == [200, 168]
    assert ops["sm_90", "recoverssm/commit", "one"].kernels == []


def test_nothing_in_common_is_missing():
    with pytest.raises(MissingDataError, match="no op, case and architecture in common"):
        compare(build(), build() | {"num_launches": {}})


def test_the_command_takes_files_and_folders_and_refuses_the_rest(tmp_path):
    (tmp_path / "report.json").write_text(json.dumps(build()))
    assert load(tmp_path) == build()

    def ran(*arguments):
        return CliRunner().invoke(app, ["compare", *map(str, arguments)])

    told = ran("--static", tmp_path, tmp_path / "report.json", "--json")
    assert told.exit_code == Exit.PASS
    assert json.loads(told.stdout)["kernels"][0]["same_binary"]
    missing = ran("--static", tmp_path, tmp_path / "none.json")
    assert missing.exit_code == Exit.USAGE
    assert "none.json: expected a report of ci static, got No such file" in missing.output
    assert "next: python -m ci static --out FOLDER writes FOLDER/report.json" in missing.output
    assert ran(tmp_path, tmp_path).exit_code == Exit.MISSING  # without --static they are names of nights or commits
