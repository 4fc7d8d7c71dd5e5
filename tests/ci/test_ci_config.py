"""The configuration files of nights: the shipped ones are sound, and a mistake in one is named."""

import pytest

from benchmarks.cases import SETS
from benchmarks.static.series import LAUNCHES, METRICS
from ci.config import NIGHTLY_FILE, THRESHOLDS_FILE, load_nightly, load_thresholds
from ci.exits import Exit, UsageError

LAST_ROW = (
    '[[limit]]\nlimit_pct = 10.0\nmargin_pct = 2.0\nunit = "%"\nreason = "long enough to be a reason"\n'
    'owner = "a"\ndate = "2026-11-29"\n'
)
STATISTICS = (
    "version = 1\n[statistics]\nmin_processes = 5\nfalse_discovery_rate = 0.05\n"
    "control_limit_pct = 5.0\ndrift_limit_pct = 2.0\n"
    'unit = "%"\nreason = "long enough to be a reason"\nowner = "a"\ndate = "2026-11-29"\n'
    "[paired]\nlimit_pct = 1.5\nmargin_pct = 0.5\n"
    'unit = "%"\nreason = "long enough to be a reason"\nowner = "a"\ndate = "2026-11-29"\n'
)


def key(metric="device_us", op="verify", provider="recoverssm", case="a_case", contract="graph-cold"):
    return (metric, op, provider, case, contract)


def loaded(tmp_path, text):
    path = tmp_path / "thresholds.toml"
    path.write_text(text)
    return load_thresholds(path)


def test_shipped_limits_widen_as_batches_shrink():
    thresholds = load_thresholds(THRESHOLDS_FILE)

    limits = [thresholds.limits_for(key(), num_requests=n) for n in (128, 32, 8, 1)]

    assert [limit.limit_pct for limit in limits] == [3.0, 3.0, 5.0, 10.0]
    assert all(limit.gated and limit.better == "lower" for limit in limits)


@pytest.mark.parametrize("contract", ["cpu-reference", "host-dispatch"])
def test_host_contracts_are_not_gated_and_say_why(contract):
    thresholds = load_thresholds(THRESHOLDS_FILE)

    assert not thresholds.limits_for(key("host_us", contract=contract), num_requests=32).gated
    assert len(next(row.reason for row in thresholds.limit if row.contract == contract)) > 40


@pytest.mark.parametrize(
    ("metric", "better"),
    [
        ("cache_bytes", "lower"),
        ("memory_saved_bytes", "higher"),
        ("memory_saved_pct", "higher"),
        ("capacity_gain_pct", "higher"),
        ("a_metric_nobody_named", "equal"),
    ],
)
def test_exact_metrics_know_their_direction(metric, better):
    limits = load_thresholds(THRESHOLDS_FILE).limits_for(key(metric, "state", contract="exact"))

    assert limits.better == better
    assert limits.gated


def test_every_static_metric_has_a_direction_and_size_and_counts_alone_a_band():
    thresholds = load_thresholds(THRESHOLDS_FILE)
    limits = {metric: thresholds.limits_for(key(metric, contract="static")) for metric in (*METRICS, LAUNCHES)}

    assert {metric for metric, limit in limits.items() if limit.better == "equal"} == set()
    assert {metric for metric, limit in limits.items() if limit.band_pct} == {
        metric for metric in METRICS if metric.startswith("code_")
    }
    assert {metric for metric, limit in limits.items() if not limit.gated} == {"registers", "shared_bytes"}


def test_shipped_nightly_has_the_processes_that_the_limits_need():
    assert load_nightly(NIGHTLY_FILE).processes >= load_thresholds(THRESHOLDS_FILE).statistics.min_processes


def test_first_row_that_fits_counts(tmp_path):
    first = LAST_ROW.replace("limit_pct = 10.0", 'provider = "full_*"\nlimit_pct = 4.0')

    thresholds = loaded(tmp_path, STATISTICS + first + LAST_ROW)

    assert thresholds.limits_for(key(provider="full_state"), num_requests=1).limit_pct == 4.0
    assert thresholds.limits_for(key(), num_requests=1).limit_pct == 10.0


