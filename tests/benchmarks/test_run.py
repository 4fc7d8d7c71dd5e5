from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import recoverssm
from benchmarks.harness.record_files import decode_record, samples_path
from benchmarks.harness.store import Store
from benchmarks.run import app

CASE = "kimi_k3_tp8_b32_t3_a2.73_fp32"


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_help_shows_an_example():
    result = run("--help")

    assert result.exit_code == 0
    assert "Example: python -m benchmarks.run --set smoke" in " ".join(result.output.split())


def test_list_names_the_cases_and_whom_they_stand_for():
    result = run("--set", "smoke", "--case", "*_t3_*", "--list")

    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()] == [CASE, CASE.replace("fp32", "bf16")]
    assert "ROCm ATOM PR 1899" in result.output


def test_list_without_a_set_names_those_of_all_sets():
    result = run("--list", "--case", "*_b32_t3_a2.73_*")

    assert [line.split()[0] for line in result.output.splitlines()] == [
        *("set:", CASE, CASE.replace("fp32", "bf16")),
        *("set:", CASE, CASE.replace("fp32", "bf16")),
    ]


def test_dry_run_says_what_would_be_measured_and_writes_nothing(tmp_path):
    result = run(
        "--set", "nightly", "--case", "*_b32_*", "--seed", 7, "--dry-run", "--out", tmp_path / "new" / "r.json"
    )

    assert result.exit_code == 0
    assert "set: nightly, 18 cases" in result.output
    assert "no GPU: exact figures" in result.output
    assert "seed: 7" in result.output
    assert list(tmp_path.iterdir()) == []


def test_estimate_is_for_one_process_of_the_chosen_cases(tmp_path):
    history = Path(__file__).parents[2] / "reports" / "history"
    records = Store(history, writable=False).records()
    whole, part = (
        run("--set", "nightly", "--case", glob, "--estimate", "--store", history) for glob in ("*", "*_tp1_*")
    )

    seconds = [float(result.output.split("nvidia-h200: ")[1].split(" s")[0]) for result in (whole, part)]
    assert min(r.duration_s for r in records) - 1 <= seconds[0] <= max(r.duration_s for r in records) + 1
    assert seconds[1] == pytest.approx(seconds[0] * 6 / 40, abs=1)
    assert "no estimate" in run("--set", "pr", "--estimate", "--store", tmp_path).output


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--set", "daily"], 2, "--set: expected one of smoke, pr, nightly, roofline, league, published, got 'daily'"),
        (["--set", "smoke", "--case", "kimi"], 2, "has no case 'kimi'; known: kimi_k3_tp8_b1_t8_a3.84_fp32"),
        (["--set", "smoke", "--case", "*_b7_*"], 3, "nothing in set 'smoke' matches '*_b7_*'; known: kimi_k3"),
        (
            [],
            2,
            "--set: expected one of smoke, pr, nightly, roofline, league, published; "
            "--list without --set names the cases of each",
        ),
        (["--list", "--case", "*_b7_*"], 3, "nothing in any set matches '*_b7_*'; known: kimi_k3"),
        (["--set", "smoke", "--contracts", "warm", "--dry-run"], 2, "--contracts: expected some of"),
        (["--set", "smoke"], 2, "--out: expected a file for the record"),
        (["--set", "smoke", "--delay-pct", "2", "--out", "{tmp}/r.json"], 2, "--delay-pct: expected a GPU"),
        (["--set", "smoke", "--dry-run", "--providers", "theirs"], 2, "vllm_recoverssm, vllm_cute_commit"),
        (["--set", "smoke", "--dry-run", "--provider", "{tmp}/no.py:X"], 2, "no.py:X"),
        (["--set", "smoke", "--dry-run", "--commit", "main"], 2, "expected 7 to 40 hex digits, got 'main'"),
    ],
)
def test_a_wrong_command_line_is_refused_with_what_is_known(args, code, message, tmp_path):
    result = run(*(one.format(tmp=tmp_path) for one in args))

    assert result.exit_code == code
    assert message in result.output


def test_an_existing_record_is_never_overwritten(tmp_path):
    out = tmp_path / "record.json"
    out.write_text("precious")
    result = run("--set", "smoke", "--out", out)

    assert result.exit_code == 2
    assert "records are never overwritten" in result.output
    assert out.read_text() == "precious"


