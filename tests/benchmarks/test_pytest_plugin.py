"""pytest-benchmark run for real, on little suites of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.environment import collect_environment
from benchmarks.pytest_plugin import ReplayClock, differing_fields

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
VALUES_US = (10.1, 0.3, 7.7, 123456.789, 1e-3)
HANDED_OVER = f"""
from benchmarks.harness.measure import Samples

def test_it(gpu_benchmark):
    samples = Samples({VALUES_US!r}, 16, "enough", (0.0,) * {len(VALUES_US)})
    assert gpu_benchmark.measured_by(lambda card: samples, "cpu-reference") is samples
"""
MEASURED = """
import pytest

@pytest.mark.benchmark(group="mine")
def test_it(gpu_benchmark):
    calls = []
    samples = gpu_benchmark(lambda: calls.append(1), contract="cpu-reference")
    print("calls", len(calls), "samples", samples and list(samples.values_us))
"""


@pytest.fixture
def suite(pytester, monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # pytest-benchmark would disable itself
    monkeypatch.setattr("cpuinfo.get_cpu_info", dict)  # it watches the clock for a second
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the other plugins take most of a little suite's time

    def run(text, *options, start=pytester.runpytest_inprocess):
        if text is not None:
            pytester.makepyfile(text)
        # A test that fails before it measures has not used the stock fixture, which then warns.
        plugins = ("-p", "pytest_benchmark.plugin", "-p", "benchmarks.pytest_plugin", "-W", "ignore")
        return start(*plugins, "--benchmark-storage=saved", *options)

    return run


def saved_runs(pytester):
    return sorted(pytester.path.glob("saved/*/*.json"))


def test_each_round_is_exactly_one_of_our_samples(suite, pytester):
    suite(HANDED_OVER, "--benchmark-json=out.json").assert_outcomes(passed=1)

    (found,) = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    assert found["stats"]["data"] == [value * 1e-6 for value in VALUES_US]
    assert (found["stats"]["rounds"], found["stats"]["iterations"]) == (len(VALUES_US), 1)
    assert found["options"]["timer"] == "ReplayClock"


def test_what_our_engine_measures_is_what_is_recorded(suite, pytester):
    result = suite(MEASURED, "--benchmark-json=out.json", "-s")

    (found,) = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    printed = next(line for line in result.outlines if "samples [" in line).partition("samples ")[2]
    assert found["stats"]["data"] == [value * 1e-6 for value in json.loads(printed)]
    assert found["group"] == "mine"


def test_contract_environment_and_clocks_are_stored_beside_the_samples(suite, pytester):
    suite(HANDED_OVER, "--benchmark-json=out.json")

    stored = json.loads((pytester.path / "out.json").read_text())
    extra, environment = stored["benchmarks"][0]["extra_info"], collect_environment()
    assert (extra["contract"], extra["launches_per_sample"], extra["stop_reason"]) == ("cpu-reference", 16, "enough")
    assert extra["environment"]["torch"] == environment.torch
    assert extra["clocks"]["missing"] == {"nvml": "no CUDA device in use"}
    assert stored["machine_info"]["gpu"] == environment.gpu_model
    assert stored["machine_info"]["environment"] == extra["environment"]


def test_tables_comparison_and_histogram_work(suite, pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    suite(HANDED_OVER, "--benchmark-autosave")

    # The plotting library replaces Python's finder of installed packages for good: not in this process.
    options = ("--benchmark-compare", "--benchmark-histogram=plot")
    result = suite(None, *options, start=pytester.runpytest_subprocess)

    assert result.ret == 0
    result.stdout.re_match_lines([r"Name \(time in \w+\).*", r"test_it \(0001_.*", r"test_it \(NOW\).*"])
    assert (pytester.path / "plot.svg").read_text().startswith("<?xml")


def test_comparison_across_environments_is_refused_before_measuring(suite, pytester):
    suite(HANDED_OVER, "--benchmark-autosave")
    (path,) = saved_runs(pytester)
    saved = json.loads(path.read_text())
    saved["machine_info"]["environment"]["driver"] = "1.2.3"
    path.write_text(json.dumps(saved))

    result = suite(None, "--benchmark-compare")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*measured in another environment (driver: '1.2.3' then, *"])
    assert "passed" not in result.stdout.str()


def test_comparison_with_an_unknown_environment_is_refused(suite, pytester):
    suite(HANDED_OVER, "--benchmark-autosave")
    (path,) = saved_runs(pytester)
    saved = json.loads(path.read_text())
    del saved["machine_info"]["environment"]
    path.write_text(json.dumps(saved))

    result = suite(None, "--benchmark-compare")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*does not say in which environment*"])


def test_comparison_with_another_contract_fails_the_test(suite, pytester):
    suite(HANDED_OVER, "--benchmark-autosave")
    (path,) = saved_runs(pytester)
    saved = json.loads(path.read_text())
    saved["benchmarks"][0]["extra_info"]["contract"] = "host-dispatch"
    path.write_text(json.dumps(saved))

    result = suite(None, "--benchmark-compare")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*saved under the contract host-dispatch and is measured under cpu-reference now*"])


def test_a_gate_of_the_stock_tool_still_works_within_one_environment(suite, pytester):
    suite(HANDED_OVER, "--benchmark-autosave")

    slower = HANDED_OVER.replace(repr(VALUES_US), repr(tuple(3 * value for value in VALUES_US)))
    result = suite(slower, "--benchmark-compare", "--benchmark-compare-fail=median:50%")

    assert result.ret != 0
    assert "Performance has regressed" in result.stderr.str() + result.stdout.str()


def test_disabled_benchmarks_run_each_launch_once(suite):
    result = suite(MEASURED, "--benchmark-disable", "-s")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*calls 1 samples None"])


def test_a_launch_that_breaks_its_contract_is_refused_by_name(suite):
    text = """
    import pytest

    def test_none(gpu_benchmark):
        with pytest.raises(ValueError, match="exactly one under cpu-reference, got 2"):
            gpu_benchmark([int, int], contract="cpu-reference")

    def test_unknown(gpu_benchmark):
        with pytest.raises(ValueError, match="expected one of cpu-reference, graph-cold, host-dispatch, got 'exact'"):
            gpu_benchmark(int, contract="exact")

    def test_restore(gpu_benchmark):
        with pytest.raises(ValueError, match="expected None under host-dispatch; they belong to graph-cold"):
            gpu_benchmark(int, contract="host-dispatch", restore=int)
    """

    suite(text).assert_outcomes(passed=3)


def test_without_a_gpu_device_time_is_an_error_and_no_other_timer(suite, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    result = suite("def test_it(gpu_benchmark):\n    gpu_benchmark(int)")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*NoDeviceError: device time needs a CUDA device*"])


def test_a_timer_in_the_mark_is_refused(suite):
    text = "import pytest, time\n@pytest.mark.benchmark(timer=time.time)\ndef test_it(gpu_benchmark):\n    pass"

    result = suite(text)

    assert result.ret != 0
    result.stderr.fnmatch_lines(["*gpu_benchmark brings its own timer*"])


def test_the_host_counts_for_host_times_alone():
    saved, now = {"torch": "2", "cpu_model": "a", "missing": {"x": "y"}}, {"torch": "2", "cpu_model": "b"}

    assert differing_fields(saved, now, host=False) == {}
    assert differing_fields(saved, now, host=True) == {"cpu_model": ("a", "b")}


def test_a_field_that_one_side_lacks_differs():
    assert differing_fields({}, {"driver": "1"}, host=False) == {"driver": (None, "1")}


def test_the_replay_clock_stands_still_by_itself():
    clock = ReplayClock()
    clock.advance(0.25)

    assert (clock(), clock()) == (0.25, 0.25)
    clock.rewind()
    assert clock() == 0.0


def run_our_suite(tmp_path, *options):
    dropped = ("PYTEST_", "TRITON_INTERPRET")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    command = [sys.executable, "-m", "pytest", "benchmarks/test_ops.py", "--benchmark-only", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--benchmark-json={tmp_path}/out.json", *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((tmp_path / "out.json").read_text())


def test_our_suite_times_the_reference_where_there_is_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    stored = run_our_suite(tmp_path, "-k", "fp32")

    names = {one["name"] for one in stored["benchmarks"]}
    assert names == {f"test_op[{op}-torch-fp32-b2]" for op in ("verify", "step", "commit", "conv")}
    assert {one["extra_info"]["contract"] for one in stored["benchmarks"]} == {"cpu-reference"}
    assert stored["machine_info"]["gpu"] == "cpu"


@pytest.mark.gpu
def test_our_suite_times_kernels_on_a_gpu(tmp_path):
    stored = run_our_suite(tmp_path, "-k", "fp32 and b1 and not b128 and (commit or verify)")

    names = {one["name"] for one in stored["benchmarks"]}
    assert {"test_op[verify-recoverssm-fp32-b1]", "test_op[verify-full_state-fp32-b1]"} <= names
    assert stored["machine_info"]["gpu"] == collect_environment().gpu_model != "cpu"
    for one in stored["benchmarks"]:
        assert one["extra_info"]["contract"] == "graph-cold"
        assert one["extra_info"]["clocks"]["num_readings"] > 0
        assert one["stats"]["rounds"] == len(one["stats"]["data"]) >= 6
        assert 1e-6 < one["stats"]["median"] < 1e-3
        assert one["extra_info"]["clocks"]["sm_cycles_mhz_median"] > 100
