import os
import sys
import threading

import pytest

from benchmarks.harness.gpu_monitor import POLICIES, GpuMonitor
from tests.harness.fake_nvml import FakeNvml

MONITOR_FIELDS = {
    "nvmlDeviceGetPowerUsage": ["power_w"],
    "nvmlDeviceGetTemperature": ["temperature_c"],
    "nvmlDeviceGetClockInfo": ["sm_clock_mhz", "memory_clock_mhz"],
    "nvmlDeviceGetViolationStatus": [f"throttle_us.{reason}" for reason in POLICIES],
    "nvmlDeviceGetComputeRunningProcesses": ["foreign_processes"],
    "nvmlDeviceGetHandleByUUID": ["nvml"],
    "nvmlInit": ["nvml"],
    "nvmlShutdown": ["nvml_shutdown"],
}


def monitor_of(nvml: FakeNvml, *, owns_context: bool = True) -> GpuMonitor:
    return GpuMonitor("1234", interval_s=3600, nvml=nvml, owns_context=lambda: owns_context)


def test_everything_is_read_in_the_units_of_the_record():
    nvml = FakeNvml(pids=(os.getpid(),))
    with monitor_of(nvml) as monitor:
        nvml.sm_clock_mhz = 1200
        nvml.violation_ns[FakeNvml.NVML_PERF_POLICY_POWER] += 5_000_000
    summary = monitor.summary()

    assert summary.num_readings == 2
    assert (summary.sm_clock_mhz_min, summary.sm_clock_mhz_median, summary.sm_clock_mhz_max) == (1200, 1590, 1980)
    assert summary.memory_clock_mhz == 3201
    assert (summary.power_w_median, summary.power_w_max) == (350.5, 350.5)
    assert summary.temperature_c_max == 41
    assert summary.throttle_us["power"] == 5000
    assert summary.throttle_us["thermal"] == 0
    assert monitor.readings[-1].throttle_us == 5000
    assert summary.foreign_processes == []
    assert summary.missing == {}


@pytest.mark.parametrize("call", MONITOR_FIELDS)
def test_refused_call_leaves_its_fields_none_with_the_reason(call: str):
    with monitor_of(FakeNvml(refused=call, pids=(os.getpid(),))) as monitor:
        measured = True
    summary = monitor.summary()

    assert measured
    assert sorted(summary.missing) == sorted(MONITOR_FIELDS[call])
    assert all("Not Supported" in reason for reason in summary.missing.values())
    values = {
        "power_w": summary.power_w_median,
        "temperature_c": summary.temperature_c_max,
        "sm_clock_mhz": summary.sm_clock_mhz_median,
        "memory_clock_mhz": summary.memory_clock_mhz,
    }
    for field, value in values.items():
        assert (value is None) == (field in summary.missing or "nvml" in summary.missing)
    if call == "nvmlDeviceGetViolationStatus":
        assert summary.throttle_us == {}
        assert monitor.readings[0].throttle_us is None


def test_absent_nvml_is_a_reason_and_no_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with GpuMonitor() as monitor:
        pass

    assert monitor.summary().num_readings == 0
    assert "pynvml" in monitor.summary().missing["nvml"]


def test_part_of_a_gpu_is_found_by_the_uuid_that_torch_prints():
    asked = []

    class Cut(FakeNvml):
        def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802, NVML's name
            asked.append(uuid)
            if uuid.startswith("GPU-"):
                raise RuntimeError("not found")
            return super().nvmlDeviceGetHandleByUUID(uuid)

    with monitor_of(Cut()) as monitor:
        pass

    assert asked == ["GPU-1234", "MIG-1234"]
    assert "nvml" not in monitor.summary().missing


def test_device_is_found_by_uuid_and_nvml_given_back():
    nvml = FakeNvml()
    with monitor_of(nvml):
        pass

    assert nvml.asked_uuid == "GPU-1234"
    assert nvml.users == 0


def test_nvml_is_given_back_when_the_device_is_unknown():
    nvml = FakeNvml(refused="nvmlDeviceGetHandleByUUID")
    with monitor_of(nvml):
        pass

    assert nvml.users == 0


