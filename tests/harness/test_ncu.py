"""What Nsight Compute prints, read; the sample table is written by the documented format of ncu 2025.3."""

from pathlib import Path

import pytest

from benchmarks.harness import ncu

TABLE = Path(__file__).with_name("ncu-raw.csv").read_text()


def test_every_launch_has_its_kernel_and_the_metrics_under_our_names():
    verify, commit = ncu.parse_csv(TABLE, ncu.COUNTED)

    assert verify.kernel == "_verify_kernel"
    assert verify.values == {
        "dram_read_bytes": 25_690_112,
        "l2_write_sectors": 98_304,
        "l2_hit_pct": 12.5,
        "occupancy_pct": 21.75,
        "tensor_pipe_pct": 0,
    }
    assert commit.values["dram_read_bytes"] == 4.2e8


def test_metric_that_is_not_available_is_absent_not_zero():
    _, commit = ncu.parse_csv(TABLE, ncu.COUNTED)

    assert "tensor_pipe_pct" not in commit.values


def test_metric_without_a_column_is_absent():
    (verify, _) = ncu.parse_csv(TABLE, {"duration_ns": "gpu__time_duration.sum"})

    assert verify.values == {}


@pytest.mark.parametrize("text", ["", "==PROF== Connected\n==ERROR== nothing\n", "hello, world\n"])
def test_output_without_a_table_is_an_error(text):
    with pytest.raises(ncu.NcuOutputError, match="no table"):
        ncu.parse_csv(text, ncu.COUNTED)


def test_row_that_was_cut_off_is_an_error():
    with pytest.raises(ncu.NcuOutputError, match="a row of 4 columns below a header of 16"):
        ncu.parse_csv(TABLE + '"2","4711","python3.12","127.0\n', ncu.COUNTED)


def test_clocks_stay_as_they_are():
    command = ncu.profile_command("ncu", ["a", "b"], Path("r.ncu-rep"), ["python", "-m", "x"])

    assert command[command.index("--clock-control") + 1] == "none"
    assert command[command.index("--metrics") + 1] == "a,b"
    assert command[-3:] == ["python", "-m", "x"]


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access", "ERR_NVGPUCTRPERM - The user"),
        ("x\n==WARNING== No kernels were profiled.\n", "No kernels were profiled."),
        ("fine\n", None),
    ],
)
def test_refusal_is_found_in_ncus_own_words(output, reason):
    found = ncu.refusal(output)

    assert found is None if reason is None else found.startswith(reason)


def test_unknown_metric_is_found():
    output = "==ERROR== Failed to find metric sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active\n"

    assert ncu.unknown_metrics(output) == ["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"]
