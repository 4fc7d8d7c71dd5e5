"""Published tables beside what is recorded on a card."""

import json

import msgspec
import pytest
from typer.testing import CliRunner

from benchmarks.cases import SETS, kimi_k3
from benchmarks.harness import records
from benchmarks.harness.ids import new_id
from benchmarks.harness.record_files import encode
from ci.__main__ import app
from ci.exits import Exit, MissingDataError
from ci.published import pr51855, pr52993, pr56082
from ci.published.recorded import Recorded
from ci.published.tables import TABLES, again, table
from reports.process import Process
from reports.sources import History
from tests.ci.nights import ENVIRONMENT, make_record, timed

HEADLINE = kimi_k3(8, 32, 8, 3.84, "fp32")
TIMES = {  # as on a card where RecoverSSM's released kernels cost time, and ours do not
    ("vllm_recoverssm", "verify"): 60.0,
    ("vllm_recoverssm", "commit"): 1500.0,
    ("vllm_recoverssm", "conv"): 90.0,
    ("vllm_recoverssm", "step"): 5600.0,
    ("vllm_native", "verify"): 50.0,
    ("vllm_native", "step"): 3450.0,
    ("recoverssm", "verify"): 11.0,
    ("recoverssm", "commit"): 900.0,
    ("recoverssm", "commit_plan"): 1.2,
    ("recoverssm", "conv"): 34.0,
    ("recoverssm", "step"): 1650.0,
    ("full_state", "verify"): 62.0,
    ("full_state", "step"): 4300.0,
}


def history_of(*nights, model="nvidia-h200"):
    """Nights, oldest first, each as {(provider, op, case): us}."""
    history = History()
    for number, found in enumerate(nights):
        measurements = [
            timed(us, provider=provider, op=op, case=case.name) for (provider, op, case), us in found.items()
        ]
        record = make_record(measurements, id=f"2026010{number}T010000Z-0123456-aaaaa{number}")
        history.records[record.id] = Process.of(record)
        history.nights[f"n{number}"] = records.Night(
            id=f"n{number}",
            created_utc=f"2026-01-0{number + 1}T00:00:00Z",
            case_set="published",
            gpu_model=model,
            records=[record.id],
            verdicts=[],
            accepted=False,
            exit_code=0,
        )
    return history


def of(case, changes=None):
    return {(provider, op, case): us for (provider, op), us in (TIMES | (changes or {})).items()}


def rows(module, history):
    return {row.what: row for row in module.rows(Recorded(history, "nvidia-h200"))}


def test_each_published_cell_stands_beside_theirs_and_ours_on_this_card():
    found = rows(pr51855, history_of(of(HEADLINE)))

    verify, over = found["verify, fp32"], found["verify over full state, fp32"]
    assert (verify.published, verify.theirs, verify.ours, verify.verdict) == (
        "3.540 ms",
        "4.140 ms",
        "0.759 ms",
        "shown",
    )
    assert (over.published, over.theirs, over.ours, over.verdict) == ("1.28 x", "1.20 x", "0.18 x", "holds")
    assert all("PR 51855" in row.source for row in found.values())
    assert found["verify, bf16"].verdict == "not measured"


def test_shares_of_the_forward_are_of_the_published_one():
    found = rows(pr51855, history_of(of(HEADLINE)))

    longer, path = (
        found["forward, longer by its verify, of 64.873 ms, fp32"],
        found["critical path (2.046 ms, about 3 %), of the same, fp32"],
    )
    assert (longer.published, longer.theirs) == ("+0.52 %", f"{100 * 69 * 10 / 64873:+.2f} %")
    assert (path.published, path.theirs) == ("+3.15 %", f"{100 * (69 * 10 + 1500) / 64873:+.2f} %")
    assert longer.ours.startswith("-")


def test_a_trend_that_is_not_seen_here_does_not_hold():
    found = rows(pr51855, history_of(of(HEADLINE, {("vllm_recoverssm", "verify"): 40.0})))

    assert found["verify over full state, fp32"].verdict == "does not hold"
    assert found["step over full state, fp32"].verdict == "holds"


