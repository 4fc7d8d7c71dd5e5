"""Known regressions and renamed cases: what an entry excuses, when it no longer does, and which mistakes are named."""

import datetime as dt
from dataclasses import replace

import pytest

from ci import doctor
from ci.exits import UsageError
from ci.policy import (
    ALIASES_FILE,
    FILES,
    FOLDER,
    KNOWN_FILE,
    forgotten,
    load_aliases,
    load_known,
    load_policy,
    policy_hash,
)
from tests.ci.nights import CASE, exact, make_record, timed

ENTRY = f"""
[[regression]]
metric = "device_us"
op = "verify"
provider = "recoverssm"
case = "{CASE}"
gpu_model = "nvidia-h200"
expected_pct = [2.0, 5.0]
reason = "a check that batches need until 0.3"
owner = "kernels"
date = "2026-11-01"
expires = "2026-12-31"
"""
KEY = ("device_us", "verify", "recoverssm", CASE, "graph-cold")
TODAY = dt.date(2026, 11, 29)


@pytest.fixture
def known_of(tmp_path):
    def write(text=ENTRY):
        path = tmp_path / KNOWN_FILE.name
        path.write_text("version = 1\n" + text)
        return load_known(path)

    return write


@pytest.fixture
def aliases_of(tmp_path):
    def write(*pairs):
        rest = 'reason = "the name says whose it is"\nowner = "kernels"\ndate = "2026-11-29"\n'
        path = tmp_path / ALIASES_FILE.name
        path.write_text(
            "version = 1\n" + "".join(f'[[alias]]\nold = "{old}"\nnew = "{new}"\n{rest}' for old, new in pairs)
        )
        return load_aliases(path)

    return write


def say(known, verdict="regressed", change_pct=4.0, key=KEY, gpu_model="nvidia-h200", **options):
    return known.say(key, gpu_model, verdict, change_pct, **{"today": TODAY, **options})


def test_shipped_policy_is_sound():
    assert load_policy().thresholds.limit


def test_a_folder_with_limits_alone_has_nothing_known_and_nothing_renamed(tmp_path):
    (tmp_path / FILES[0]).write_bytes((FOLDER / FILES[0]).read_bytes())

    policy = load_policy(tmp_path)

    assert policy.known.regression == []
    assert policy.aliases.alias == []


def test_the_hash_knows_every_file(tmp_path):
    hashes = {policy_hash(tmp_path)}
    for name in FILES:
        (tmp_path / name).write_text("version = 1\n")
        hashes.add(policy_hash(tmp_path))

    assert len(hashes) == 1 + len(FILES)


def test_a_regression_nobody_knows_is_new_and_confirmed_once_other_data_show_it(known_of):
    known = known_of("")

    assert say(known).state == "new"
    assert say(known, seen_before=True).state == "confirmed"
    assert say(known, key=("cache_bytes", "state", "recoverssm", CASE, "exact")).state == "confirmed"
    assert say(known, "blind").state == ""


def test_a_regression_within_its_band_is_acknowledged_with_reason_owner_and_expiry(known_of):
    state, reason = say(known_of())

    assert state == "acknowledged"
    assert reason == "a check that batches need until 0.3 (kernels, until 2026-12-31)"


@pytest.mark.parametrize(("change_pct", "state"), [(0.5, "acknowledged"), (5.0, "acknowledged"), (5.1, "new")])
def test_worse_than_expected_is_not_excused_and_less_is(known_of, change_pct, state):
    assert say(known_of(), change_pct=change_pct).state == state


def test_of_what_should_grow_the_band_lies_below_zero(known_of):
    known = known_of(ENTRY.replace("[2.0, 5.0]", "[-5.0, -2.0]"))

    assert say(known, change_pct=-4.0).state == "acknowledged"
    assert say(known, change_pct=-5.1).state == "new"


def test_a_change_without_a_number_is_not_excused(known_of):
    assert say(known_of(), change_pct=None).state == "new"


def test_an_entry_counts_on_its_last_day_and_no_longer(known_of):
    known = known_of()

    assert say(known, today=dt.date(2026, 12, 31)).state == "acknowledged"
    state, reason = say(known, today=dt.date(2027, 1, 1))
    assert state == "expired"
    assert "expired on 2026-12-31 (kernels)" in reason


@pytest.mark.parametrize("other", [{"gpu_model": "nvidia-h100"}, {"key": (*KEY[:3], "another", KEY[4])}])
def test_an_entry_excuses_its_own_series_alone(known_of, other):
    assert say(known_of(), **other).state == "new"


@pytest.mark.parametrize("verdict", ["unchanged", "improved"])
def test_a_known_regression_that_is_gone_is_fixed(known_of, verdict):
    assert say(known_of(), verdict).state == "fixed"


@pytest.mark.parametrize("verdict", ["blind", "inconclusive", "missing", "invalid", "new"])
def test_what_cannot_be_told_is_not_called_fixed(known_of, verdict):
    assert say(known_of(), verdict).state == ""


def test_entries_that_should_go_are_named(known_of):
    known = known_of(ENTRY + ENTRY.replace("2026-12-31", "2026-11-28").replace('"verify"', '"commit"'))

    fixed, expired = known.stale([(KEY, "nvidia-h200", "fixed")], TODAY)

    assert fixed.endswith("on nvidia-h200): fixed in all 1 series that were judged; kernels removes it")
    assert "entry 2 (device_us/commit/" in expired
    assert "expired on 2026-11-28: counts no more" in expired


