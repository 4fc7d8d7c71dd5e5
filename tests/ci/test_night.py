"""Which night is the base of tonight, and which one came before it."""

from benchmarks.harness import records
from ci.night import choose_base, night_before
from tests.ci.judged import make_night, tonight
from tests.ci.nights import CASE, QUIET, make_record, make_records, timed


def chosen_base(past, **changes):
    """The index in ``past`` (oldest first: records, and changes of the night) of the base chosen for tonight."""
    nights = [
        make_night(found, created_utc=f"2026-11-{day:02}T00:00:00Z", **facts)
        for day, (found, facts) in enumerate(past, 1)
    ]
    stored = {r.id: r for found, _ in past for r in found}
    base = choose_base(nights, lambda ids: [stored[i] for i in ids], tonight(make_records(), **changes), 5)
    return None if base is None else nights.index(base.night)


def test_base_is_the_newest_accepted_night():
    assert chosen_base([(make_records(), {}), (make_records(), {}), (make_records(), {"accepted": False})]) == 1


def test_base_is_of_the_same_environment():
    other = records.Environment(gpu_model="nvidia-h200", python="3.12.1", torch="2.12.0", harness="1", driver="580.1")

    assert chosen_base([(make_records(), {}), (make_records(environment=other), {})]) == 0
    assert chosen_base([(make_records(environment=other), {})]) is None


def test_night_of_fewer_cases_does_not_hide_the_full_one():
    both = [make_record([timed(v), timed(v, case="other")]) for v in QUIET]

    assert chosen_base([(both, {}), (make_records(), {})], selected=[CASE, "other"]) == 0
    assert chosen_base([(both, {}), (make_records(), {})], selected=[CASE]) == 1


def test_night_that_lost_records_is_a_base_only_where_there_is_no_other():
    assert chosen_base([(make_records(), {}), (make_records()[:4], {})]) == 0
    assert chosen_base([(make_records()[:4], {}), (make_records()[:3], {})]) == 1


def test_night_of_a_clock_that_ran_ahead_does_not_stay_the_newest():
    found = make_records()
    nights = [make_night(found, created_utc=f"{year}-01-01T00:00:00Z") for year in (2024, 2025, 2999)]
    tonights = tonight(make_records(created_utc="2026-01-01T00:00:00Z"))

    assert choose_base(nights, lambda _: found, tonights, 5).night == nights[1]
    assert choose_base(nights[2:], lambda _: found, tonights, 5).night == nights[2]


def test_night_of_other_cases_is_no_base():
    assert chosen_base([([make_record([timed(1.0, case="other")])], {})]) is None


def test_the_same_processes_judged_again_confirm_nothing():
    found = make_records()
    nights = [
        make_night(make_records(), created_utc="2026-11-28T00:00:00Z"),
        make_night(found, created_utc="2026-11-29T00:00:00Z"),
    ]

    assert night_before(nights, tonight(found)) == nights[0]
