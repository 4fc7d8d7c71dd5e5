"""Each GPU alone, then all at once: made-up times with a known answer."""

import os
import re

import msgspec
import pytest
from rich.console import Console

from benchmarks.harness.records import MonitorSummary
from ci.exits import Exit, MissingDataError
from ci.gpus import Gpu
from ci.neighbours import Change, as_json, between_gpus_pct, changes, measure_neighbours, show
from tests.ci.nights import CONTROLS, QUIET, make_records

GPUS = [Gpu("GPU-1", "NVIDIA H200"), Gpu("GPU-2", "NVIDIA H200")]
SLOW = [value * 1.05 for value in QUIET]


@pytest.fixture
def host(fake_night, monkeypatch):
    for module in ("ci.nightly", "ci.neighbours"):
        monkeypatch.setattr(f"{module}.find_gpus", lambda: GPUS)
    monkeypatch.setattr("ci.nightly.require_usable", lambda gpu: None)
    return fake_night


def measure(host, **changes):
    from dataclasses import replace

    with (host.tmp / "progress.txt").open("a") as file:
        return measure_neighbours(replace(host.options, gpus="all", **changes), Console(file=file, width=200))


def test_what_neighbours_do_is_told_for_each_gpu_with_its_interval(host):
    monitor = MonitorSummary(sm_clock_mhz_median=1980.0, power_w_median=300.0, throttle_us={"power": 7})
    slow_controls = [msgspec.structs.replace(control, median_us=255.0) for control in CONTROLS]
    alone = make_records(monitor=monitor) + make_records(SLOW)
    host.prepare(alone + make_records(SLOW * 2, controls=slow_controls))

    found = measure(host)

    series = {(c.gpu, c.series[0]): c for c in found.beside}
    assert found.code in (Exit.PASS, Exit.REGRESSED)  # beside is judged against alone
    assert len(found.nights) == 2
    assert series["GPU-1", "device_us"].change_pct == pytest.approx(5.0, abs=0.5)  # whose process comes when is chance
    assert series["GPU-1", "device_us"].low_pct < 5.0 < series["GPU-1", "device_us"].high_pct
    assert series["GPU-1", "device_us"].is_clear
    assert not series["GPU-2", "device_us"].is_clear
    assert series["GPU-2", "control"].change_pct == pytest.approx(2.0)
    assert found.cards["GPU-1 alone"]["throttle_us"] == {"power": 35}
    assert [c.gpu for c in found.between if c.is_clear] == ["GPU-2 / GPU-1"]


def test_what_a_seed_does_to_both_nights_is_no_scatter(host):
    """Placement and inputs go with the seed, and processes differ by them most."""
    by_seed = {seed: 100.0 + 3 * place for place, seed in enumerate((11, 12, 13, 14, 15))}

    def night(factor):
        return {seed: make_records([value * factor])[0] for seed, value in by_seed.items()}

    (found,) = [c for c in changes("GPU-1", night(1.0), night(1.02)) if c.series[0] == "device_us"]

    assert (found.change_pct, found.low_pct, found.high_pct) == pytest.approx((2.0, 2.0, 2.0))
    assert found.is_clear


def test_what_gpus_differ_by_is_a_standard_deviation_beyond_the_errors_of_pairs():
    apart = [Change("GPU-2 / GPU-1", ("device_us",), x, 0.1, 0.0, 0.0, 5) for x in (0.3, -0.5)]
    alike = [Change("GPU-2 / GPU-1", ("device_us",), 0.1, 0.2, 0.0, 0.0, 5)]

    assert between_gpus_pct(apart) == pytest.approx(((0.09 + 0.25 - 0.02) / 4) ** 0.5)
    assert between_gpus_pct(alike) == 0.0


def test_result_is_shown_and_written_as_json(host, capsys):
    host.prepare(make_records(QUIET * 2) + make_records(QUIET * 2))
    found = measure(host)

    show(found, Console(width=200))
    said = capsys.readouterr().out

    assert re.search(
        r"^GPU-1 graph-cold, at once against alone: median .0\.\d\d %, largest .* 0 of 1 clear$", said, re.M
    )
    assert {row["series"].split("/")[0] for row in as_json(found)["beside"]} == {"device_us", "control"}
    msgspec.json.encode(as_json(found))


def test_interrupted_it_goes_on_with_what_is_missing(host):
    os.mkfifo(host.folder / "meeting")
    host.prepare(make_records(QUIET * 2) + make_records(QUIET * 2), do={12: "interrupt"})

    assert measure(host).code == Exit.INTERRUPTED
    begun = len(host.started)
    host.prepare(make_records(QUIET * 2))
    found = measure(host, resume=True)

    assert found.code == Exit.PASS
    assert 10 < begun < 20
    assert {change.pairs for change in found.beside} == {5}


def test_one_gpu_has_no_neighbour(host, monkeypatch):
    monkeypatch.setattr("ci.neighbours.find_gpus", lambda: GPUS[:1])

    with pytest.raises(MissingDataError, match="expected two GPUs or more, got GPU-1"):
        measure(host)