@pytest.mark.parametrize("states", [("fixed", "acknowledged"), ("fixed", ""), ()])
def test_an_entry_stays_while_one_of_its_series_is_not_shown_fixed(known_of, states):
    said = [((*KEY[:4], f"contract{i}"), "nvidia-h200", state) for i, state in enumerate(states)]

    assert known_of().stale(said, TODAY) == []


def test_what_has_landed_excuses_no_pull_request(known_of):
    known = known_of(ENTRY + ENTRY.replace("[[regression]]", '[[regression]]\ncommit = "0123abc"'))

    assert [entry.commit for entry in known.not_landed().regression] == [None]


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ('owner = "kernels"\n', "", r"missing required field `owner`"),
        ('expires = "2026-12-31"\n', "", r"missing required field `expires`"),
        ('owner = "kernels"', 'owner = "kernels"\nuntil = "x"', r"unknown field `until`"),
        ("[2.0, 5.0]", "[5.0, 2.0]", r"entry 1: expected_pct: expected \[low, high\]"),
        ("[2.0, 5.0]", "[-2.0, 5.0]", r"entry 1: expected_pct: .*both above or both below 0"),
        ("[2.0, 5.0]", "[2.0, inf]", r"entry 1: expected_pct: .*finite"),
        ("[2.0, 5.0]", "[nan, nan]", r"entry 1: expected_pct: .*finite"),
        ("[2.0, 5.0]", "5.0", r"expected_pct"),
        ('"verify"', '"*"', r"entry 1: op: expected one name, got '\*'"),
        ('"2026-12-31"', '"2027-12-31"', r"entry 1: expires: expected at most 180 days"),
        ('"2026-12-31"', '"2026-10-31"', r"entry 1: expires: .*after it; got 2026-10-31"),
        ('"2026-12-31"', '"2026-13-31"', r"entry 1: expires: 2026-13-31: month must be"),
        ("[[regression]]", '[[regression]]\ncommit = "HEAD"', r"entry 1: commit: expected 7 to 40 hex digits"),
    ],
)
def test_a_mistake_in_an_entry_is_named(known_of, right, wrong, named):
    with pytest.raises(UsageError, match=named):
        known_of(ENTRY.replace(right, wrong))


def test_a_case_may_have_been_renamed_several_times(aliases_of):
    aliases = aliases_of(("a", "b"), ("b", "c"))

    assert [aliases.now(name) for name in ("a", "b", "c", "d")] == ["c", "c", "c", "d"]


@pytest.mark.parametrize(
    ("pairs", "named"),
    [
        ((("a", "b"), ("b", "a")), "renamed in a circle"),
        ((("a", "a"),), "renamed in a circle"),
        ((("a", "b"), ("a", "c")), "old = 'a' stands in two entries"),
        ((("a", "c"), ("b", "c")), "new = 'c' stands in two entries"),
    ],
)
def test_names_that_lead_nowhere_are_refused(aliases_of, pairs, named):
    with pytest.raises(UsageError, match=named):
        aliases_of(*pairs)


def test_a_record_gets_todays_names_everywhere(aliases_of):
    record = aliases_of((CASE, "renamed")).renamed(make_record([timed(100.0), exact(5.0)]))

    assert {m.case for m in record.measurements} == {"renamed"}
    assert [case.name for case in record.cases] == ["renamed"]
    assert [check.case for check in record.checks] == ["renamed"]


def test_what_a_record_holds_under_both_names_counts_under_the_new_one(aliases_of):
    both = make_record([timed(100.0), timed(90.0, case="renamed")])

    record = aliases_of((CASE, "renamed")).renamed(both)

    assert [(m.case, m.value) for m in record.measurements] == [("renamed", 90.0)]


def test_a_record_without_renamed_cases_is_left_alone(aliases_of):
    record = make_record([timed(100.0)])

    assert aliases_of(("old", "new")).renamed(record) is record


def test_entries_that_nobody_needs_are_named(known_of, aliases_of):
    known = known_of(ENTRY + ENTRY.replace(CASE, "gone_*") + ENTRY.replace("2026-12-31", "2026-11-28"))
    aliases = aliases_of(("a", CASE), ("b", "never_made"), (CASE + "_old", "x"), ("x", "y"))
    policy = replace(load_policy(), known=known, aliases=aliases)

    notes = forgotten(policy, {CASE, "y", "x"}, TODAY)

    assert [note.partition(": ")[2] for note in notes] == [
        "no set has such a case",
        "expired on 2026-11-28; kernels renews or removes it",
        "b is called never_made, which no set has",
        "x is renamed, and a set still has it",
    ]
    assert forgotten(load_policy(), set(), TODAY) == []


def test_the_doctor_names_them(monkeypatch, known_of):
    today = dt.datetime.now(dt.UTC).date()  # the doctor's
    entry = ENTRY.replace("2026-12-31", str(today + dt.timedelta(days=30))).replace("2026-11-01", str(today))
    known = known_of(entry.replace(CASE, "gone"))
    monkeypatch.setattr("ci.policy.load_policy", lambda: replace(load_policy(), known=known))

    found = doctor._configuration()

    assert found.level == "limited"
    assert "no set has such a case" in found.found
