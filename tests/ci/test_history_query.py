"""`ci history query`: the newest accepted value of every series, and the derived headline metrics."""

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from benchmarks.harness.records import Check, Measurement
from benchmarks.harness.store import Store
from ci.__main__ import app
from ci.exits import Exit, MissingDataError
from ci.history.query import Filters, query
from tests.ci.nights import CASE, ENVIRONMENT, timed
from tests.ci.stores import LEVELS, MadeNight, make_night, put_at_url, samples_of, store_nights, verdicts_of
from tests.reports.golden import processes_of

HISTORY = Path(__file__).resolve().parents[2] / "reports" / "history"
FIELDS = ["metric", "op", "provider", "case", "gpu", "contract", "value", "unit", "low", "high", "process_sd_pct"]


def ask(store, **filters):
    answer = query([str(store.folder if isinstance(store, Store) else store)], Filters(**filters))
    assert answer.problems == []
    return answer.rows


def one(store, **filters):
    (row,) = ask(store, **filters)
    return row


def test_a_row_says_all_of_a_value(tmp_path):
    made = make_night(1)
    row = one(store_nights(tmp_path, made), metric="device_us", op="verify", provider="recoverssm")

    assert row.as_json() == {
        "metric": "device_us",
        "op": "verify",
        "provider": "recoverssm",
        "case": CASE,
        "gpu": "nvidia-h200",
        "contract": "graph-cold",
        "value": 100.0,
        "unit": "us",
        "low": 99.0,
        "high": 101.0,
        "process_sd_pct": 1.0,
        "n_processes": 3,
        "commit": made.records[0].subject.commit,
        "record": made.records[0].id,  # its process has the median
    }


def test_the_newest_accepted_night_wins(tmp_path):
    nights = [make_night(1), make_night(2, levels=[50.0] * 3), make_night(3, levels=[70.0] * 3, accepted=False)]

    row = one(store_nights(tmp_path, *nights), op="verify", provider="recoverssm", metric="device_us")

    assert (row.value, row.commit) == (50.0, nights[1].records[0].subject.commit)


def test_a_night_that_passed_with_too_few_processes_counts_where_it_is_asked_for(tmp_path):
    nights = [
        make_night(1),
        make_night(2, levels=[50.0] * 2, accepted=False),
        make_night(3, levels=[70.0] * 3, accepted=False, exit_code=4),
    ]
    store = store_nights(tmp_path, *nights)
    asked = Filters(op="verify", provider="recoverssm", metric="device_us")

    rows = [query([str(store.folder)], asked, passed=passed).rows for passed in (False, True)]

    assert [[(row.value, row.n_processes) for row in some] for some in rows] == [[(100.0, 3)], [(50.0, 2)]]


def test_the_order_of_files_does_not_decide_but_time_does(tmp_path):
    early, late = make_night(20, month=10, levels=[1.0] * 3), make_night(1, month=11, levels=[2.0] * 3)

    store = store_nights(tmp_path, late, early)

    assert one(store, op="verify", provider="recoverssm", metric="device_us").value == 2.0


def test_a_series_without_a_value_falls_back_to_the_night_that_has_one(tmp_path):
    newer = make_night(2, levels=[50.0] * 3)
    verdicts = [
        msgspec.structs.replace(v, value=None, verdict="invalid") if v.op == "commit" else v
        for v in newer.night.verdicts
    ]
    store = store_nights(tmp_path, make_night(1))
    for record in newer.records:
        store.add_record(record, samples_of(record))
    store.add_night(msgspec.structs.replace(newer.night, verdicts=verdicts))

    assert one(store, op="commit", metric="device_us").value == 1000.0
    assert one(store, op="verify", provider="recoverssm", metric="device_us").value == 50.0


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({}, 6),  # four series, and two derived from them
        ({"metric": "device_*"}, 3),
        ({"metric": "memory_saved_*"}, 1),
        ({"provider": "full_state"}, 1),
        ({"op": "commit"}, 2),
        ({"case": "*_b32_*"}, 6),
        ({"case": "*_b8_*"}, 0),
        ({"gpu_model": "nvidia-h1*"}, 0),
        ({"op": "VERIFY"}, 0),
    ],
)
def test_filters_are_globs(tmp_path, filters, count):
    assert len(ask(store_nights(tmp_path, make_night(1)), **filters)) == count


