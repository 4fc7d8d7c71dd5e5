"""Counters of one launch per op: read, held against the model, or missing with a reason."""

import json
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.harness import ncu
from ci.__main__ import app
from ci.counting import READ_TOLERANCE_PCT, count, profile_facts, show
from ci.exits import Exit
from ci.gpus import CPU, Gpu
from tests.ci.nights import make_records

TABLE = Path(__file__).parents[1] / "harness" / "ncu-raw.csv"
GPU = Gpu("GPU-1", "NVIDIA H200")
L2 = 12 * 2**20  # of a smaller card, so that a state commit at B = 1 reads enough to be compared
CASE = "kimi_k3_tp8_b1_t8_a3.84_fp32"
LAUNCHES = [
    {"case": CASE, "provider": provider, "op": op, "model_read_bytes": read_bytes, "model_write_bytes": write_bytes}
    for provider, op, read_bytes, write_bytes in [
        ("recoverssm", "verify", 884_928, 122_880),
        ("recoverssm", "commit_plan", 16, 12),
        ("recoverssm", "commit_state", 57_655_296, 54_263_808),
        ("recoverssm", "conv", 1_907_712, 1_907_712),
        ("full_state", "verify", 884_928, 6_316_032),
    ]
]
COMMIT_READS = 58_100_736  # as counted
NO_WRITES = "not counted here: l2_write_sectors"  # the table is older than the counter
WRITES_TABLE = """\
"ID","Kernel Name","dram__bytes_read.sum","lts__t_sectors_srcunit_tex_op_write.sum"
"","","byte","sector"
"0","_verify_kernel","905,984","{}"
"""


@pytest.fixture
def tool(tmp_path):
    """A stand-in for ncu; its folder is the fixture's value."""
    folder = tmp_path / "tool"
    folder.mkdir()
    (folder / "table.csv").write_text(TABLE.read_text())
    (folder / "listing.json").write_text(json.dumps({"l2_bytes": L2, "launches": LAUNCHES}))
    path = folder / "ncu"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S {Path(__file__).with_name("fake_ncu.py")} {folder} "$@"\n')
    path.chmod(0o755)
    return folder


@pytest.fixture
def counted(tool, tmp_path):
    def run(**changes):
        console = Console(file=(tmp_path / "said.txt").open("w"), width=200)
        with console.file:
            return count(GPU, tmp_path / "out", ["--set", "smoke"], console, tool=str(tool / "ncu"), **changes)

    return run


def test_counters_are_put_to_their_ops_in_order(counted):
    verify, _, commit, _, full_state = counted().counters

    assert (verify.op, verify.kernel, verify.dram_read_bytes) == ("verify", "_verify_kernel", 905_984)
    assert (commit.op, commit.dram_read_bytes, commit.occupancy_pct) == ("commit_state", COMMIT_READS, 21.98)
    assert (full_state.provider, full_state.kernel) == ("full_state", "_full_state_verify_kernel")


def test_reads_are_held_against_the_model_where_they_are_four_times_the_l2(counted):
    verify, _, commit, *_ = counted().counters

    assert (verify.status, verify.read_error_pct) == ("small", None)
    assert commit.status == "ok"
    assert commit.read_error_pct == pytest.approx(0.77, abs=0.01)
    assert commit.reason == NO_WRITES


@pytest.mark.parametrize("factor", [1 + (READ_TOLERANCE_PCT + 1) / 100, 1 - (READ_TOLERANCE_PCT + 1) / 100])
def test_reads_that_disagree_with_the_model_mark_the_case(counted, tool, factor):
    launches = list(LAUNCHES)
    launches[2] = {**launches[2], "model_read_bytes": round(COMMIT_READS / factor)}
    (tool / "listing.json").write_text(json.dumps({"l2_bytes": L2, "launches": launches}))

    commit = counted().counters[2]

    assert commit.status == "marked"
    assert "11.0 % against the model, more than 10 % off" in commit.reason


@pytest.mark.parametrize(
    ("sectors", "error_pct", "status"), [(3840, 0, "small"), (7680, 100, "small"), (3800, -1, "marked")]
)
def test_writes_may_come_in_pieces_of_sectors_but_not_fall_short_of_the_model(
    counted, tool, sectors, error_pct, status
):
    (tool / "table.csv").write_text(WRITES_TABLE.format(sectors))
    (tool / "listing.json").write_text(json.dumps({"l2_bytes": L2, "launches": LAUNCHES[:1]}))

    (verify,) = counted().counters

    assert verify.write_error_pct == pytest.approx(error_pct, abs=0.05)
    assert verify.status == status
    assert ("wrote -1.0 % against the model" in verify.reason) == (status == "marked")