def test_capacity_and_memory_are_exact():
    found = rows(pr51855, History())

    assert found["tokens that 46.48 GiB hold, against full state"].verdict == "exact"
    assert found["extra states of full state, 4 requests of 7 drafts, no TP"].ours == "12.155 GB"


def test_series_of_a_ratio_are_of_one_night_the_newest_that_has_all():
    whole, newer = of(HEADLINE), {("recoverssm", "verify", HEADLINE): 5.0}
    recorded = Recorded(history_of(whole, newer), "nvidia-h200")

    verify, full = (("recoverssm", "verify", HEADLINE), ("full_state", "verify", HEADLINE))
    assert recorded.of(verify).us == (5.0,)
    assert recorded.of(verify, full).us == (11.0, 62.0)
    assert recorded.of(verify, full).night == "n0"
    assert recorded.of(("nobody", "verify", HEADLINE)) is None


def test_what_a_pull_request_saves_is_shown_of_the_released_step():
    steps = {case.num_requests: case for case in pr52993.cases()}
    night = {("vllm_recoverssm", "step", steps[32]): 5000.0, ("recoverssm", "step", steps[32]): 2000.0}
    night |= {("vllm_recoverssm", "step", steps[128]): 20000.0, ("recoverssm", "step", steps[128]): 6000.0}
    found = rows(pr52993, history_of(night))

    one = found["step, B = 32"]
    assert (one.published, one.theirs, one.ours, one.verdict) == (
        "0.500 ms saved", "5.000 ms", "2.000 ms (3.000 ms saved)", "holds",
    )  # fmt: skip
    assert (found["saved at B = 128 over B = 32"].ours, found["step, B = 1"].verdict) == ("4.67 x", "not measured")


@pytest.mark.parametrize(
    ("ours_32", "ours_128", "verdict"),
    [(2000.0, 6000.0, "holds"), (6000.0, 25000.0, "does not hold"), (5000.0, 6000.0, "does not hold")],
)
def test_savings_grow_only_where_something_is_saved(ours_32, ours_128, verdict):
    steps = {case.num_requests: case for case in pr52993.cases()}
    night = {("vllm_recoverssm", "step", steps[32]): 5000.0, ("recoverssm", "step", steps[32]): ours_32}
    night |= {("vllm_recoverssm", "step", steps[128]): 20000.0, ("recoverssm", "step", steps[128]): ours_128}

    assert rows(pr52993, history_of(night))["saved at B = 128 over B = 32"].verdict == verdict


def test_a_night_that_was_judged_invalid_is_not_asked():
    history = history_of(of(HEADLINE), of(HEADLINE, {("vllm_recoverssm", "verify"): 1.0}))
    history.nights["n1"] = msgspec.structs.replace(history.nights["n1"], exit_code=int(Exit.INVALID))

    assert rows(pr51855, history)["verify, fp32"].theirs == "4.140 ms"


def test_theirs_and_ours_are_of_one_night_where_one_has_both():
    ours = ("recoverssm", "verify", HEADLINE)
    alone = {key: us for key, us in of(HEADLINE).items() if key != ours}

    assert rows(pr51855, history_of(of(HEADLINE), {ours: 5.0}))["verify, fp32"].ours == "0.759 ms"
    assert rows(pr51855, history_of(alone, {ours: 5.0}))["verify, fp32"].ours == "0.345 ms"


def test_each_row_names_the_nights_that_it_is_from():
    ours = ("recoverssm", "verify", HEADLINE)
    history = history_of({key: us for key, us in of(HEADLINE).items() if key != ours}, {ours: 5.0})
    found = rows(pr51855, history)

    assert found["verify, fp32"].nights == "n0, n1"
    assert found["step over full state, fp32"].nights == "n0"
    assert found["tokens that 46.48 GiB hold, against full state"].nights == "–"
    assert rows(pr52993, history)["step, B = 32"].nights == "n0"
    assert rows(pr56082, history)["commit, B = 8, T = 8, 1 accepted"].nights == "–"


