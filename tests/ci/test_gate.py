"""Whole gates on a card that exists only here: what each situation comes to, with its exit code."""

import json

import pytest

from ci.exits import BrokenEnvironmentError, Exit
from ci.gate.judge import judge
from ci.gate.result import encode
from tests.ci.gates import kinds, library, slower, verdict_of


def test_a_slower_head_regresses_and_what_it_leaves_alone_does_not(fake_gate):
    base, head = fake_gate.commit(library()), fake_gate.commit(slower(10))
    result = fake_gate.gate(base, head)

    verify, commit = verdict_of(result, "verify"), verdict_of(result, "commit")
    assert result.exit_code == Exit.REGRESSED
    assert (verify.verdict, verify.stage, verify.n_blocks) == ("regressed", "confirm", 12)
    assert verify.change_pct == pytest.approx(10, abs=0.5)
    assert verify.low_pct < 10 < verify.high_pct
    assert verify.q <= 0.05
    assert commit.verdict == "unchanged"
    assert (result.distance, result.base_found) == (1, "merge base")
    assert "--case one" in verify.reproduce
    assert kinds(result) == set()


def test_a_slower_head_beside_an_installed_faster_package_regresses_all_the_same(fake_gate, tmp_path, monkeypatch):
    base, head = fake_gate.commit(library()), fake_gate.commit(slower(10))
    installed = tmp_path / "site-packages" / "recoverssm"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text(library())
    monkeypatch.setenv("PYTHONPATH", str(installed.parent))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")

    result = fake_gate.gate(base, head)
    assert result.exit_code == Exit.REGRESSED
    assert verdict_of(result, "verify").verdict == "regressed"


def test_a_process_that_measured_other_sources_than_its_sides_counts_for_nothing(fake_gate):
    folder = fake_gate.prepare(fake_gate.commit(library()), fake_gate.commit(slower(10)))
    fake_gate.run(folder)
    strange = folder / "records" / "screen-00-1-head.json"
    strange = strange if strange.exists() else strange.with_name("screen-00-0-head.json")
    strange.write_text(strange.read_text().replace(fake_gate.plan.head.source_hash, fake_gate.plan.base.source_hash))

    result = judge(folder)
    assert result.exit_code == Exit.INVALID
    assert "wrong-tree" in kinds(result)


def test_a_faster_head_improves_and_passes(fake_gate):
    result = fake_gate.gate(fake_gate.commit(slower(10)), fake_gate.commit(library()))
    assert verdict_of(result, "verify").verdict == "improved"
    assert result.exit_code == Exit.PASS


@pytest.mark.parametrize("seed", range(5))
def test_two_modes_of_processes_on_both_sides_are_no_regression(fake_gate, seed):
    base, head = (fake_gate.commit(library(SLOW_MODE=0.3, FINGERPRINT=name)) for name in "ab")
    result = fake_gate.gate(base, head, seed=seed)
    assert not any(v.verdict == "regressed" for v in result.verdicts)
    assert result.exit_code == Exit.PASS


def test_a_mean_whose_interval_holds_no_change_is_undecided_and_passes(fake_gate):
    base, head = (fake_gate.commit(library(NOISE=0.04, FINGERPRINT=name)) for name in "ab")
    result = fake_gate.gate(base, head)
    verdicts = {verdict_of(result, op, case=case).verdict for op in ("verify", "commit") for case in ("one", "two")}
    assert verdicts <= {"inconclusive", "blind"}
    assert all(v.detectable_pct > 3 for v in result.verdicts if v.verdict == "blind")
    assert result.exit_code == Exit.PASS


def test_a_short_kernel_that_takes_twice_as_long_is_found(fake_gate):
    base, head = (fake_gate.commit(library(TIMES_US={"verify": us})) for us in (5.0, 10.0))
    assert verdict_of(fake_gate.gate(base, head), "verify").verdict == "regressed"