def test_writes_of_a_few_sectors_are_not_compared(counted, tool):
    (tool / "table.csv").write_text(WRITES_TABLE.format(7))
    (tool / "listing.json").write_text(json.dumps({"l2_bytes": L2, "launches": LAUNCHES[1:2]}))

    (plan,) = counted().counters

    assert (plan.l2_write_sectors, plan.write_error_pct) == (7, None)


def test_refused_counters_are_missing_in_ncus_own_words(counted, tool):
    (tool / "refuse").write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters\n")

    found = counted()

    assert found.counters == ()
    assert found.missing.startswith("ncu (exit code 1): ERR_NVGPUCTRPERM")


def test_metric_that_this_ncu_does_not_know_is_left_out_and_the_rest_is_counted(counted, tool):
    (tool / "refuse").write_text(f"unknown {ncu.COUNTED['tensor_pipe_pct']}")

    found = counted()

    assert [counter.tensor_pipe_pct for counter in found.counters] == [None] * 5
    assert found.counters[0].dram_read_bytes == 905_984


def test_more_launches_than_ops_are_not_guessed_at(counted, tool):
    (tool / "listing.json").write_text(json.dumps({"l2_bytes": L2, "launches": LAUNCHES[:1]}))

    assert counted().missing.startswith("ncu counted 5 launches of 1 (_verify_kernel, _commit_plan_kernel, ")


def test_no_tool_and_no_gpu_are_reasons(tmp_path, monkeypatch):
    monkeypatch.setattr(ncu, "find_ncu", lambda: None)

    assert "no ncu" in count(GPU, tmp_path, [], Console(quiet=True)).missing
    assert count(Gpu(CPU, "none"), tmp_path, [], Console(quiet=True)).missing == "no GPU"


def test_profile_prints_what_was_counted_and_where_the_report_lies(counted, tmp_path):
    facts = profile_facts(counted(metrics=ncu.PROFILED), tmp_path / "out")

    assert facts["kernel"] == "_verify_kernel"
    assert (facts["dram_read_bytes"], facts["model_write_bytes"]) == (905_984, 122_880)
    assert (facts["duration_ns"], facts["dram_pct"]) == (9856, "not counted here")
    assert Path(facts["report"]).exists()


def test_summary_is_one_line_per_launch(counted, tmp_path):
    with (tmp_path / "shown.txt").open("w") as file:
        show(counted(), Console(file=file, width=300))

    first, _, third, *_ = (tmp_path / "shown.txt").read_text().splitlines()
    assert first.startswith(f"{CASE} recoverssm verify: small, DRAM reads 0.9 MB, model 0.9 MB, L2 hits 58.2 %")
    assert "DRAM reads 58.1 MB, model 57.7 MB, +0.8 %" in third


def test_night_keeps_counters_in_its_first_record(fake_night, tool, monkeypatch):
    monkeypatch.setattr("ci.nightly.find_gpus", lambda: [GPU])
    monkeypatch.setattr("ci.nightly.require_usable", lambda gpu: None)
    monkeypatch.setattr(ncu, "find_ncu", lambda: str(tool / "ncu"))

    result = fake_night.night(make_records(), counters=True)

    assert result.code == Exit.PASS
    stored = sorted(fake_night.stored(), key=lambda record: not record.counters)
    assert [len(record.counters) for record in stored] == [5, 0, 0, 0, 0]
    assert "--set smoke --large" in (tool / "asked.txt").read_text().splitlines()[0]


def test_night_says_why_it_has_no_counters(fake_night):
    fake_night.night(make_records(), counters=True)

    assert sorted(str(record.counters_missing) for record in fake_night.stored())[-1] == "no GPU"


def test_command_without_a_gpu_exits_3(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    result = CliRunner().invoke(app, ["counters"])
    profile = CliRunner().invoke(app, ["profile", "--case", CASE])

    assert (result.exit_code, profile.exit_code) == (Exit.MISSING, Exit.MISSING)
    assert "no counters: no GPU" in result.stdout
    assert "no counters: no GPU" in profile.stderr
