"""Other tools' rules on samples with a known answer, and the table that holds them against our gate."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from asv.commands import compare
from typer.testing import CliRunner

from ci.__main__ import app
from ci.calibrate import rules
from ci.calibrate.benchmark import FLOORLESS, OURS, benchmark
from ci.calibrate.dataset import write
from ci.calibrate.publish import from_records
from ci.calibrate.rules import Rule, Side
from ci.calibrate.text import rules_markdown
from tests.ci.collected import collection

RISING = tuple(100 + 0.1 * step for step in range(40))


def side(samples=RISING, factor=1.0, mhz=1980.0):
    scaled = tuple(factor * value for value in samples)
    return Side([float(np.median(scaled))] * 12, scaled, (mhz,) * len(scaled))


def test_plain_threshold_looks_at_medians_alone():
    assert rules.more_than(2.0, side(), side(factor=1.021))
    assert not rules.more_than(2.0, side(), side(factor=1.019))
    assert not rules.more_than(2.0, side(), side(factor=0.9))


def test_mann_whitney_calls_the_slower_one_alone():
    assert rules.ranks_differ(side(), side(factor=1.03))
    assert not rules.ranks_differ(side(), side(factor=0.97))
    assert not rules.ranks_differ(side(), side())


def test_asv_wants_its_factor_as_well():
    assert not rules.asv_compare(1.1, side(), side(factor=1.09))
    assert rules.asv_compare(1.1, side(), side(factor=1.11))


def test_asv_decides_as_asv_does():
    rng = np.random.default_rng(0)
    for factor in (1.0, 1.015, 1.03, 1.12):
        for _ in range(20):
            a, b = (tuple(level * np.exp(0.01 * rng.standard_normal(30))) for level in (100.0, 100.0 * factor))
            facts = [({"repeat": 30, "ci_99_a": -math.inf, "ci_99_b": math.inf}, list(samples)) for samples in (a, b)]
            theirs = compare._is_result_better(float(np.median(a)), float(np.median(b)), *facts, 1.02)
            assert rules.asv_compare(1.02, Side([], a), Side([], b)) == theirs


def test_legacy_nvbench_divides_by_the_smaller_noise():
    quiet, loud = side((100.0, 100.1, 99.9) * 10), side((90.0, 100.0, 111.5) * 10)
    assert rules.nvbench_legacy(quiet, loud)  # 0.5 % apart, less than the louder one scatters
    assert not rules.nvbench_legacy(loud, loud)


def test_robust_nvbench_wants_a_gap_in_time_and_in_cycles():
    quiet = side((100.0, 100.1, 100.2) * 10)
    assert rules.nvbench_robust(quiet, side((100.8, 101.0, 101.1) * 10))
    assert not rules.nvbench_robust(quiet, side((100.6, 101.0, 101.1) * 10))
    slow_clock = side((100.8, 101.0, 101.1) * 10, mhz=1950.0)
    assert not rules.nvbench_robust(quiet, slow_clock)  # as many cycles as before
    assert not rules.nvbench_robust(quiet, Side([101.0], (101.0,) * 30))  # nobody measured its clock


def test_table_has_our_gate_first_and_counts_pairs_and_series(tmp_path):
    ops = {"verify": (300.0, 0.2), "plan": (0.3, 0.2)}
    write(from_records(list(collection("one", ops, plain=24, delays=(5.0,), each=6))), tmp_path)
    always, never = Rule("always", 1, lambda base, head: True), Rule("never", 12, lambda base, head: False)
    ours, floorless, yes, no = benchmark(tmp_path, pairs=10, rules=[always, never])

    assert (ours.name, floorless.name) == (OURS, FLOORLESS)
    assert (ours.any_alarm_pct, ours.found_pct(5.0)) == (0, 50)  # 5 % of the plan is less than its floor
    assert floorless.found_pct(5.0) == 100
    assert (yes.any_alarm_pct, yes.alarm_pct, yes.found_pct(5.0)) == (100, 100, 100)
    assert (no.any_alarm_pct, no.found_pct(5.0)) == (0, 0)
    assert "| always | 1 | 100.0 % | 100.00 % | 100.0 % |" in rules_markdown([ours, floorless, yes, no])


def test_a_rule_of_one_process_never_compares_one_with_itself(tmp_path):
    write(from_records(list(collection("one", {"verify": (300.0, 1.0)}, plain=10))), tmp_path)
    same = Rule("the same process", 1, lambda base, head: base.samples == head.samples)
    seen = set()
    first = Rule("which one", 1, lambda base, _: bool(seen.add(base.samples)))

    row = benchmark(tmp_path, pairs=60, rules=[same, first])[2]

    assert (row.clean_pairs, row.pairs_with_alarm) == (60, 0)
    assert len(seen) == 10


def test_command_prints_every_rule(tmp_path):
    write(from_records(list(collection("one", {"verify": (300.0, 0.2)}, plain=6, delays=(2.0,), each=2))), tmp_path)
    arguments = ["calibrate", "benchmark", "--data", str(tmp_path), "--pairs", "2"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)

    assert result.exit_code == 0
    for rule in rules.known_rules(12):
        assert rule.name in result.output


def test_otava_without_its_package_is_left_out_and_that_is_told(tmp_path, monkeypatch):
    write(from_records(list(collection("one", {"verify": (300.0, 0.2)}, plain=6, delays=(2.0,), each=2))), tmp_path)
    monkeypatch.setattr(rules, "otava_version", lambda: None)

    result = CliRunner().invoke(app, ["calibrate", "benchmark", "--data", str(tmp_path), "--pairs", "2"])

    assert not any("Otava" in rule.name for rule in rules.known_rules(12))
    assert "| Apache Otava" not in result.stdout
    assert "Apache Otava is left out" in result.stderr


@pytest.mark.parametrize(("levels", "slower"), [((100.0, 103.0), True), ((103.0, 100.0), False)])
def test_otava_counts_change_points_to_slower_alone(monkeypatch, levels, slower):
    seen = []
    point = SimpleNamespace(stats=SimpleNamespace(mean_1=levels[0], mean_2=levels[1]))
    analysis = SimpleNamespace(
        compute_change_points=lambda series, min_magnitude: (seen.append((series, min_magnitude)), ([point], []))[1]
    )
    monkeypatch.setitem(sys.modules, "otava.analysis", analysis)
    monkeypatch.setitem(sys.modules, "otava", SimpleNamespace(analysis=analysis))
    base, head = (Side([level] * 3, ()) for level in levels)

    assert rules.otava(0.015, base, head) == slower
    assert seen == [([levels[0]] * 3 + [levels[1]] * 3, 0.015)]