def test_a_row_may_be_of_one_series_on_one_card(tmp_path):
    own = 'case = "noisy_*"\ngpu_model = "nvidia-h100"\nop = "verify"\nlimit_pct = 20.0\npaired_limit_pct = 4.0'

    thresholds = loaded(tmp_path, STATISTICS + LAST_ROW.replace("limit_pct = 10.0", own) + LAST_ROW)

    noisy = key(case="noisy_b1")
    assert thresholds.limits_for(noisy, gpu_model="nvidia-h100").limit_pct == 20.0
    assert thresholds.limits_for(noisy, gpu_model="nvidia-h200").limit_pct == 10.0
    assert thresholds.limits_for(key(case="quiet_b1"), gpu_model="nvidia-h100").limit_pct == 10.0
    rows = [thresholds.row_for(noisy, gpu_model=gpu) for gpu in ("nvidia-h100", "nvidia-h200")]
    assert [thresholds.paired_pct_for(row) for row in rows] == [(4.0, 0.5), (1.5, 0.5)]


@pytest.mark.parametrize(
    ("wrong", "right", "named"),
    [
        ("limit_pct = 10.0", "limt_pct = 10.0", r"unknown field `limt_pct`.*limit"),
        ("limit_pct = 10.0", 'limit_pct = "10"', r"Expected `float \| null`, got `str`.*limit"),
        ("limit_pct = 10.0", "limit_pct = -1.0", r"limit_pct"),
        ("limit_pct = 10.0", "limit_pct = 1.0", r"row 1: margin_pct: expected less than limit_pct 1, got 2"),
        ("limit_pct = 10.0", "limit_pct = 10.0\nband_pct = 5.0", r"row 1: band_pct: expected only with contract exact"),
        ("limit_pct = 10.0\n", "", r"row 1: limit_pct and margin_pct are needed"),
        (
            "[[limit]]",
            "[[limit]]\npaired_limit_pct = 0.4",
            r"row 1: paired_margin_pct: expected less than .* 0\.4, got",
        ),
        ("limit_pct = 10.0", 'contract = "exact"\nfloor_us = 1.0', r"row 1: floor_us: of times alone"),
        ("limit_pct = 10.0", "limit_pct = 10.0\nfloor_us = -1.0", r"floor_us"),
        ("limit_pct = 10.0", "limit_pct = 10.0\nfloor_us = inf", r"floor_us"),
        ("limit_pct = 10.0", "limit_pct = 10.0\ndecimals = 1.5", r"decimals"),
        ("[paired]", "[paired]\nblocks = 6", r"unknown field `blocks`.*paired"),
        ('reason = "long enough to be a reason"\n', "", r"missing required field `reason`"),
        ('reason = "long enough to be a reason"', 'reason = "x"', r"length >= 20.*reason"),
        ('owner = "a"\n', "", r"missing required field `owner`"),
        ('date = "2026-11-29"', 'date = "yesterday"', r"date"),
        ("[[limit]]", '[[limit]]\ncontract = "graph-cool"', r"row 1: contract: expected one of graph-cold"),
        ("[[limit]]", "[[limit]]\nnum_requests_min = 8", r"last limit row must fit every series"),
        ("[[limit]]", "[[limit]", r"not valid TOML"),
    ],
)
def test_mistake_in_a_row_is_named(tmp_path, wrong, right, named):
    with pytest.raises(UsageError, match=named) as caught:
        loaded(tmp_path, (STATISTICS + LAST_ROW).replace(wrong, right))

    assert str(tmp_path / "thresholds.toml") in str(caught.value)
    assert caught.value.code == Exit.USAGE


def test_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.toml: cannot be read"):
        load_nightly(tmp_path / "nowhere.toml")


def test_every_set_has_a_time_cap_and_nothing_else_has():
    assert set(load_nightly().time_cap_s) == set(SETS)


def test_nightly_needs_a_time_cap(tmp_path):
    path = tmp_path / "nightly.toml"
    path.write_text("version = 1\nprocesses = 5\nmax_failed_processes = 2\n[time_cap_s]\n")

    with pytest.raises(UsageError, match="time_cap_s"):
        load_nightly(path)
