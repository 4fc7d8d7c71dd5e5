import json
import random

import msgspec
import pytest
from typer.testing import CliRunner

from benchmarks.harness.store import Store
from ci.__main__ import app
from ci.spread import compare_starts, read_mixed
from tests.ci.nights import drifting, make_record, timed
from tests.ci.stores import put_at_url


def records(num, started, sd, seed):
    rng = random.Random(seed)
    cases = [f"case{at}" for at in range(12)]
    return [
        make_record([timed(100 * (1 + rng.gauss(0, sd)), case=case) for case in cases], started=started)
        for _ in range(num)
    ]


@pytest.mark.parametrize(("sd", "verdict"), [(0.005, "equal"), (0.02, "different")])
def test_forked_processes_are_held_against_fresh_ones(sd, verdict):
    found = compare_starts([*records(16, "fresh", 0.005, 1), *records(16, "forked", sd, 2)])

    assert found["nvidia-h200 device_us"]["verdict"] == verdict
    assert found["nvidia-h200 host_us"]["verdict"].startswith("too few")


def test_few_processes_show_nothing():
    found = compare_starts([*records(7, "fresh", 0.005, 1), *records(7, "forked", 0.005, 9)])

    assert found["nvidia-h200 device_us"]["verdict"].startswith("too few to say (8 of each")


def test_command_reads_mixed_nights_alone(fake_night):
    fake_night.night([*records(8, "fresh", 0.005, 3), *records(8, "forked", 0.005, 4)], processes=16)
    fake_night.night(records(5, "fresh", 0.5, 4))

    result = CliRunner().invoke(app, ["spread", "--store", str(fake_night.store), "--json"])

    facts = json.loads(result.stdout)["nvidia-h200 device_us"]
    assert (facts["fresh"], facts["forked"]) == (8, 8)
    text = CliRunner().invoke(app, ["spread", "--store", str(fake_night.store)]).stdout
    assert "spread forked/fresh" in text


def test_a_process_whose_controls_disagree_is_left_out_and_named(fake_night):
    mixed = [*records(8, "fresh", 0.005, 3), *records(9, "forked", 0.005, 4)]
    mixed[-1] = msgspec.structs.replace(mixed[-1], controls=drifting(279.0))
    (night,) = fake_night.night(mixed, processes=17).nights
    trusting = msgspec.structs.replace(night, id=f"{night.id}b", records=night.all_records, left_out=[])
    Store(fake_night.store).add_night(trusting)

    result = CliRunner().invoke(app, ["spread", "--store", str(fake_night.store)])

    assert "8 fresh and 8 forked processes" in result.stdout
    assert f"record {mixed[-1].id}: left out: control copy took +11.6 % at the end of the process" in result.stdout


def test_store_without_forked_processes_exits_3(fake_night):
    fake_night.night(records(5, "fresh", 0.005, 4))

    result = CliRunner().invoke(app, ["spread", "--store", str(fake_night.store)])

    assert result.exit_code == 3
    assert "--fork mixed" in result.stderr


def test_one_night_is_read_alone_and_without_samples(fake_night, tmp_path, monkeypatch):
    mixed = [*records(8, "fresh", 0.005, 3), *records(8, "forked", 0.005, 4)]
    (night,) = fake_night.night(mixed, processes=16).nights
    fake_night.night(records(5, "fresh", 0.5, 4))
    url, asked = put_at_url(Store(fake_night.store), tmp_path, monkeypatch)

    (found,) = read_mixed(url, night.id)

    assert {record.id for record in found} == set(night.records)
    assert len(asked) == 1 + 16


def test_levels_of_nights_do_not_hide_a_difference_of_spread(fake_night):
    """Two occasions 10 % apart would give both groups the spread between nights, and with it look equal."""
    for night, level in enumerate((1.0, 1.1)):
        mixed = [*records(8, "fresh", 0.005, 10 + night), *records(8, "forked", 0.02, 20 + night)]
        fake_night.night([scaled(record, level) for record in mixed], processes=16)

    found = compare_starts(*read_mixed(str(fake_night.store), None))

    assert found["nvidia-h200 device_us"]["verdict"] == "different"
    assert (found["nvidia-h200 device_us"]["fresh"], found["nvidia-h200 device_us"]["forked"]) == (16, 16)


def test_a_process_that_two_nights_name_counts_once(fake_night):
    mixed = [*records(8, "fresh", 0.005, 3), *records(8, "forked", 0.005, 4)]
    (night,) = fake_night.night(mixed, processes=16).nights
    Store(fake_night.store).add_night(msgspec.structs.replace(night, id=f"{night.id}b"))

    found = compare_starts(*read_mixed(str(fake_night.store), None))

    assert (found["nvidia-h200 device_us"]["fresh"], found["nvidia-h200 device_us"]["forked"]) == (8, 8)


def scaled(record, level):
    measurements = [msgspec.structs.replace(m, value=m.value * level) for m in record.measurements]
    return msgspec.structs.replace(record, measurements=measurements)