def test_overhead_is_taken_inside_each_process(tmp_path):
    made = make_night(1)
    records = [change(record, index) for index, record in enumerate(made.records)]
    store = Store(tmp_path)
    for record in records:
        store.add_record(record, samples_of(record))
    store.add_night(msgspec.structs.replace(made.night, verdicts=verdicts_of(records)))

    row = one(store, metric="verify_overhead")

    expected = [level / (2 * level + index) - 1 for index, level in enumerate(LEVELS)]
    assert row.value == pytest.approx(sorted(expected)[1])
    assert (row.unit, row.op, row.provider, row.n_processes) == ("ratio", "verify", "recoverssm", 3)
    assert row.low < row.value < row.high
    assert row.record == records[1].id


def with_measurements(made, *per_process):
    """The night with further measurements in each process."""
    records = [
        msgspec.structs.replace(record, measurements=[*record.measurements, *more])
        for record, more in zip(made.records, per_process, strict=True)
    ]
    return MadeNight(msgspec.structs.replace(made.night, verdicts=verdicts_of(records)), records)


@pytest.mark.parametrize("op", ["verify", "commit"])
def test_a_difference_is_taken_inside_each_process_and_may_be_negative(tmp_path, op):
    def hosts(ours, launch):
        times = {op: ours, f"{op}_launch": launch}
        return [timed(us, metric="host_us", op=op, contract="host-dispatch", n_samples=3) for op, us in times.items()]

    made = with_measurements(make_night(1), hosts(40.0, 50.0), hosts(60.0, 64.0), hosts(20.0, 42.0))

    row = one(store_nights(tmp_path, made), metric="over_launch_us")

    assert (row.op, row.value, row.unit, row.contract) == (op, -10.0, "us", "host-dispatch")
    half = 4.302653 * 84**0.5 / 3**0.5  # Student's t of two degrees of freedom; the mean of -10, -4 and -22 is -12
    assert (row.low, row.high) == pytest.approx((-12.0 - half, -12.0 + half))
    assert row.record == made.records[0].id


def test_plan_and_conv_are_what_a_commit_takes_above_that_of_its_states(tmp_path):
    made = with_measurements(
        make_night(1), *([timed(us, op="commit_state", n_samples=3)] for us in (960.0, 970.0, 960.0))
    )  # whole commits take 1000, 1010 and 990 us

    row = one(store_nights(tmp_path, made), metric="plan_and_conv_us")

    assert (row.op, row.value, row.unit) == ("commit", 40.0, "us")


def test_a_commit_is_held_against_that_of_one_accepted_token(tmp_path):
    eight, one_token = ("kimi_k3_tp8_b32_t8_a8.00_fp32", "kimi_k3_tp8_b32_t8_a1.00_fp32")

    def states(over):
        return [
            timed(us, op="commit_state", case=case, n_samples=3)
            for case, us in ((eight, 100.0 * over), (one_token, 100.0))
        ]

    made = with_measurements(make_night(1), states(1.04), states(1.05), states(1.09))

    rows = ask(store_nights(tmp_path, made), metric="over_one_accepted", case="*_a8*")

    assert [(row.op, row.value, row.unit) for row in rows] == [("commit_state", pytest.approx(1.05), "ratio")]
    assert ask(tmp_path, metric="plan_and_conv_us", case="*_a8*") == []  # no whole commit


@pytest.mark.parametrize("metric_of_check", ["out_error", "u_error", "state_error"])
def test_shares_and_the_largest_errors_stand_beside_the_time_of_their_op(tmp_path, metric_of_check):
    made = with_measurements(make_night(1), *[[timed(11.0, contract="nvbench-cold", n_samples=3)]] * 3)
    checks = [
        Check(case=CASE, op="verify", provider="recoverssm", metric=metric, value=2e-7, limit=1e-6, passed=True)
        for metric in (metric_of_check, "untouched")
    ]
    shares = (98.0, 97.0, 99.0)
    records = [
        msgspec.structs.replace(
            record,
            measurements=[
                msgspec.structs.replace(m, control_pct=share if m.op == "verify" else None) for m in record.measurements
            ],
            checks=[msgspec.structs.replace(check, value=check.value * (1 + index)) for check in checks],
        )
        for index, (record, share) in enumerate(zip(made.records, shares, strict=True))
    ]
    store = store_nights(tmp_path, MadeNight(made.night, records))

    share, error = one(store, metric="control_pct", provider="recoverssm"), one(store, metric="*_error")

    assert (share.op, share.value, share.unit, share.contract) == ("verify", 98.0, "%", "graph-cold")
    assert share.low < share.value < share.high
    assert (error.metric, error.op, error.value, error.low) == (metric_of_check, "verify", pytest.approx(6e-7), None)
    assert (error.record, error.n_processes, error.contract) == (records[2].id, 3, "exact")


