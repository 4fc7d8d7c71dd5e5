"""``ci tune`` with made-up candidates and times: what is chosen and written, and what a broken candidate costs."""

import json
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.tuning_journal import JournalUnfitError, read_findings
from ci.__main__ import app
from ci.exits import BrokenEnvironmentError, Exit, MissingDataError, UsageError
from ci.gpus import CPU, Gpu
from ci.launch_rows import read_rows
from ci.tuned import as_json, show
from ci.tuning import Request, next_step, tune, watch
from recoverssm.launch import TABLE, load_table
from tests.ci import fake_tune

GPU = Gpu("GPU-1", "NVIDIA H200")
TODAY = "recurrence BK=32 BV=16 NUM_STAGES=3 num_warps=1"
OTHER = "recurrence BK=32 BV=8 NUM_STAGES=3 num_warps=1"
QUICK = "wgmma BV=128 num_warps=4"
REQUEST = Request("verify", ["bf16"], [1, 32], [8])

HEADER = "# Which kernel an op launches.\n# Two lines.\n\n"
PORTABLE = """[[row]]
op = "verify"
arch = 0
state_dtype = "bf16"
form = "recurrence"
constants = { BV = 16, BK = 32, NUM_STAGES = 3, num_warps = 1 }
source = "portable default, not tuned"
"""
FOREIGN = PORTABLE.replace('"verify"', '"commit_state"').replace("num_warps = 1", "num_warps=1")


