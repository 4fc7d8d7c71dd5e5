import pytest

from benchmarks.harness.gpu_monitor import Reading
from benchmarks.harness.measure import Samples
from benchmarks.harness.samples import SCHEMA, SampleSeries, nearest_reading, samples_table
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


def test_value_without_an_end_time_is_refused():
    with pytest.raises(ValueError, match="shorter"):
        samples_table([SampleSeries(*MEASUREMENT.key, "us", (61.0, 61.5), (10.0,))])


@pytest.mark.parametrize(("at_s", "nearest"), [(0.0, 1.0), (1.4, 1.0), (1.5, 1.0), (1.6, 2.0), (9.0, 2.0)])
def test_nearest_reading_may_lie_on_either_side(at_s: float, nearest: float):
    found = nearest_reading([Reading(at_s=1.0), Reading(at_s=2.0)], at_s)

    assert found is not None
    assert found.at_s == nearest