def test_what_stands_beside_a_time_or_is_derived_is_of_its_own_night_alone(tmp_path):
    def shown(made):
        records = [
            msgspec.structs.replace(
                record, measurements=[msgspec.structs.replace(m, control_pct=90.0) for m in record.measurements]
            )
            for record in made.records
        ]
        return MadeNight(made.night, records)

    newer = make_night(2)
    newer = MadeNight(  # without a commit: that of the older night is asked for beside it
        msgspec.structs.replace(newer.night, verdicts=[v for v in newer.night.verdicts if v.op != "commit"]),
        newer.records,
    )

    rows = ask(store_nights(tmp_path, shown(make_night(1)), shown(newer)))

    assert {(row.metric, row.op) for row in rows} >= {
        *(("control_pct", op) for op in ("verify", "commit")),
        ("verify_overhead", "verify"),
        ("commit_latency_us", "commit"),
    }
    assert {row.n_processes for row in rows} == {3}


def change(record, index):
    """Full state slower by one more microsecond in each process."""
    return msgspec.structs.replace(
        record,
        measurements=[
            msgspec.structs.replace(m, value=m.value + index) if m.provider == "full_state" else m
            for m in record.measurements
        ],
    )


def test_overhead_never_mixes_nights(tmp_path):
    ours_only = make_night(2)
    kept = [v for v in ours_only.night.verdicts if v.provider != "full_state"]
    store = store_nights(tmp_path, make_night(1))
    for record in ours_only.records:
        store.add_record(record, samples_of(record))
    store.add_night(msgspec.structs.replace(ours_only.night, verdicts=kept))

    assert ask(store, metric="verify_overhead") == []


def test_figures_are_those_of_the_page():
    store = Store(HISTORY, writable=False)
    rows = {(r.metric, r.op, r.provider): r for r in ask(HISTORY, gpu_model="nvidia-h200", case=CASE)}
    overhead = rows["verify_overhead", "verify", "recoverssm"]
    (night,) = [night for night in store.nights("nvidia-h200") if overhead.record in night.records]
    head = processes_of(store.records(night.records)).headline(CASE)

    assert 100 * overhead.value == pytest.approx(head.verify_overhead_pct.median)
    assert 100 * rows["step_overhead", "step", "recoverssm"].value == pytest.approx(head.step_overhead_pct.median)
    assert rows["commit_latency_us", "commit", "recoverssm"].value == pytest.approx(head.commit_us.median)
    assert rows["memory_saved_pct", "state", "recoverssm"].value == head.memory_saved_pct.median
    assert rows["memory_saved_bytes", "state", "recoverssm"].value == head.memory_saved_bytes.median


def test_an_id_in_two_stores_counts_once(tmp_path):
    first = store_nights(tmp_path / "a", make_night(1))
    second = store_nights(tmp_path / "b", make_night(1), make_night(2, levels=[3.0] * 3))

    answer = query([str(first.folder), str(second.folder)], Filters(op="verify", provider="recoverssm"))

    assert [(row.metric, row.value) for row in answer.rows if row.metric == "device_us"] == [("device_us", 3.0)]


@pytest.mark.parametrize("damage", [b"{", b"\xff\xff", b"[]", b'{"schema_version": 2}', b'{"schema_version": 1}'])
def test_a_damaged_night_is_left_out_and_named(tmp_path, damage):
    store = store_nights(tmp_path, make_night(1))
    bad = tmp_path / "nights" / "nvidia-h200" / "20261102T090000Z-0-000009.json"
    bad.write_bytes(damage)

    answer = query([str(store.folder)], Filters(metric="device_us"))

    assert len(answer.rows) == 3
    if damage != b'{"schema_version": 1}':  # says nothing false: it is not accepted
        assert str(bad) in answer.problems[0]