@pytest.fixture
def tuning(tmp_path, monkeypatch):
    """Runs a tuning of a script; its folder is ``tuning.folder``."""
    monkeypatch.setenv("RECOVERSSM_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr("ci.tuning.find_gpus", lambda: [GPU])
    table = tmp_path / "table.toml"
    table.write_text(HEADER + PORTABLE + "\n" + FOREIGN)

    def run(script, request=REQUEST, own_process=False, **options):
        (tmp_path / "script.json").write_text(json.dumps(script))
        if script and not own_process:
            (tmp_path / "out").mkdir()
            fake_tune.measure(tmp_path, request.points, tmp_path / "out" / "verify.journal", request.num_rounds)
            options["resume"] = True  # all is measured, so no process starts
        program = [sys.executable, "-m", "tests.ci.fake_tune", str(tmp_path)]
        return tune(request, tmp_path / "out", table, Console(quiet=True), program=program, **options)

    run.folder, run.table = tmp_path, table
    return run


def written(table):
    return [(row.arch, *row.place, row.form, row.constants["BV"]) for row in read_rows(table.read_text())[1][:-1]]


def said(result, tmp_path):
    with (tmp_path / "said.txt").open("w") as file:
        show(result, Console(file=file, width=300))
    return (tmp_path / "said.txt").read_text()


def test_the_quickest_gets_a_row_with_provenance(tuning):
    result = tuning({TODAY: 28.5, OTHER: 20.0, QUICK: 11.4}, write=True)

    assert result.code == Exit.PASS
    assert written(tuning.table) == [(0, 1, 0, "recurrence", 16), (90, 5, 0, "wgmma", 128)]
    source = load_table(tuning.table)[1].source
    assert source == (
        "NVIDIA H200, torch 2.11, Triton 3.6, 2026-11-29, H=12, T=8: 11.40 us (11.39 to 11.41) at B=1; before 28.50, "
        "recurrence BK=32 BV=16 NUM_STAGES=3 num_warps=1"
    )


def test_comments_and_rows_of_others_stay_byte_for_byte(tuning):
    tuning({TODAY: 28.5, QUICK: 11.4}, write=True)

    text = tuning.table.read_text()
    assert text.startswith(HEADER + PORTABLE)
    assert text.endswith("\n" + FOREIGN)


def test_writing_again_and_tuning_again_change_no_byte(tuning):
    tuning({TODAY: 28.5, QUICK: 11.4}, write=True)
    once = tuning.table.read_text()

    tuning({}, write=True, resume=True)

    assert tuning.table.read_text() == once


def test_nothing_is_written_unless_asked(tuning):
    before = tuning.table.read_text()
    result = tuning({TODAY: 28.5, QUICK: 11.4})

    assert tuning.table.read_text() == before
    assert len(result.changed) == 1
    assert "--resume --write" in next_step(result, tuning.table, written=False)


def test_a_gain_within_the_margin_changes_no_row(tuning):
    before = tuning.table.read_text()
    result = tuning({TODAY: 28.5, OTHER: 28.4, QUICK: 28.3}, write=True)

    assert tuning.table.read_text() == before
    assert result.changed == []
    assert "chosen, today's, as quick, and in the table" in said(result, tuning.folder)


def test_a_form_behind_one_that_has_rows_for_the_card_is_not_chosen(tuning):
    row = PORTABLE.replace("arch = 0", "arch = 90").replace("recurrence", "wgmma").replace("BV = 16", "BV = 64")
    tuning.table.write_text(f"{HEADER}{row}\n{FOREIGN}")
    today = "wgmma BK=32 BV=64 NUM_STAGES=3 num_warps=1"
    result = tuning({today: 28.5, TODAY: 10.0, QUICK: 11.4})

    assert result.choices["verify bf16 H=12 T=8 B=32"].chosen.candidate.constants["BV"] == 128
    assert "10.00 us (9.99 to 10.01)    quickest, other form" in said(result, tuning.folder)


def test_a_broken_or_wrong_candidate_costs_one_line(tuning):
    result = tuning({TODAY: 28.5, OTHER: "wrong", "wgmma BV=64": "raise", QUICK: 11.4})

    text = said(result, tuning.folder)
    assert result.code == Exit.PASS
    assert result.choices["verify bf16 H=12 T=8 B=32"].chosen.candidate.form == "wgmma"
    assert text.count("wrong: u_error 0.3 is above 1e-06") == 2
    assert text.count("failed: RuntimeError: out of resource: shared memory\n") == 2


def test_a_candidate_that_ends_its_process_is_named_and_the_others_are_measured(tuning):
    result = tuning({TODAY: 28.5, OTHER: "crash", QUICK: 11.4}, own_process=True)

    assert len(result.choices) == 2
    assert said(result, tuning.folder).count("failed: ended its process: exit code 3") == 2
    checked = (tuning.folder / "checked.txt").read_text().splitlines()
    assert sorted(set(checked)) == sorted(checked)  # nothing was checked twice


def test_a_candidate_hangs_when_nothing_new_comes_for_long(tmp_path, monkeypatch):
    now, journal = [100.0], tmp_path / "journal"
    monkeypatch.setattr("ci.tuning.time", SimpleNamespace(monotonic=lambda: now[0]))
    look = watch(journal)
    said = []
    for passed_s, line in [(170.0, ""), (170.0, "a line"), (170.0, ""), (20.0, "")]:
        now[0] += passed_s
        journal.write_text((journal.read_text() if journal.exists() else "") + line)
        said.append(look())

    assert said == [None, None, None, "nothing new for 180 s"]


def test_an_interrupted_tuning_goes_on_with_what_it_had(tuning):
    script = {TODAY: 28.5, QUICK: "interrupt", OTHER: 20.0}
    with pytest.raises(KeyboardInterrupt):
        tuning(script, own_process=True)

    result = tuning(script, own_process=True, resume=True)

    assert len(result.choices) == 2
    checked = (tuning.folder / "checked.txt").read_text().splitlines()
    assert checked.count(f"{TODAY} B=1") == 1
    assert checked.count(f"{QUICK} B=1") == 2  # nobody saw it do harm


def test_a_point_without_a_right_candidate_exits_4_and_keeps_its_rows(tuning):
    before = tuning.table.read_text()
    result = tuning({TODAY: "wrong"}, write=True)

    assert result.code == Exit.INVALID
    assert tuning.table.read_text() == before
    assert as_json(result)["points"][0]["candidates"][0]["verdict"].startswith("wrong: ")


def test_an_earlier_journal_is_not_overwritten(tuning):
    tuning({TODAY: 28.5})

    with pytest.raises(UsageError, match="--resume goes on with it"):
        tuning({})


def test_a_journal_of_another_program_is_refused(tuning):
    (tuning.folder / "out").mkdir()
    (tuning.folder / "out" / "verify.journal").write_text('{"kind": "night"}\n')

    with pytest.raises(UsageError, match="not a journal of ci tune"):
        tuning({}, resume=True)
    with pytest.raises(JournalUnfitError):
        read_findings(tuning.folder / "out" / "verify.journal")


def test_without_a_gpu_there_is_nothing_to_tune_on(tuning, monkeypatch):
    monkeypatch.setattr("ci.tuning.find_gpus", lambda: [Gpu(CPU, "none")])

    with pytest.raises(BrokenEnvironmentError, match="no GPU"):
        tuning({})


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (Request("align"), UsageError, "OP: expected one of verify, full_state_verify, commit_state"),
        (Request("verify", ["fp8"]), UsageError, "--dtype: expected one of fp32, bf16"),
        (Request("verify", [], [32], [6, 8]), UsageError, "are tuned for the same rows"),
        (Request("verify", candidates="nothing*"), MissingDataError, "nothing matches 'nothing\\*'; known:"),
    ],
)
def test_what_does_not_exist_is_named_before_anything_runs(tuning, request_, error, message):
    with pytest.raises(error, match=message):
        tuning({}, request_)


def test_dry_run_and_estimate_print_the_points_and_touch_nothing():
    arguments = ["tune", "commit_state", "--dtype", "fp32", "--batch", "8", "--json"]
    dry = json.loads(CliRunner().invoke(app, [*arguments, "--dry-run"]).stdout)
    estimate = json.loads(CliRunner().invoke(app, [*arguments, "--estimate"]).stdout)

    assert [one["name"] for one in dry["points"]] == [
        f"commit_state fp32 H=12 T={window} B=8" for window in (4, 8, 10, 12, 16)
    ]
    assert len(dry["candidates"]) == estimate["candidates"] > 5
    assert estimate["about_s"] > 0


def test_help_has_an_example():
    assert "python -m ci tune verify" in CliRunner().invoke(app, ["tune", "--help"]).stdout


def test_the_librarys_own_table_is_read_and_put_together_byte_for_byte():
    header, rows = read_rows(TABLE.read_text())

    assert header + "".join(row.block() for row in rows) == TABLE.read_text().rstrip("\n") + "\n\n"
