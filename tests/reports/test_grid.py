"""Values of all nights in arrays: the same as those taken night by night."""

import math
from pathlib import Path

from msgspec.structs import replace

from benchmarks.harness.store import Store
from reports.derive import FULL_VERIFY, VERIFY, full_key
from reports.grid import Grid
from reports.pages.timeline import timeline
from reports.sources import read_stores
from tests.reports.golden import (
    HEADLINE,
    SKIPPED,
    NightPlan,
    golden_cases,
    golden_record,
    processes_of,
    write_night,
)


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
            assert line.grid.by_night(values) == [list(figure.values) for figure in figures]


def test_ratios_are_those_inside_each_process():
    records = [golden_record(NightPlan(1), index, golden_cases()) for index in range(3)]
    changed = {0: ("recoverssm", None), 1: ("full_state", 0.0)}  # which provider's verify is what instead
    for index, (provider, value) in changed.items():
        records[index].measurements[:] = [
            replace(item, value=value) if (item.op, item.provider) == ("verify", provider) else item
            for item in records[index].measurements
        ]
    nights = [processes_of([]), processes_of(records[:2]), processes_of(records)]
    grid = Grid([[record.columns for record in night.records] for night in nights])

    found = grid.by_night(grid.ratio_pct(full_key(VERIFY, HEADLINE), full_key(FULL_VERIFY, HEADLINE)))

    assert found == [list(night.ratio_pct(VERIFY, FULL_VERIFY, HEADLINE).values) for night in nights]
    assert [len(night) for night in found] == [0, 0, 1]


def test_no_night_has_no_value():
    grid = Grid([])

    assert grid.values(full_key(VERIFY, HEADLINE)).tolist() == []
    assert grid.nights(grid.values(full_key(VERIFY, HEADLINE)))[0].tolist() == []
    assert grid.by_night(grid.values(full_key(VERIFY, HEADLINE))) == []