def test_a_record_that_is_gone_is_named_and_the_value_stays(tmp_path):
    made = make_night(1)
    store = store_nights(tmp_path, made)
    for record in made.records:
        (tmp_path / "records" / "nvidia-h200" / f"{record.id}.json").unlink()

    answer = query([str(store.folder)], Filters(metric="device_us", op="commit"))

    assert [(row.value, row.record, row.commit) for row in answer.rows] == [(1000.0, None, None)]
    assert len(answer.problems) == 3


def test_an_invalid_measurement_is_not_the_record_of_a_value(tmp_path):
    made = make_night(1)
    bad = made.records[0]
    items = [invalid(m) if m.op == "verify" and m.provider == "recoverssm" else m for m in bad.measurements]
    records = [msgspec.structs.replace(bad, measurements=items), *made.records[1:]]
    store = Store(tmp_path)
    for record in records:
        store.add_record(record, samples_of(record))
    store.add_night(made.night)

    assert one(store, op="verify", provider="recoverssm", metric="device_us").record in {r.id for r in made.records[1:]}


def invalid(m: Measurement) -> Measurement:
    return msgspec.structs.replace(m, status="invalid", value=None, n_samples=0, reason="impossible")


def test_a_store_that_does_not_exist_is_missing_data(tmp_path):
    with pytest.raises(MissingDataError, match="no such store"):
        query([str(tmp_path / "nowhere")], Filters())


def invoke(*arguments):
    return CliRunner().invoke(app, ["history", "query", *map(str, arguments)])


def test_command_prints_a_list_of_objects():
    result = invoke("--store", HISTORY, "--gpu-model", "nvidia-h200", "--case", CASE, "--op", "verify", "--json")

    assert result.exit_code == Exit.PASS
    rows = json.loads(result.stdout)
    assert list(rows[0]) == [*FIELDS, "n_processes", "commit", "record"]
    assert {"verify_overhead", "device_us"} <= {row["metric"] for row in rows}


def test_command_exits_3_when_nothing_fits():
    result = invoke("--store", HISTORY, "--metric", "no_such", "--json")

    assert result.exit_code == Exit.MISSING
    assert json.loads(result.stdout)["exit_code"] == 3


def test_command_says_that_nights_with_too_few_processes_are_to_be_asked_for(tmp_path):
    store_nights(tmp_path, make_night(1, accepted=False))

    asked = [invoke("--store", tmp_path, "--op", op, *more) for op, *more in (["verify"], ["none", "--passed"])]

    assert [one.exit_code for one in asked] == [Exit.MISSING] * 2
    assert "no accepted night has a value that fits" in asked[0].output
    assert "--passed" in asked[0].output
    assert "no night that passed has a value that fits" in asked[1].output
    assert invoke("--store", tmp_path, "--op", "verify", "--passed").exit_code == Exit.PASS


def test_command_exits_4_and_prints_the_rest_when_a_file_is_damaged(tmp_path):
    store_nights(tmp_path, make_night(1))
    (tmp_path / "nights" / "nvidia-h200" / "x.json").write_text("{")

    result = invoke("--store", tmp_path, "--json")

    assert result.exit_code == Exit.INVALID
    assert len(json.loads(result.stdout)) == 6


def test_environment_changes_do_not_hide_the_newest_value(tmp_path):
    newer = msgspec.structs.replace(ENVIRONMENT, driver="590.0")
    store = store_nights(tmp_path, make_night(1), make_night(2, levels=[9.0] * 3, environment=newer))

    assert one(store, op="verify", provider="recoverssm", metric="device_us").value == 9.0


def test_only_the_newest_nights_are_looked_at_and_at_a_url_no_samples_are_fetched(tmp_path, monkeypatch):
    store = store_nights(tmp_path / "from", *(make_night(day) for day in (1, 2, 3)))
    url, asked = put_at_url(store, tmp_path, monkeypatch)

    rows = query([url], Filters(), nights=1).rows

    assert [row.value for row in rows] == [row.value for row in query([str(store.folder)], Filters()).rows]
    assert len(asked) == 1 + 3
    assert not [name for name in asked if name.endswith(".parquet")]