def test_the_same_binaries_and_arguments_are_not_judged_by_time(fake_gate):
    base = fake_gate.commit(library(FINGERPRINT="same"))
    head = fake_gate.commit(library(FINGERPRINT="same", TIMES_US={"verify": 120.0, "commit": 400.0}))
    result = fake_gate.gate(base, head)

    verify = verdict_of(result, "verify")
    assert (verify.verdict, verify.identical, verify.suspected) == ("unchanged", True, True)
    assert verify.change_pct == pytest.approx(20, abs=1)  # seen, and kept as an A/A pair
    assert result.n_blocks == {"screen": 6, "confirm": 0}
    assert result.exit_code == Exit.PASS


def test_one_commit_on_both_sides_is_all_pairs_of_the_same(fake_gate):
    base = fake_gate.commit(library())
    result = fake_gate.gate(base, base)
    assert all(v.identical for v in result.verdicts if v.metric == "device_us")
    assert any("A/A" in finding.message for finding in result.findings)
    assert result.exit_code == Exit.PASS


@pytest.mark.parametrize(
    ("change", "op", "metric"),
    [
        ({"CACHE_BYTES": 1001}, "state", "cache_bytes"),
        ({"READ_BYTES": 501}, "verify", "read_bytes"),
        ({"LAUNCHES": 2}, "verify", "launches"),
    ],
)
def test_what_is_exact_may_not_get_worse_at_all_and_comes_first(fake_gate, change, op, metric):
    result = fake_gate.gate(fake_gate.commit(library()), fake_gate.commit(library(**change)))
    assert verdict_of(result, op, metric).verdict == "regressed"
    assert result.verdicts[0].stage == "exact"
    assert result.exit_code == Exit.REGRESSED


def test_a_head_that_no_longer_says_what_is_exact_misses_it(fake_gate):
    folder = fake_gate.prepare(*(fake_gate.commit(library(FINGERPRINT=name)) for name in "ab"), screen_blocks=4)
    fake_gate.run(folder)
    for path in (folder / "records").glob("*-head.json"):
        record = json.loads(path.read_text())
        timed = [one for one in record["measurements"] if one["contract"] != "exact"]
        path.write_text(json.dumps(record | {"measurements": timed}))

    result = judge(folder)
    assert verdict_of(result, "state", "cache_bytes").verdict == "missing"
    assert result.exit_code == Exit.MISSING


def test_a_head_that_does_not_import_does_not_build(fake_gate):
    result = fake_gate.gate(fake_gate.commit(library()), fake_gate.commit("import no_such_module\n"))
    assert kinds(result) == {"head-does-not-build"}
    assert "No module named 'no_such_module'" in result.findings[0].message
    assert str(fake_gate.tmp) not in encode(result).decode()
    assert result.exit_code == Exit.INVALID
    assert result.verdicts == []


def test_a_head_that_the_bases_program_cannot_call_does_not_build_and_the_way_out_is_named(fake_gate):
    without = library().replace("TIMES_US", "TIMES_IN_US")
    result = fake_gate.gate(fake_gate.commit(library()), fake_gate.commit(without))
    assert kinds(result) == {"head-does-not-build"}
    assert "cannot import name 'TIMES_US'" in result.findings[0].message
    assert "--harness own" in result.findings[0].next_step
    assert result.exit_code == Exit.INVALID


def test_a_program_that_runs_on_neither_side_is_the_machines_fault(fake_gate):
    folder = fake_gate.prepare(*(fake_gate.commit(library().replace("TIMES_US", name)) for name in ("A", "B")))
    with pytest.raises(BrokenEnvironmentError, match="cannot import name 'TIMES_US'"):
        fake_gate.run(folder)


def test_a_base_that_does_not_import_has_no_data(fake_gate):
    result = fake_gate.gate(fake_gate.commit("import no_such_module\n"), fake_gate.commit(library()))
    assert kinds(result) == {"base-without-data"}
    assert result.exit_code == Exit.MISSING


def test_sides_on_different_cards_are_not_compared(fake_gate):
    result = fake_gate.gate(fake_gate.commit(library()), fake_gate.commit(library(GPU="GPU-2")))
    assert {"gpus-differ", "too-few-blocks"} <= kinds(result)
    assert "GPU-2" not in encode(result).decode()  # cards are hashed in what is published
    assert result.exit_code == Exit.INVALID


