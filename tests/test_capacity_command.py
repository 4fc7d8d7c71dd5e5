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


def leaves(value, path=()):
    """Every number and word of the report, by where it stands; schemes and placements are left out."""
    if not isinstance(value, dict) or path == ("setting", "model_shape"):
        return {".".join(name for name in path if name not in {"full_state", "recoverssm", "page", "scratch"})}
    return set().union(*(leaves(child, (*path, name)) for name, child in value.items()))


def test_every_term_is_explained_and_nothing_else(capsys):
    small = ("--placement", "page", "--max-num-seqs", "99999")
    reports = [run_json(capsys, *PUBLISHED, *more) for more in ((), small)]
    assert reports[1]["placements"]["scratch"]["refused"].startswith("max_num_seqs: records of 99999 rows need")

    terms = reports[0].pop("terms")
    reports[1].pop("terms")
    assert leaves(reports[0]) | leaves(reports[1]) == set(terms)
    assert all(len(text) > 1 for text in terms.values())


def test_the_table_says_what_each_of_its_rows_is(capsys):
    assert main([*PUBLISHED, "--dp", "2"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]

    assert len(rows) >= 20
    for row in rows:
        assert len(row) > 65, f"{row}: no note behind the numbers"


@pytest.mark.parametrize("placement", ["page", "scratch"])
def test_both_placements_are_weighed_whichever_is_asked_for(capsys, placement):
    report = run_json(capsys, *PUBLISHED, "--placement", placement, "--max-num-seqs", "256")

    assert round(report["placements"]["page"]["net_gain_pct"], 2) == 10.97
    assert round(report["placements"]["scratch"]["capacity_gain_pct"], 2) == 11.67
    assert report["placements"][placement]["net_gain_pct"] == report["net_capacity_gain_pct"]


def test_replicas_multiply_what_one_rank_holds(capsys):
    one, sixteen = (run_json(capsys, "capacity", "--tp", "1", "--dp", dp) for dp in ("1", "16"))

    assert sixteen["capacity"] == one["capacity"]
    assert sixteen["all_replicas"]["capacity_tokens"]["recoverssm"] == pytest.approx(
        16 * one["capacity"]["recoverssm"]["capacity_tokens"]
    )
    assert sixteen["all_replicas"]["memory_saved_bytes"] == 16 * one["memory_saved_bytes"]


def test_another_model_is_given_by_its_sizes(capsys):
    sizes = (
        "--num-heads",
        "32",
        "--num-kda-layers",
        "20",
        "--num-attention-layers",
        "7",
        "--key-dim",
        "64",
        "--tp",
        "4",
    )
    report = run_json(capsys, "capacity", *sizes)

    assert report["setting"]["model_shape"]["num_kda_layers"] == 20
    assert report["setting"]["heads_per_rank"] == 8
    assert report["layer_bytes"]["recurrent_state"] == 8 * 128 * 64 * 4
    assert report["setting"]["model"] == (
        "kimi-k3 (num_kda_layers=20, num_attention_layers=7, num_heads=32, key_dim=64)"
    )


def test_dtypes_change_the_pieces_that_have_them(capsys):
    bf16, fp32 = (run_json(capsys, *PUBLISHED, "--activation-dtype", dtype) for dtype in ("bf16", "fp32"))
    wide = run_json(capsys, *PUBLISHED, "--attention-dtype", "bf16")

    for name in ("conv_state", "key_gate"):
        assert fp32["layer_bytes"][name] == 2 * bf16["layer_bytes"][name]
    assert fp32["layer_bytes"]["correction"] == bf16["layer_bytes"]["correction"]
    assert wide["capacity"]["full_state"]["block_tokens"] == 768


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
        (["capacity", "--dp", "0"], "positive whole number"),
        (["capacity", "--block-tokens", "0"], "positive whole number"),
        (["capacity", "--page-bytes", "976895"], "page_bytes: expected at least 976896"),
        (["capacity", "--num-heads", "0"], "num_heads: expected at least 1, got 0"),
        (["capacity", "--num-attention-layers", "-1"], "expected a whole number"),
        (["capacity", "--num-heads", "9" * 400], "at most 12 digits"),
        (["capacity", "--conv-width", "1"], "conv_width: expected at least 2, got 1"),
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


def test_the_largest_model_fits_no_budget_and_breaks_nothing(capsys):
    largest = [
        word for name in ("num-heads", "key-dim", "value-dim", "num-kda-layers") for word in (f"--{name}", "9" * 12)
    ]

    assert main(["capacity", *largest, "--tp", "1", "--dp", "9" * 12, "--max-num-seqs", "9" * 12]) == 2

    assert "hold no block" in capsys.readouterr().err


def test_the_module_runs_as_a_command():
    done = subprocess.run([sys.executable, "-m", "recoverssm", *PUBLISHED], capture_output=True, text=True, check=False)

    assert done.returncode == 0
    assert "+10.97 %" in done.stdout


def test_deferred_commits_take_twice_the_scratch_and_no_pages(capsys):
    now = run_json(capsys, *PUBLISHED, "--placement", "scratch")
    later = run_json(capsys, *PUBLISHED, "--commit", "deferred")

    assert later["setting"]["placement"] == "scratch"
    assert later["capacity"]["scratch_bytes"] == 2 * now["capacity"]["scratch_bytes"] > 0
    assert "take placement 'scratch'" in later["placements"]["page"]["refused"]
    assert main([*PUBLISHED, "--commit", "deferred"]) == 0
    assert "records in scratch, commits deferred" in capsys.readouterr().out
    assert main([*PUBLISHED, "--placement", "page", "--commit", "deferred"]) == 2
    assert "take placement 'scratch'" in capsys.readouterr().err
