"""Two nights, records or commits held against each other; what is refused, and the exit codes."""

import json

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from ci.__main__ import app
from ci.commits.compare import Filters, compare
from ci.commits.sides import in_one_backfill, resolve
from ci.commits.stored import read_named
from ci.exits import Exit, MissingDataError, UsageError
from reports.sources import read_records
from tests.ci.nights import CASE, ENVIRONMENT, QUIET, exact, make_case, make_record, timed
from tests.ci.stores import MadeNight, make_night, put_at_url, samples_of, store_nights

SLOW = tuple(1.05 * level for level in QUIET)
H100 = replace(ENVIRONMENT, gpu_model="nvidia-h100")


def stored(tmp_path, *nights):
    folder = tmp_path / "store"
    store_nights(folder, *nights)
    return read_records([str(folder)])


def run(tmp_path, *arguments):
    return CliRunner().invoke(app, ["compare", *arguments, "--store", str(tmp_path / "store")])


def verdicts(found):
    return {f"{v.op}/{v.provider}": v.verdict for v in found.verdicts if v.metric == "device_us"}


def backfilled(made, name, commit, levels):
    return [
        make_record(
            [timed(level)],
            id=f"20261201T00000{i}Z-{commit[:8]}-{name[-1]}0000{i}",
            backfill=name,
            subject=replace(made.records[0].subject, commit=commit),
        )
        for i, level in enumerate(levels)
    ]


def test_slower_night_is_regressed_with_ratio_and_interval(tmp_path):
    history = stored(tmp_path, make_night(1, levels=QUIET), make_night(2, levels=SLOW))

    found = compare(history, "latest~1", "latest")

    assert found.code == Exit.REGRESSED
    assert set(verdicts(found).values()) == {"regressed"}
    shown = run(tmp_path, "latest~1", "latest")
    assert shown.exit_code == 1
    assert "1.0500 (1.0476..1.0524)" in shown.output
    assert "1 unchanged: 1 memory_saved_pct state" in shown.output


def test_other_way_round_it_is_improved_and_passes(tmp_path):
    history = stored(tmp_path, make_night(1, levels=QUIET), make_night(2, levels=SLOW))

    found = compare(history, "latest", "latest~1")

    assert (found.code, set(verdicts(found).values())) == (Exit.PASS, {"improved"})


def test_equal_nights_fold_to_one_line(tmp_path):
    stored(tmp_path, make_night(1, levels=QUIET), make_night(2, levels=QUIET))

    shown = run(tmp_path, "01000000", "02000000")

    assert shown.exit_code == 0
    assert "regressed" not in shown.output
    assert "4 unchanged: " in shown.output
    assert "unchanged  " in run(tmp_path, "01000000", "02000000", "--all").output


def test_json_has_every_series_and_ratio(tmp_path):
    stored(tmp_path, make_night(1, levels=QUIET), make_night(2, levels=SLOW))

    found = json.loads(run(tmp_path, "latest~1", "latest", "--op", "verify", "--provider", "recover*", "--json").output)

    assert found["exit_code"] == 1
    assert found["a"]["commits"] == [f"01{'0' * 38}"]
    (series,) = found["series"]
    assert series["ratio"] == pytest.approx(1.05)
    assert series["ratio_low"] < 1.05 < series["ratio_high"]


@pytest.mark.parametrize("name", ["20261101T090000Z-01000000-000009", "01000000-000009", "0100000", f"01{'0' * 38}"])
def test_night_is_found_by_its_id_its_end_and_its_commit(tmp_path, name):
    history = stored(tmp_path, make_night(1, levels=QUIET), make_night(2, levels=QUIET))

    assert compare(history, name, "latest").a.night.id == "20261101T090000Z-01000000-000009"


def test_one_record_has_a_ratio_and_no_verdict(tmp_path):
    one, other = make_night(1, levels=QUIET), make_night(2, levels=SLOW)
    history = stored(tmp_path, one, other)

    found = compare(history, one.records[0].id, other.records[0].id)

    assert set(verdicts(found).values()) == {"inconclusive"}
    assert found.verdicts[0].change_pct == pytest.approx(5)
    assert found.code == Exit.PASS