def test_a_run_without_a_gpu_leaves_a_record_that_a_store_takes(tmp_path):
    out = tmp_path / "new" / "record.json"
    result = run("--set", "smoke", "--case", CASE, "--seed", 5, "--commit", "c" * 40, "--out", out)

    assert result.exit_code == 0, result.output
    record = decode_record(out.read_bytes())
    assert (record.case_set, record.seed, record.subject.commit) == ("smoke", 5, "c" * 40)
    assert record.environment.gpu_model == "cpu"
    assert record.cases[0].name == CASE
    assert record.command[2:] == [
        *("benchmarks.run", "--set", "smoke", "--case", CASE, "--seed", "5"),
        *("--commit", "c" * 40, "--out", "record.json"),
    ]
    assert sorted(path.name for path in out.parent.iterdir()) == ["record.json", "record.parquet"]
    Store(tmp_path / "store").add_record(record, pq.read_table(samples_path(out)))
    assert [one.id for one in Store(tmp_path / "store").records([record.id])] == [record.id]

    exact = {(item.metric, item.op, item.provider): item.value for item in record.measurements if item.case == CASE}
    full, ours = exact["cache_bytes", "state", "full_state"], exact["cache_bytes", "state", "recoverssm"]
    assert exact["memory_saved_bytes", "state", "recoverssm"] == full - ours > 0
    assert exact["memory_saved_pct", "state", "recoverssm"] == 100 * (full - ours) / full
    assert exact["capacity_gain_pct", "capacity", "recoverssm"] > 0

    checked = {(check.provider, check.op) for check in record.checks}
    assert {("recoverssm", op) for op in ("state", "verify", "commit_plan", "commit_state", "conv")} <= checked
    assert ("full_state", "verify") in checked
    assert all(check.passed and "shrunken twin: 2 requests, 2 heads, V = 32" in check.detail for check in record.checks)

    timed = {(item.metric, item.op, item.provider) for item in record.measurements if item.contract == "cpu-reference"}
    assert timed == {("host_us", "verify", "torch"), ("host_us", "commit", "torch")}


def test_a_wrong_kernel_yields_no_number_and_exit_code_4(tmp_path, monkeypatch):
    verify = recoverssm.verify
    monkeypatch.setattr(recoverssm, "verify", lambda *args, **kwargs: verify(*args, **kwargs).add_(1e-3))
    out = tmp_path / "record.json"
    result = run("--set", "smoke", "--case", CASE, "--seed", 5, "--out", out)

    assert result.exit_code == 4
    assert "verify out_error" in result.output
    record = decode_record(out.read_bytes())
    ours = [item for item in record.measurements if (item.case, item.provider) == (CASE, "recoverssm")]
    assert ours
    assert {(item.status, item.value) for item in ours} == {("failed", None)}
    assert all("verify out_error" in item.reason for item in ours)
    theirs = [item for item in record.measurements if (item.case, item.provider) == (CASE, "full_state")]
    assert {item.status for item in theirs} == {"ok"}


def test_a_full_disk_is_a_broken_environment_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("benchmarks.cpu_process.PROVIDERS", ())
    monkeypatch.setattr("benchmarks.process.pq.write_table", full)
    result = run("--set", "smoke", "--case", CASE, "--seed", 7, "--out", tmp_path / "record.json")

    assert result.exit_code == 5
    assert "No space left on device" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["record.journal"]  # what was measured is not lost

    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("benchmarks.cpu_process.measure_cpu_reference", lambda *_, **__: pytest.fail("measured again"))
    monkeypatch.setattr("benchmarks.cpu_process.PROVIDERS", ())
    args = ("--set", "smoke", "--case", CASE, "--out", tmp_path / "record.json")
    assert run(*args).exit_code == 2
    again = run(*args, "--seed", 7, "--resume")

    assert again.exit_code == 0, again.output
    record = decode_record((tmp_path / "record.json").read_bytes())
    assert [attempt.num_parts for attempt in record.attempts] == [3]
    assert pq.read_table(tmp_path / "record.parquet").num_rows > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["record.json", "record.parquet"]


def test_interpreted_kernels_are_not_timed_on_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    result = run("--set", "smoke", "--out", tmp_path / "record.json")

    assert result.exit_code == 5
    assert "TRITON_INTERPRET is set, but there is a GPU" in result.output
