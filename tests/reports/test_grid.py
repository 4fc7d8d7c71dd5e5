"""Values of all nights in arrays: the same as those taken night by night."""

import math
from pathlib import Path

from benchmarks.harness.store import Store
from reports.derive import VERIFY, full_key
from reports.grid import Grid
from reports.pages.timeline import timeline
from reports.sources import read_stores
from tests.reports.golden import HEADLINE, SKIPPED, NightPlan, golden_cases, write_night


def test_medians_are_those_of_each_night_whatever_it_has(tmp_path: Path):
    cases = [case for case in golden_cases() if case.name in (HEADLINE, SKIPPED)]
    for day, (processes, own) in enumerate([(5, cases), (2, cases), (4, cases[:1]), (1, cases[1:])], start=1):
        write_night(Store(tmp_path), NightPlan(day, processes=processes), own)
    line = timeline(read_stores([str(tmp_path)]), "nvidia-h200")

    for case, keys in line.keys().items():
        for key in keys:
            values = line.grid.values(full_key(key, case))
            medians, counts = line.grid.nights(values)
            figures = [moment.processes.figure(key, case) for moment in line.moments]

            assert [value for value in values.tolist() if not math.isnan(value)] == [
                value for figure in figures for value in figure.values
            ]
            assert [None if math.isnan(value) else value for value in medians] == [f.median for f in figures]
            assert counts.tolist() == [figure.n for figure in figures]


def test_no_night_has_no_value():
    grid = Grid([])

    assert grid.values(full_key(VERIFY, HEADLINE)).tolist() == []
    assert grid.nights(grid.values(full_key(VERIFY, HEADLINE)))[0].tolist() == []