def test_other_gpu_models_are_refused_unless_asked(tmp_path):
    history = stored(tmp_path, make_night(1, levels=QUIET), make_night(2, levels=SLOW, environment=H100))

    with pytest.raises(UsageError, match="gpu_model: nvidia-h200 and nvidia-h100") as refused:
        compare(history, "latest~1", "latest")
    assert "--anyway" in refused.value.next_step
    assert run(tmp_path, "latest~1", "latest").exit_code == 2

    found = compare(history, "latest~1", "latest", anyway=True)
    assert found.differs == {"gpu_model": ("nvidia-h200", "nvidia-h100")}
    assert set(verdicts(found).values()) == {"regressed"}
    assert not found.doubts


def test_other_environment_is_refused_and_named(tmp_path):
    newer = replace(ENVIRONMENT, driver="590.1")
    history = stored(tmp_path, make_night(1, levels=QUIET), make_night(2, levels=QUIET, environment=newer))

    with pytest.raises(UsageError, match=r"driver: 580\.1 and 590\.1"):
        compare(history, "latest~1", "latest")


def test_series_that_only_the_other_set_has_are_counted_and_not_missing(tmp_path):
    wide = make_night(1, levels=QUIET, cases=(CASE, f"{CASE}x"))
    narrow = make_night(2, levels=QUIET)
    narrow = MadeNight(replace(narrow.night, case_set="pr"), [replace(one, case_set="pr") for one in narrow.records])

    found = compare(stored(tmp_path, wide, narrow), "latest~1", "latest")

    assert found.code == Exit.PASS
    assert [note for note in found.notes if "in A alone: A measured set smoke, B pr" in note]


def test_vanished_series_is_missing_and_exits_3(tmp_path):
    other = f"{CASE}x"
    history = stored(tmp_path, make_night(1, levels=QUIET, cases=(CASE, other)), make_night(2, levels=QUIET))

    found = compare(history, "latest~1", "latest")

    assert found.code == Exit.MISSING
    assert {v.case for v in found.verdicts if v.verdict == "missing"} == {other}
    assert compare(history, "latest~1", "latest", Filters(case=CASE)).code == Exit.PASS


def test_name_that_nothing_bears_tells_the_newest_nights(tmp_path):
    history = stored(tmp_path, make_night(1), make_night(2))

    with pytest.raises(MissingDataError, match="newest nights: 20261102T090000Z"):
        compare(history, "feedbeef", "latest")
    with pytest.raises(MissingDataError, match="has 2 nights"):
        compare(history, "latest~2", "latest")
    with pytest.raises(MissingDataError, match="no series fits"):
        compare(history, "latest~1", "latest", Filters(op="nothing"))


def test_store_that_is_not_there_exits_3(tmp_path):
    shown = run(tmp_path, "latest~1", "latest")

    assert shown.exit_code == 3
    assert "there is no such store" in shown.output


def test_commit_measured_on_two_models_asks_which(tmp_path):
    history = stored(tmp_path, make_night(1, levels=QUIET), make_night(1, levels=QUIET, month=10, environment=H100))

    with pytest.raises(UsageError, match="nvidia-h100, nvidia-h200"):
        compare(history, "01000000", "latest")
    assert compare(history, "01000000", "latest", gpu_model="nvidia-h200").code == Exit.PASS


def test_two_commits_of_one_backfill_are_compared_by_its_records(tmp_path):
    """Nights of other days say otherwise, and are not asked."""
    nights = make_night(1, levels=QUIET), make_night(2, levels=QUIET)
    store = store_nights(tmp_path / "store", *nights)
    a, b = (made.records[0].subject.commit for made in nights)
    for commit, levels in ((a, QUIET), (b, SLOW)):
        for record in backfilled(nights[0], "backfill-1", commit, levels):
            store.add_record(record, samples_of(record))

    found = compare(read_records([str(store.folder)]), a, b)

    assert found.code == Exit.REGRESSED
    assert found.a.what == f"commit {a} (backfill backfill-1)"


def test_broken_control_leaves_a_backfilled_process_out(tmp_path):
    made = make_night(1, levels=QUIET)
    store = store_nights(tmp_path / "store", made)
    commit = "f" * 40
    records = backfilled(made, "backfill-1", commit, (*QUIET, 500.0))
    records[-1] = replace(records[-1], controls=[])
    for record in records:
        store.add_record(record, samples_of(record))

    found = compare(read_records([str(store.folder)]), "latest", commit, Filters(op="verify", provider="recoverssm"))

    assert found.code == Exit.PASS
    assert len(found.b.records) == 5
    assert any("no controls at the start" in note for note in found.notes)


