"""What Nsight Compute prints, read. The two tables are what ncu 2025.3 printed on an H200.

``ncu-raw.csv``: the launches of one case (B = 1, fp32), counted before writes were counted at the SMs.
``ncu-stream.csv``: our control stream with as many reads as writes, 64 MiB each, and two of torch's kernels before it.
"""

from pathlib import Path

import pytest

from benchmarks.harness import ncu

TABLE = Path(__file__).with_name("ncu-raw.csv").read_text()
STREAM = Path(__file__).with_name("ncu-stream.csv").read_text()
HEADER = '"ID","Kernel Name","dram__bytes_read.sum","lts__t_sector_hit_rate.pct"\n"","","byte","%"\n'


def test_every_launch_has_its_kernel_and_the_metrics_under_our_names():
    launches = ncu.parse_csv(TABLE, ncu.COUNTED)

    assert [launch.kernel for launch in launches] == [
        "_verify_kernel",
        "_commit_plan_kernel",
        "_commit_state_kernel",
        "_compact_conv_kernel",
        "_full_state_verify_kernel",
    ]
    assert launches[2].values == {
        "dram_read_bytes": 58_100_736,
        "l2_hit_pct": 51.08,
        "occupancy_pct": 21.98,
        "tensor_pipe_pct": 0.19,
    }


def test_kernel_names_with_commas_and_brackets_are_read_whole():
    uniform, fill, stream = ncu.parse_csv(STREAM, ncu.COUNTED)

    assert uniform.kernel.startswith("void at::<unnamed>::distribution_elementwise_grid_stride_kernel<float, 4, ")
    assert uniform.kernel.endswith("(long, at::PhiloxCudaState, T3, T4)")
    assert (fill.kernel[-13:], stream.kernel) == ("(int, T2, T3)", "_stream_kernel")


def test_writes_are_counted_once_where_the_l2s_partitions_pass_them_on():
    every_write = "lts__t_sectors_op_write.sum"
    launches = ncu.parse_csv(STREAM, {**ncu.COUNTED, "every_write": every_write})

    assert {launch.values["l2_write_sectors"] for launch in launches} == {64 * 2**20 / 32}
    assert all(launch.values["every_write"] > 1.49 * 64 * 2**20 / 32 for launch in launches)


def test_metric_that_is_not_available_is_absent_not_zero():
    (launch,) = ncu.parse_csv(f'{HEADER}"0","_verify_kernel","n/a","0"\n', ncu.COUNTED)

    assert launch.values == {"l2_hit_pct": 0}


def test_metric_without_a_column_is_absent():
    verify, *_ = ncu.parse_csv(TABLE, {"no_such": "dram__no_such.sum"})

    assert verify.values == {}


@pytest.mark.parametrize("text", ["", "==PROF== Connected\n==ERROR== nothing\n", "hello, world\n"])
def test_output_without_a_table_is_an_error(text):
    with pytest.raises(ncu.NcuOutputError, match="no table"):
        ncu.parse_csv(text, ncu.COUNTED)


def test_row_that_was_cut_off_is_an_error():
    with pytest.raises(ncu.NcuOutputError, match="a row of 4 columns below a header of 287"):
        ncu.parse_csv(TABLE + '"5","1660","python3.12","127.0\n', ncu.COUNTED)


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
