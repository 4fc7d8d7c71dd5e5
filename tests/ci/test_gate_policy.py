"""What judges a gate: a head that changes it, renamed and vanished cases, known regressions."""

import datetime as dt

from ci.exits import Exit
from ci.gate.judge import approve, judge
from ci.gate.plan import load_plan
from tests.ci.gates import PROGRAM, kinds, library, slower, verdict_of

ALIASES = """version = 1
[[alias]]
old = "one"
new = "uno"
reason = "a better name for the same work"
owner = "maintainers"
date = "2026-11-29"
"""


def renamed_program(**names: str) -> str:
    """The program's list of cases with other names."""
    text = (PROGRAM / "run.py").read_text()
    for old, new in names.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    return text


def test_a_head_that_changes_its_judge_is_told_and_cleared_by_an_owner(fake_gate):
    base = fake_gate.commit(library())
    head = fake_gate.commit(library(NOISE=0.0031), ci__thresholds_DOT_toml="limits = 'none'")
    result = fake_gate.gate(base, head)
    assert kinds(result) == {"policy-changed"}
    assert "ci/thresholds.toml" in result.findings[0].message
    assert result.exit_code == Exit.MISSING

    folder = fake_gate.tmp / "gate"
    approve(folder, "maintainers")
    cleared = judge(folder)
    assert cleared.exit_code == Exit.PASS
    assert cleared.findings[0].cleared_by == load_plan(folder).approved_by == "maintainers"


def test_a_vanished_case_is_missing(fake_gate):
    base = fake_gate.commit(library())
    head = fake_gate.commit(library(), benchmarks__run_DOT_py=renamed_program(one="uno"))
    result = fake_gate.gate(base, head, approved_by="maintainers")
    assert "case-vanished" in kinds(result)
    assert [finding.case for finding in result.findings if finding.kind == "case-vanished"] == ["one"]
    assert result.exit_code == Exit.MISSING


def test_a_case_that_an_approved_head_renames_goes_on(fake_gate):
    base = fake_gate.commit(library())
    head = fake_gate.commit(slower(10), benchmarks__run_DOT_py=renamed_program(one="uno"), ci__aliases_DOT_toml=ALIASES)
    result = fake_gate.gate(base, head)
    assert "case-vanished" in kinds(result)

    approved = fake_gate.gate(base, head, name="approved", approved_by="maintainers")
    assert "case-vanished" not in kinds(approved)
    assert verdict_of(approved, "verify", case="uno").verdict == "regressed"


def test_a_renamed_case_is_the_same_series_where_each_side_measures_itself(fake_gate):
    base = fake_gate.commit(library())
    head = fake_gate.commit(slower(10), benchmarks__run_DOT_py=renamed_program(one="uno"), ci__aliases_DOT_toml=ALIASES)
    result = fake_gate.gate(base, head, harness="own", approved_by="maintainers")
    assert verdict_of(result, "verify", case="uno").verdict == "regressed"
    assert not any(v.verdict == "missing" for v in result.verdicts)


def test_without_an_alias_the_old_name_is_missing_where_each_side_measures_itself(fake_gate):
    base = fake_gate.commit(library())
    head = fake_gate.commit(library(NOISE=0.0031), benchmarks__run_DOT_py=renamed_program(one="uno"))
    result = fake_gate.gate(base, head, harness="own", approved_by="maintainers")
    assert verdict_of(result, "verify", case="one").verdict == "missing"
    assert verdict_of(result, "verify", case="uno").verdict == "new"
    assert result.exit_code == Exit.MISSING


def test_a_known_regression_of_the_base_excuses_the_head(fake_gate):
    today = dt.datetime.now(dt.UTC).date()  # the plan's
    entry = f"""version = 1
[[regression]]
metric = "device_us"
op = "verify"
provider = "recoverssm"
case = "*"
gpu_model = "nvidia-*"
expected_pct = [8.0, 12.0]
reason = "the price of a check that everybody wants"
owner = "maintainers"
date = "{today - dt.timedelta(days=30)}"
expires = "{today + dt.timedelta(days=30)}"
"""
    fake_gate.write("ci/known-regressions.toml", entry)
    base = fake_gate.commit(library())
    result = fake_gate.gate(base, fake_gate.commit(slower(10)))
    verify = verdict_of(result, "verify")
    assert (verify.verdict, verify.known, verify.fails) == ("regressed", "acknowledged", False)
    assert result.exit_code == Exit.PASS