def test_static_reports_are_still_compared(tmp_path):
    shown = CliRunner().invoke(app, ["compare", "--static", str(tmp_path / "a.json"), str(tmp_path / "b.json")])

    assert shown.exit_code == 2
    assert "a.json" in shown.output


def test_failed_check_of_b_is_invalid(tmp_path):
    good, bad = make_night(1, levels=QUIET), make_night(2, levels=QUIET)
    failed = [
        replace(record, checks=[replace(check, passed=False, value=1.0) for check in make_record([]).checks])
        for record in bad.records
    ]
    history = stored(tmp_path, good, MadeNight(bad.night, failed))

    assert compare(history, "latest~1", "latest").code == Exit.INVALID


def test_compiled_figures_of_the_commit_do_not_stand_in_its_way(tmp_path):
    made = make_night(1, levels=QUIET)
    store = store_nights(tmp_path / "store", made)
    compiled = make_record(
        [exact(10.0, contract="static", metric="registers", unit="registers")],
        environment=replace(ENVIRONMENT, gpu_model="sm_90"),
        subject=made.records[0].subject,
        cases=[make_case()],
    )
    store.add_record(compiled, samples_of(compiled))

    assert compare(read_records([str(store.folder)]), "01000000", "latest").a.gpu_model == "nvidia-h200"


@pytest.fixture
def long_history(tmp_path, monkeypatch):
    """Nights of two GPU models, and a backfill of two commits; recent are two nights and five records of each model."""
    monkeypatch.setattr("ci.commits.stored.RECENT", {"nights": 2, "records": 5})
    monkeypatch.setattr("ci.commits.stored.SHOWN_NIGHTS", 1)
    nights = [make_night(day) for day in range(1, 8)]
    others = [make_night(day, environment=H100, month=10) for day in range(11, 14)]
    store = store_nights(tmp_path / "store", *nights, *others)
    for commit in ("c" * 40, "d" * 40):
        for record in backfilled(nights[0], "backfill-1", commit, QUIET):
            store.add_record(record, samples_of(record))
    return store


@pytest.mark.parametrize(
    ("name", "num_read"),
    [
        ("latest", 2 * 2 + 3),
        ("latest~4", 6 + 3 + 3),
        ("20261107T090000Z-07000000-000009", 2 * 2 + 3),  # recent
        ("01000000-000009", 2 * 2 + 1 + 3),  # old
        ("20261101T000000Z-01000000-000000", 2 * 2 + 1),  # an old record
        ("01000000", 2 * 2 + 1 + 3),  # a commit with a night
        ("c" * 40, 2 * 2 + 5),  # one with a backfill
        ("eeeeeeeee", 2 * 2),
    ],
)
def test_few_files_are_read_and_a_name_stands_for_what_it_would_of_all(
    long_history, tmp_path, monkeypatch, name, num_read
):
    url, asked = put_at_url(long_history, tmp_path, monkeypatch)
    found, everything = read_named([url], [name]), read_records([str(long_history.folder)])

    assert (len(asked), len([one for one in asked if one.endswith(".parquet")])) == (num_read, 0)
    try:
        side = resolve(everything, name)
    except MissingDataError:
        with pytest.raises(MissingDataError):
            resolve(found, name)
    else:
        again = resolve(found, name)
        assert (again.what, again.night, again.notes) == (side.what, side.night, side.notes)
        assert {record.id for record in again.records} == {record.id for record in side.records}


def test_both_sides_of_a_backfill_are_read(long_history):
    names, stores = ("c" * 40, "d" * 40), [str(long_history.folder)]

    sides = in_one_backfill(read_named(stores, names), *names)

    assert sides is not None
    everything = in_one_backfill(read_records(stores), *names)
    assert [{r.id for r in side.records} for side in sides] == [{r.id for r in side.records} for side in everything]


def test_with_bases_the_nights_before_are_read_too(tmp_path):
    first, second = make_night(1), make_night(2)
    second = MadeNight(replace(second.night, base_night=first.night.id), second.records)
    store = store_nights(tmp_path / "store", first, second)

    found = read_named([str(store.folder)], ["latest"], with_bases=True)

    assert set(found.records) == {record.id for made in (first, second) for record in made.records}
