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
L2 = 60 * 2**20
CASE = "kimi_k3_tp1_b64_t8_a3.84_fp32"
LAUNCHES = [
    {"case": CASE, "provider": "recoverssm", "op": "verify", "model_read_bytes": 25_000_000},
    {"case": CASE, "provider": "recoverssm", "op": "commit_state", "model_read_bytes": 410_000_000},
]


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
    verify, commit = counted().counters

    assert (verify.op, verify.kernel, verify.dram_read_bytes) == ("verify", "_verify_kernel", 25_690_112)
    assert (commit.op, commit.l2_write_sectors, commit.occupancy_pct) == ("commit_state", 13_107_200, 18.5)


def test_reads_are_held_against_the_model_where_they_are_four_times_the_l2(counted):
    verify, commit = counted().counters

    assert (verify.status, verify.read_error_pct) == ("small", None)
    assert commit.status == "ok"
    assert commit.read_error_pct == pytest.approx(100 * (420 / 410 - 1))
    assert commit.reason == "not counted here: tensor_pipe_pct"


@pytest.mark.parametrize("factor", [1 + (READ_TOLERANCE_PCT + 1) / 100, 1 - (READ_TOLERANCE_PCT + 1) / 100])
def test_reads_that_disagree_with_the_model_mark_the_case(counted, tool, factor):
    launches = [LAUNCHES[0], {**LAUNCHES[1], "model_read_bytes": round(420_000_000 / factor)}]
    (tool / "listing.json").write_text(json.dumps({"l2_bytes": L2, "launches": launches}))

    _, commit = counted().counters

    assert commit.status == "marked"
    assert "11.0 % against the model, more than 10 % off" in commit.reason


def test_refused_counters_are_missing_in_ncus_own_words(counted, tool):
    (tool / "refuse").write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters\n")

    found = counted()

    assert found.counters == ()
    assert found.missing.startswith("ncu (exit code 1): ERR_NVGPUCTRPERM")


def test_metric_that_this_ncu_does_not_know_is_left_out_and_the_rest_is_counted(counted, tool):
    (tool / "refuse").write_text(f"unknown {ncu.COUNTED['tensor_pipe_pct']}")

    found = counted()

    assert [counter.tensor_pipe_pct for counter in found.counters] == [None, None]
    assert found.counters[0].dram_read_bytes == 25_690_112


def test_more_launches_than_ops_are_not_guessed_at(counted, tool):
    (tool / "listing.json").write_text(json.dumps({"l2_bytes": L2, "launches": LAUNCHES[:1]}))

    assert counted().missing.startswith("ncu counted 2 launches of 1 (_verify_kernel, _commit_state_kernel)")


def test_no_tool_and_no_gpu_are_reasons(tmp_path, monkeypatch):
    monkeypatch.setattr(ncu, "find_ncu", lambda: None)

    assert "no ncu" in count(GPU, tmp_path, [], Console(quiet=True)).missing
    assert count(Gpu(CPU, "none"), tmp_path, [], Console(quiet=True)).missing == "no GPU"


def test_profile_prints_what_was_counted_and_where_the_report_lies(counted, tmp_path):
    facts = profile_facts(counted(metrics=ncu.PROFILED), tmp_path / "out")

    assert facts["kernel"] == "_verify_kernel"
    assert facts["dram_read_bytes"] == 25_690_112
    assert facts["duration_ns"] == "not counted here"
    assert Path(facts["report"]).exists()


def test_summary_is_one_line_per_launch(counted, tmp_path):
    with (tmp_path / "shown.txt").open("w") as file:
        show(counted(), Console(file=file, width=300))

    first, second = (tmp_path / "shown.txt").read_text().splitlines()
    assert first.startswith(f"{CASE} recoverssm verify: small, DRAM reads 25.7 MB, model 25.0 MB")
    assert "+2.4 %" in second


def test_night_keeps_counters_in_its_first_record(fake_night, tool, monkeypatch):
    monkeypatch.setattr("ci.nightly.find_gpus", lambda: [GPU])
    monkeypatch.setattr("ci.nightly.require_usable", lambda gpu: None)
    monkeypatch.setattr(ncu, "find_ncu", lambda: str(tool / "ncu"))

    result = fake_night.night(make_records(), counters=True)

    assert result.code == Exit.PASS
    stored = sorted(fake_night.stored(), key=lambda record: not record.counters)
    assert [len(record.counters) for record in stored] == [2, 0, 0, 0, 0]
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
