"""`python -m recoverssm`: published figures, JSON terms, tables and refusals."""

import json
import subprocess
import sys

import pytest

from recoverssm.__main__ import main

PUBLISHED = [
    "capacity",
    "--model=kimi-k3",
    "--tp=8",
    "--draft-tokens=7",
    "--max-model-len=262144",
    "--budget-gib=46.48",
]


def run_json(capsys, *argv):
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_published_setting_gains_10_97_percent(capsys):
    report = run_json(capsys, *PUBLISHED)

    assert report["capacity_gain_pct"] == pytest.approx(10.973, abs=5e-4)
    assert report["net_capacity_gain_pct"] == report["capacity_gain_pct"]
    assert report["capacity"]["full_state"]["block_tokens"] == 1536
    assert report["capacity"]["recoverssm"]["blocks_per_request"] == 161


def test_dp_ep16_with_four_sequences_keeps_12_155_gb_of_extra_states(capsys):
    report = run_json(capsys, "capacity", "--tp", "1", "--draft-tokens", "7", "--max-num-seqs", "4")

    assert report["extra_state_bytes"] == 4 * 7 * 69 * 96 * 128 * 128 * 4
    assert round(report["extra_state_bytes"] / 1e9, 3) == 12.155


def test_memory_saved_counts_the_records_that_recoverssm_adds(capsys):
    report = run_json(capsys, *PUBLISHED, "--max-num-seqs", "32")
    ours, full_state = report["state_bytes"]["recoverssm"], report["state_bytes"]["full_state"]

    records = ours["correction"] + ours["key_gate"]
    assert records == 32 * 69 * 98_304
    assert report["memory_saved_bytes"] == report["extra_state_bytes"] - records
    assert report["memory_saved_bytes"] == full_state["total"] - ours["total"]
    assert report["memory_saved_pct"] == pytest.approx(100 * report["memory_saved_bytes"] / full_state["total"])


def test_scratch_reports_the_gain_with_and_without_its_own_memory(capsys):
    report = run_json(capsys, *PUBLISHED, "--placement", "scratch", "--max-num-seqs", "256")

    assert round(report["capacity_gain_pct"], 2) == 11.67
    assert round(report["capacity"]["scratch_bytes"] / (1 << 30), 2) == 1.62
    assert report["net_capacity_gain_pct"] < report["capacity_gain_pct"]


def test_state_dtype_halves_the_state(capsys):
    fp32, bf16 = (run_json(capsys, *PUBLISHED, "--state-dtype", dtype) for dtype in ("fp32", "bf16"))

    assert bf16["layer_bytes"]["recurrent_state"] * 2 == fp32["layer_bytes"]["recurrent_state"]
    assert bf16["layer_bytes"]["correction"] == fp32["layer_bytes"]["correction"]


def test_table_shows_both_schemes_and_the_gain_in_aligned_columns(capsys):
    assert main(PUBLISHED) == 0
    lines = capsys.readouterr().out.splitlines()

    (page,) = [line for line in lines if line.startswith("  KDA page")]
    (gain,) = [line for line in lines if "capacity gain" in line]
    (head,) = [line for line in lines if line.startswith("Bytes of one layer")]
    assert page.split()[2:4] == ["878,592", "976,896"]
    assert "+10.97 %" in gain
    end = head.index("RecoverSSM") + len("RecoverSSM")
    assert page.index("976,896") + len("976,896") == end
    assert gain.index("+10.97 %") + len("+10.97 %") == end


def test_shapes_lists_every_tensor_parallel_size(capsys):
    report = run_json(capsys, "shapes")

    assert report["model"]["num_kda_layers"] == 69
    by_tp = {row["tensor_parallel"]: row for row in report["layer_bytes"]}
    assert sorted(by_tp) == [1, 2, 4, 8, 16]
    assert by_tp[8]["heads_per_rank"] == 12
    assert by_tp[8]["conv_state"] == 92_160


def test_shapes_prints_a_row_per_size(capsys):
    assert main(["shapes", "--draft-tokens", "3"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert "93 layers = 69 KDA + 24 MLA" in lines[0]
    assert [line.split()[:2] for line in lines[-5:]] == [
        ["1", "96"],
        ["2", "48"],
        ["4", "24"],
        ["8", "12"],
        ["16", "6"],
    ]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "frobnicate"),
        (["capacity", "--model", "gpt-2"], "gpt-2"),
        (["capacity", "--tp", "7"], "divisor of the 96 heads"),
        (["capacity", "--tp", "0"], "tensor_parallel"),
        (["capacity", "--tp", "many"], "many"),
        (["capacity", "--draft-tokens", "-1"], "draft_tokens"),
        (["capacity", "--draft-tokens", "16"], "at most 16"),
        (["shapes", "--draft-tokens", "16"], "at most 16"),
        (["capacity", "--max-model-len", "0"], "positive whole number"),
        (["capacity", "--max-model-len", "9" * 400], "at most 12 digits"),
        (["capacity", "--budget-gib", "0"], "positive number"),
        (["capacity", "--budget-gib", "nan"], "positive number"),
        (["capacity", "--budget-gib", "lots"], "positive number"),
        (["capacity", "--budget-gib", "1e308"], "up to 1e+09"),
        (["capacity", "--budget-gib", "0.001"], "raise the budget"),
        (["capacity", "--max-num-seqs", "0"], "positive whole number"),
        (["capacity", "--max-num-seqs", "9" * 5000], "at most 12 digits"),
        (["capacity", "--max-num-seqs", "100000", "--placement", "scratch"], "lower max_num_seqs"),
        (["capacity", "--placement", "attic"], "attic"),
        (["capacity", "--state-dtype", "fp8"], "fp8"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_bad_input_exits_2_and_says_why(capsys, argv, said):
    assert main(argv) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err


@pytest.mark.parametrize("command", [[], ["capacity"], ["shapes"]], ids=str)
def test_help_has_an_example(capsys, command):
    assert main([*command, "--help"]) == 0

    assert "  python -m recoverssm " in capsys.readouterr().out


@pytest.mark.parametrize("json_too", [[], ["--json"]], ids=str)
def test_the_largest_numbers_are_computed(capsys, json_too):
    sizes = ["--max-model-len", "9" * 12, "--max-num-seqs", "9" * 12, "--budget-gib", "1e9"]

    assert main(["capacity", *sizes, *json_too]) == 0

    assert capsys.readouterr().err == ""


def test_the_module_runs_as_a_command():
    done = subprocess.run([sys.executable, "-m", "recoverssm", *PUBLISHED], capture_output=True, text=True, check=False)

    assert done.returncode == 0
    assert "+10.97 %" in done.stdout