def test_the_first_version_has_its_row_and_why_it_is_not_measured():
    found = rows(pr51855, History())

    assert found["verify of its first version and as merged"].published == "3.115 to 3.540 ms (+13.66 %)"
    assert found["step of its first version and as merged"].published == "7.989 to 5.085 ms (-36.34 %)"


def test_a_commit_table_says_the_ratio_there_and_here():
    one, all_ = (kimi_k3(8, 48, 8, accepted, "fp32") for accepted in (1.0, 8.0))
    night = {("vllm_recoverssm", "commit", all_): 2400.0, ("recoverssm", "commit", all_): 1400.0}
    night |= {("vllm_recoverssm", "commit", one): 1200.0, ("recoverssm", "commit", one): 1350.0}
    found = rows(pr56082, history_of(night))

    assert found["commit, B = 48, T = 8, 8 accepted"].published == "351.53 to 176.57 us (0.50 x)"
    assert found["commit, B = 48, T = 8, 8 accepted"].ours == "1400.0 us (0.58 x)"
    assert found["commit, B = 48, T = 8, 1 accepted"].verdict == "does not hold"
    drafted = found["faster commit, 8 accepted over 1, B = 48, T = 8"]
    assert (drafted.published, drafted.theirs, drafted.ours, drafted.verdict) == ("1.69 x", "–", "1.04 x", "shown")
    growth = found["released commit, 8 accepted over 1, B = 48, T = 8"]
    assert (growth.theirs, growth.ours, growth.verdict) == ("2.00 x", "1.04 x", "holds")


def test_all_cases_of_published_tables_are_in_their_set():
    cases = {case.name for module in TABLES.values() for case in module.cases()}

    assert cases == {case.name for case in SETS["published"]} - {
        case.name for case in SETS["published"] if case.state_dtype == "bf16" and case.num_requests != 32
    }
    for name in TABLES:
        (step,) = again(name).steps
        assert step.argv[:6] == ["python", "-m", "ci", "nightly", "--set", "published"]


def test_the_command_prints_the_table_and_what_measures_it_again(tmp_path):
    record = make_record([timed(11.0)], environment=ENVIRONMENT)
    night = records.Night(
        id=new_id(None), created_utc="2026-01-01T00:00:00Z", case_set="smoke", gpu_model="nvidia-h200",
        records=[record.id], verdicts=[], accepted=False, exit_code=0,
    )  # fmt: skip
    for kind, one in (("records", record), ("nights", night)):
        folder = tmp_path / kind / "nvidia-h200"
        folder.mkdir(parents=True)
        (folder / f"{one.id}.json").write_bytes(encode(one))

    shown = CliRunner().invoke(app, ["reproduce", "pr51855", "--store", str(tmp_path)])
    found = CliRunner().invoke(app, ["reproduce", "pr56082", "--store", str(tmp_path), "--json"])

    assert shown.exit_code == 0
    assert "| verify, fp32 | 3.540 ms |" in shown.output
    assert "measure it again: python -m ci nightly --set published" in shown.output
    assert len(json.loads(found.output)["rows"]) == 22


def test_a_pull_request_without_a_table_names_those_that_have_one():
    result = CliRunner().invoke(app, ["reproduce", "pr5185"])

    assert result.exit_code == Exit.USAGE
    assert "expected a published table, pr51855, pr52993, pr56082" in " ".join(result.output.split())


def test_a_table_is_measured_on_a_gpu_alone(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("subprocess.run", lambda *a, **k: pytest.fail(f"started {a}"))
    environment = msgspec.structs.replace(ENVIRONMENT, gpu_model="cpu")
    monkeypatch.setattr("ci.commits.reproduce.collect_environment", lambda: environment)

    result = CliRunner().invoke(app, ["reproduce", "pr51855", "--run"])

    assert result.exit_code == Exit.BROKEN
    assert "measured on a GPU, this machine has cpu" in " ".join(result.output.split())


def test_which_gpu_must_be_plain():
    with pytest.raises(MissingDataError, match="expected one with a night, of none"):
        table(History(), "pr51855")
    result = CliRunner().invoke(app, ["reproduce", "pr51855", "--gpu-model", "nvidia-b7", "--store", "reports/history"])
    assert result.exit_code == Exit.MISSING
