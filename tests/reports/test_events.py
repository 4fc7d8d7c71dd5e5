"""Regressions over nights that were made up."""

from msgspec.structs import replace

from benchmarks.harness.records import Night, Verdict
from reports.events import find_events

CASE = "some_case"


def verdict(
    word: str, *, op: str = "verify", change: float | None = 5.0, known: str = "", gated: bool = True
) -> Verdict:
    return Verdict(
        metric="device_us",
        op=op,
        provider="recoverssm",
        case=CASE,
        contract="graph-cold",
        unit="us",
        verdict=word,
        reason="why",
        gated=gated,
        change_pct=change,
        known=known,
    )


def night(day: int, *verdicts: Verdict, base: int | None = 1) -> Night:
    return Night(
        id=name(day),
        created_utc=f"2026-01-{day:02d}T02:00:00Z",
        case_set="nightly",
        gpu_model="nvidia-h200",
        records=[],
        base_night=None if base is None else name(base),
        verdicts=list(verdicts),
        accepted=False,
        exit_code=0,
    )


def name(day: int) -> str:
    return f"202601{day:02d}T020000Z"


def commit_of(item: Night) -> str:
    return f"commit of {item.id}"


def test_series_that_regress_in_one_night_are_one_event_with_its_range_of_commits():
    both = (verdict("regressed", change=3.0), verdict("regressed", op="commit", change=-8.0))
    (event,) = find_events([night(1), night(2, *both), night(3, *both)], commit_of)

    assert (event.good, event.bad) == (f"commit of {name(1)}", f"commit of {name(2)}")
    assert [spell.verdict.op for spell in event.spells] == ["commit", "verify"]
    assert [spell.num_nights for spell in event.spells] == [2, 2]
    assert (event.first.id, event.last.id) == (name(2), name(3))


def test_an_event_is_as_urgent_as_its_most_urgent_series():
    known = verdict("regressed", op="commit", known="acknowledged")
    (event,) = find_events([night(1), night(2, verdict("regressed", known="confirmed"), known)], commit_of)

    assert event.state == "confirmed"
    assert event.is_open


def test_series_that_cannot_be_judged_keep_their_regression_open():
    later = [night(3, verdict("inconclusive")), night(4, verdict("invalid")), night(5, verdict("missing")), night(6)]
    (event,) = find_events([night(1), night(2, verdict("regressed")), *later], commit_of)

    assert event.state == "new"


def test_a_regression_ends_fixed_accepted_or_cut():
    start = [night(1), night(2, verdict("regressed"))]
    ends = [night(3, verdict("unchanged")), night(3, verdict("unchanged"), base=2), night(3, verdict("new"), base=None)]

    assert [find_events([*start, end], commit_of)[0].state for end in ends] == ["fixed", "accepted", "cut"]


def test_what_comes_back_after_it_was_fixed_is_another_event_and_open_ones_come_first():
    nights = [night(1), night(2, verdict("regressed")), night(3, verdict("unchanged")), night(4, verdict("regressed"))]
    nights.append(night(5, verdict("regressed"), verdict("unchanged", op="commit")))

    events = find_events(nights, commit_of)

    assert [(event.first.id, event.state) for event in events] == [(name(4), "new"), (name(2), "fixed")]


def test_what_is_not_gated_is_no_event():
    assert find_events([night(1), night(2, verdict("regressed", gated=False))], commit_of) == []


def test_a_base_that_no_store_has_leaves_the_range_open_at_its_start():
    (event,) = find_events([replace(night(2, verdict("regressed")), base_night="gone")], commit_of)

    assert event.good is None
