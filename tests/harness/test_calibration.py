"""The replayed gate decides as the one that judges: the same suspects and the same series called slower."""

import numpy as np
import pytest

from benchmarks.harness.stats import calibration
from benchmarks.harness.stats.calibration import CONFIRM, SCREEN, Limits, Stage, exact_upper_pct
from benchmarks.harness.stats.paired import Family, PairLimits, confirm, screen

NUM_SERIES = 24


def stage(rng, processes, effects, spread, modes=0.0):
    shape = (processes, len(effects))
    base, head = (spread * rng.standard_normal(shape) for _ in range(2))
    head = head + effects + modes * (rng.random(shape) < 0.5)
    return Stage(base + modes * (rng.random(shape) < 0.5), head)


def limits_of(rng):
    return [
        PairLimits(margin, margin + extra, gated=bool(gated > 0.5))
        for margin, extra, gated in np.array([0.0, 0.5, 0.2]) + rng.choice([0.0, 0.5, 1.0], (NUM_SERIES, 3))
    ]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("modes", [0.0, 0.12], ids=["one-mode", "two-modes"])
def test_replayed_gate_decides_as_the_gate(seed, modes):
    rng = np.random.default_rng(seed)
    effects = np.where(rng.random(NUM_SERIES) < 0.5, rng.uniform(-0.03, 0.05, NUM_SERIES), 0.0) + modes
    each = limits_of(rng)
    first = stage(rng, SCREEN, effects, 0.006, modes)
    fresh = stage(rng, CONFIRM, effects, 0.006, modes)

    screened = [one.gated and screen(first.diffs[:, i], one, 100.0).suspect for i, one in enumerate(each)]
    families = {
        i: Family(fresh.diffs[:, i], each[i], 100.0, np.exp(fresh.base[:, i]), np.exp(fresh.head[:, i]))
        for i in range(NUM_SERIES)
        if screened[i]
    }
    judged = dict(zip(families, confirm(list(families.values())), strict=True))
    expected = [i in judged and judged[i].verdict == "regressed" for i in range(NUM_SERIES)]

    limits = Limits.of(each)
    found = calibration.tested(first, fresh, limits)
    assert found.suspect.tolist() == screened
    assert calibration.regressed(found, fresh, limits).tolist() == expected
    assert any(expected)


def test_series_that_changes_alone_is_judged_with_the_suspects_of_a_clean_gate():
    rng = np.random.default_rng(3)
    limits = Limits.of([PairLimits() for _ in range(NUM_SERIES)])
    clean = stage(rng, SCREEN, np.zeros(NUM_SERIES), 0.004), stage(rng, CONFIRM, np.zeros(NUM_SERIES), 0.004)
    slow = [one.slowed(np.full(NUM_SERIES, np.log1p(0.05))) for one in clean]

    without = calibration.tested(*clean, limits)
    found = calibration.regressed_alone(without, calibration.tested(*slow, limits), slow[1], limits)

    assert not calibration.regressed(without, clean[1], limits).any()
    assert found.all()


@pytest.mark.parametrize("p", [0.001, 0.02, 0.3, 1.0])
def test_adjusted_p_is_that_of_benjamini_and_hochberg(p):
    from scipy.stats import false_discovery_control

    others = np.array([0.001, 0.01, 0.02, 0.5])
    assert calibration.adjusted(p, others) == pytest.approx(false_discovery_control([p, *others])[0])
    assert calibration.adjusted(p, np.array([])) == p


@pytest.mark.parametrize(
    ("found", "tried", "upper"), [(0, 0, None), (0, 300, 0.994), (3, 300, 2.567), (0, 3, 63.16), (2, 2, 100.0)]
)
def test_exact_bound_is_that_of_clopper_and_pearson(found, tried, upper):
    assert exact_upper_pct(found, tried) == (None if upper is None else pytest.approx(upper, abs=0.01))