def test_sides_under_different_drivers_are_not_compared(fake_gate):
    result = fake_gate.gate(fake_gate.commit(library()), fake_gate.commit(library(DRIVER="590")))
    assert {"environments-differ", "too-few-blocks"} <= kinds(result)
    assert any("under driver 580 and 590" in finding.message for finding in result.findings)
    assert result.exit_code == Exit.INVALID


def test_a_case_that_crashes_on_the_head_alone_is_invalid(fake_gate):
    result = fake_gate.gate(fake_gate.commit(library()), fake_gate.commit(library(CRASHES=("two",))))
    assert "crashed-on-head" in kinds(result)
    assert verdict_of(result, "verify", case="two").verdict == "invalid"
    assert verdict_of(result, "verify", case="one").verdict == "unchanged"
    assert result.exit_code == Exit.INVALID


def test_a_case_that_crashes_on_the_base_alone_is_new(fake_gate):
    result = fake_gate.gate(fake_gate.commit(library(CRASHES=("two",))), fake_gate.commit(library()))
    assert kinds(result) == {"crashed-on-base"}
    assert verdict_of(result, "verify", case="two").verdict == "new"
    assert result.exit_code == Exit.PASS


def test_a_case_that_crashes_on_both_sides_is_not_the_heads_fault(fake_gate):
    crashes = {"CRASHES": ("two",)}
    result = fake_gate.gate(fake_gate.commit(library(**crashes)), fake_gate.commit(library(NOISE=0.0031, **crashes)))
    assert kinds(result) == {"crashed-on-both"}
    assert verdict_of(result, "verify", case="two").verdict == "inconclusive"
    assert result.exit_code == Exit.PASS


def test_a_wrong_result_of_the_head_is_invalid_whatever_its_time(fake_gate):
    result = fake_gate.gate(fake_gate.commit(library()), fake_gate.commit(library(WRONG=("one",))))
    assert "check-failed" in kinds(result)
    assert verdict_of(result, "verify").verdict == "invalid"
    assert result.exit_code == Exit.INVALID


@pytest.mark.parametrize("side", ["base", "head"])
@pytest.mark.parametrize("median_us", [None, 0.0])
def test_a_median_that_is_no_time_is_invalid_on_either_side(fake_gate, side, median_us):
    broken = library(TIMES_US={"verify": median_us, "commit": 400.0})
    sources = (broken, library()) if side == "base" else (library(), broken)
    result = fake_gate.gate(*map(fake_gate.commit, sources))
    verify = verdict_of(result, "verify")
    assert verify.verdict == "invalid"
    assert "without a valid time" in verify.reason
    assert result.exit_code == Exit.INVALID


def test_a_process_that_drifted_costs_its_block_and_a_spare_one_takes_its_place(fake_gate):
    drifts = ("screen-00-0-base", "screen-00-1-base", "screen-00-2-base", "screen-00-3-base")
    result = fake_gate.gate(fake_gate.commit(library(DRIFTS=drifts)), fake_gate.commit(library(NOISE=0.0031)))
    assert kinds(result) == {"unsound-processes"}
    assert result.n_blocks["screen"] == 6
    assert result.exit_code == Exit.PASS


def test_a_card_that_always_drifts_leaves_too_few_blocks(fake_gate):
    drifts = tuple(f"screen-{block:02d}-{place}-head" for block in range(9) for place in range(4))
    result = fake_gate.gate(fake_gate.commit(library()), fake_gate.commit(library(DRIFTS=drifts)))
    assert {"unsound-processes", "too-few-blocks"} <= kinds(result)
    assert result.exit_code == Exit.INVALID


def test_processes_of_the_head_that_leave_no_record_are_told_apart_from_those_of_the_base(fake_gate):
    lost = tuple(
        f"screen-{block:02d}-{place}-{side}" for block in range(9) for place in range(4) for side in ("base", "head")
    )
    good, bad = library(), library(LEAVES_NO_RECORD=lost)
    on_head = fake_gate.gate(fake_gate.commit(good), fake_gate.commit(bad))
    assert "crashed-on-head" in kinds(on_head)
    assert on_head.exit_code == Exit.INVALID
    on_base = fake_gate.gate(fake_gate.commit(bad), fake_gate.commit(good), name="other")
    assert "crashed-on-base" in kinds(on_base)
    assert "crashed-on-head" not in kinds(on_base)