def test_thread_reads_by_itself_and_ends_with_the_block():
    nvml = FakeNvml()
    with GpuMonitor("1234", interval_s=0.001, nvml=nvml, owns_context=lambda: False) as monitor:
        assert nvml.polled_often.wait(timeout=10)

    assert len(monitor.readings) > 2
    assert all(
        earlier.at_s <= later.at_s for earlier, later in zip(monitor.readings, monitor.readings[1:], strict=False)
    )
    assert "gpu-monitor" not in [thread.name for thread in threading.enumerate()]


def test_thread_ends_when_the_measurement_fails():
    with pytest.raises(ZeroDivisionError), monitor_of(FakeNvml()):
        raise ZeroDivisionError

    assert "gpu-monitor" not in [thread.name for thread in threading.enumerate()]


def test_throttle_counters_are_read_at_once():
    nvml = FakeNvml()
    with monitor_of(nvml) as monitor:
        nvml.violation_ns[FakeNvml.NVML_PERF_POLICY_THERMAL] += 3_000_000
        grown = monitor.throttle_us()

    assert grown["thermal"] == 3000
    assert grown["power"] == 0
    assert monitor.throttle_us() == {}  # NVML is closed


def test_counter_that_nvml_stops_telling_is_left_out_and_not_frozen():
    nvml = FakeNvml()
    with monitor_of(nvml) as monitor:
        assert set(monitor.throttle_us()) == set(POLICIES)
        nvml.refused = "nvmlDeviceGetViolationStatus"
        assert monitor.throttle_us() == {}


def test_held_monitor_asks_nothing():
    nvml = FakeNvml()
    with GpuMonitor("1234", interval_s=0.0, nvml=nvml, owns_context=lambda: False) as monitor:
        assert nvml.polled_often.wait(timeout=10)
        with monitor.held():
            num_polls, num_readings = nvml.num_polls, len(monitor.readings)
            nvml.polled_often.clear()
            assert not nvml.polled_often.wait(timeout=0.02)
            assert (nvml.num_polls, len(monitor.readings)) == (num_polls, num_readings)
        assert nvml.polled_often.wait(timeout=10)


def test_other_compute_processes_are_named():
    with monitor_of(FakeNvml(pids=(os.getpid(), 77))) as monitor:
        pass

    assert monitor.summary().foreign_processes == [77]


def test_process_listed_before_we_use_the_gpu_is_foreign():
    with monitor_of(FakeNvml(pids=(77,)), owns_context=False) as monitor:
        pass

    assert monitor.summary().foreign_processes == [77]


def test_single_process_under_another_number_is_this_one_seen_from_outside_a_container():
    with monitor_of(FakeNvml(pids=(99_999_999,))) as monitor:
        pass

    assert monitor.summary().foreign_processes == []
    assert "another namespace" in monitor.summary().missing["foreign_processes.own"]


def test_two_processes_under_other_numbers_mean_that_one_is_foreign():
    with monitor_of(FakeNvml(pids=(99_999_998, 99_999_999))) as monitor:
        pass

    assert monitor.summary().foreign_processes == [99_999_998, 99_999_999]


def test_summaries_of_processes_that_share_a_record_are_joined():
    from benchmarks.harness.gpu_monitor import merge_summaries
    from benchmarks.harness.records import MonitorSummary

    first = MonitorSummary(num_readings=5, sm_clock_mhz_min=1200, power_w_max=500, throttle_us={"power": 7})
    last = MonitorSummary(
        num_readings=3,
        sm_clock_mhz_min=1900,
        power_w_max=300,
        throttle_us={"power": 1, "thermal": 2},
        power_w_median=250,
    )

    merged = merge_summaries([first, None, last])

    assert (merged.num_readings, merged.sm_clock_mhz_min, merged.power_w_max) == (8, 1200, 500)
    assert merged.throttle_us == {"power": 8, "thermal": 2}
    assert merged.power_w_median == 250
    assert merge_summaries([last]) == last
