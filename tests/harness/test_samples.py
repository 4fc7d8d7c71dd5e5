import pytest

from benchmarks.harness.gpu_monitor import Reading
from benchmarks.harness.measure import DroppedSample, Samples
from benchmarks.harness.samples import SCHEMA, SampleSeries, is_known, nearest_reading, samples_table
from tests.harness.stored import MEASUREMENT, READINGS, SERIES


def test_each_sample_is_a_row_with_its_nearest_reading():
    rows = samples_table([SERIES], READINGS).to_pylist()

    assert [row["sample"] for row in rows] == [0, 1, 2]
    assert [row["value"] for row in rows] == [61.0, 61.5, 62.0]
    assert [row["sm_clock_mhz"] for row in rows] == [1980.0, 1200.0, 1200.0]
    assert [row["reading_age_s"] for row in rows] == pytest.approx([0.1, -0.6, 0.4])
    assert rows[0]["case"] == MEASUREMENT.case


def test_fact_that_nvml_did_not_tell_is_null():
    rows = samples_table([SERIES], READINGS).to_pylist()

    assert rows[0]["throttle_us"] == 0
    assert rows[2]["throttle_us"] is None
    assert rows[0]["power_w"] is None


def test_samples_without_a_monitor_have_null_readings():
    row = samples_table([SERIES]).to_pylist()[0]

    assert row["value"] == 61.0
    assert row["sm_clock_mhz"] is None
    assert row["reading_age_s"] is None


def test_no_samples_give_an_empty_table_with_all_columns():
    table = samples_table([])

    assert table.num_rows == 0
    assert table.schema == SCHEMA


def test_series_is_made_of_a_measurement_and_its_samples():
    samples = Samples((61.0, 61.5, 62.0), 8, "precise", (10.0, 11.0, 12.0))

    assert SampleSeries.of(MEASUREMENT, samples) == SERIES


def test_samples_under_throttle_stay_in_order_of_time_and_are_marked():
    samples = Samples((61.0, 62.0), 8, "precise", (10.0, 12.0), (1980.0, 1965.0), (DroppedSample(75.0, 11.0, 1500.0),))
    rows = samples_table([SampleSeries.of(MEASUREMENT, samples)]).to_pylist()

    assert [(row["value"], row["accepted"], row["block_sm_mhz"]) for row in rows] == [
        (61.0, True, 1980.0),
        (75.0, False, 1500.0),
        (62.0, True, 1965.0),
    ]


def test_series_without_accepted_samples_keeps_the_others():
    samples = Samples((), 8, "no accepted samples", (), (), (DroppedSample(75.0, 11.0, None),))
    rows = samples_table([SampleSeries.of(MEASUREMENT, samples)]).to_pylist()

    assert [(row["value"], row["accepted"]) for row in rows] == [(75.0, False)]


def test_tables_of_the_first_harness_are_known():
    assert is_known(SCHEMA)
    assert is_known(SCHEMA.remove(SCHEMA.get_field_index("accepted")).remove(SCHEMA.get_field_index("block_sm_mhz")))
    assert not is_known(SCHEMA.remove(0))


def test_value_without_an_end_time_is_refused():
    with pytest.raises(ValueError, match="shorter"):
        samples_table([SampleSeries(*MEASUREMENT.key, "us", (61.0, 61.5), (10.0,))])


@pytest.mark.parametrize(("at_s", "nearest"), [(0.0, 1.0), (1.4, 1.0), (1.5, 1.0), (1.6, 2.0), (9.0, 2.0)])
def test_nearest_reading_may_lie_on_either_side(at_s: float, nearest: float):
    found = nearest_reading([Reading(at_s=1.0), Reading(at_s=2.0)], at_s)

    assert found is not None
    assert found.at_s == nearest
