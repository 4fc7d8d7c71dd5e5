"""Which nights speak for the cases of a GPU model, where some ran a part of their set alone."""

import msgspec
import pytest

from benchmarks.harness.records import SOME_CASES, Case, Night, Record
from reports.covering import covering
from reports.pages.compare import Side, first_sides
from reports.process import Process
from tests.reports.golden import HistoryInMemory, NightPlan, golden_cases, golden_record

CASES = golden_cases()
MODEL = NightPlan(1).gpu_model
PART = [f"{SOME_CASES} '*_b1_*'"]


def night_of(day: int, case_set: str, record: Record, notes: list[str]) -> Night:
    return Night(
        id=f"{day}-{case_set}",
        created_utc=f"2026-01-{day:02d}T00:00:00Z",
        case_set=case_set,
        gpu_model=MODEL,
        records=[record.id],
        verdicts=[],
        accepted=True,
        exit_code=0,
        notes=notes,
    )


def history_of(*planned: tuple[str, list[Case], list[str]]) -> HistoryInMemory:
    """A night of each set with these cases and notes, one each day."""
    nights, records = {}, {}
    for day, (case_set, cases, notes) in enumerate(planned, start=1):
        record = golden_record(NightPlan(day), 0, cases)
        records[record.id] = msgspec.structs.replace(record, cases=cases)
        night = night_of(day, case_set, record, notes)
        nights[night.id] = night
    return HistoryInMemory(nights=nights, records={i: Process.of(r) for i, r in records.items()}, whole=records)


@pytest.mark.parametrize(("notes", "shown"), [(PART, "2-roofline"), ([], "3-roofline")])
def test_a_set_beside_is_shown_by_its_newest_night_of_all_cases(notes, shown):
    history = history_of(
        ("nightly", CASES[:1], []),
        ("roofline", CASES[1:3], []),
        ("roofline", CASES[1:2], notes),
    )

    assert [one.night.id for one in covering(history, MODEL)] == ["1-nightly", shown]


def test_a_set_of_which_there_are_parts_alone_is_shown_by_the_newest_of_them():
    history = history_of(("nightly", CASES[:1], []), *[("roofline", CASES[1:2], PART)] * 2)

    assert [one.night.id for one in covering(history, MODEL)] == ["1-nightly", "3-roofline"]


def test_a_comparison_begins_with_the_night_of_all_cases_before_the_one_shown():
    history = history_of(*[("nightly", CASES[:1], notes) for notes in ([], PART, [])])
    sides = [
        Side(f"night:{n.id}", MODEL, "", n.case_set, history.processes(n).records, 0, n) for n in history.of(MODEL)
    ]

    assert first_sides(sides) == ("night:1-nightly", "night:3-nightly")
    assert first_sides(sides[1:]) == ("night:2-nightly", "night:3-nightly")
