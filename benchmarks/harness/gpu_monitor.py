"""What NVML sees of the card while it measures: a thread that reads clocks, power, heat and throttling."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from types import TracebackType
from typing import Any, Self

from msgspec import structs

from .nvml import NvmlDevice, ask, open_device
from .records import MonitorSummary

INTERVAL_S = 0.1
READINGS_PER_LOOK = 10  # the list of processes is asked for once a second: it is slower than the other questions

# Reasons by name of NVML's performance policies. Their numbers never changed, whereas those of the newer
# "clocks event reason" fields differ between releases of the header, so that a driver may answer another question.
POLICIES = {
    "power": "NVML_PERF_POLICY_POWER",
    "thermal": "NVML_PERF_POLICY_THERMAL",
    "sync_boost": "NVML_PERF_POLICY_SYNC_BOOST",
    "board_limit": "NVML_PERF_POLICY_BOARD_LIMIT",
    "reliability": "NVML_PERF_POLICY_RELIABILITY",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the card; None where NVML did not answer.

    Attributes:
        at_s: ``time.monotonic`` of the look.
        throttle_us: growth of all throttle counters together since the monitor began.
    """

    at_s: float
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle_us: int | None = None


class GpuMonitor:
    """Reads one GPU from ``__enter__`` to ``__exit__``; never raises for what NVML cannot say.

    Args:
        uuid: of the GPU, with or without NVML's prefix; None for the first.
        nvml: a stand-in for the ``pynvml`` module.
        owns_context: whether this process has work on the GPU by now, so that one listed process is ours.
    """

    def __init__(
        self,
        uuid: str | None = None,
        *,
        interval_s: float = INTERVAL_S,
        nvml: Any = None,
        clock: Callable[[], float] = time.monotonic,
        owns_context: Callable[[], bool] | None = None,
    ) -> None:
        self.readings: list[Reading] = []  # written by one thread only
        self.missing: dict[str, str] = {}
        self._uuid, self._nvml, self._interval_s, self._clock = uuid, nvml, interval_s, clock
        self._owns_context = owns_context or _cuda_is_initialised
        self._device: NvmlDevice | None = None
        self._first_ns: dict[str, int] = {}
        self._throttle_us: dict[str, int] = {}
        self._refused: set[str] = set()  # reasons that NVML did not tell when it was last asked
        self._foreign: set[int] = set()
        self._lock = threading.Lock()  # one of the thread and its owner asks at a time
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._device = ask(self.missing, "nvml", lambda: open_device(self._uuid, self._nvml))
        if self._device is not None:
            self.read_once()
            self._thread = threading.Thread(target=self._run, name="gpu-monitor", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._device is not None:
            self.read_once()
            with self._lock:
                ask(self.missing, "nvml_shutdown", self._device.close)
                self._device = None

    def throttle_us(self) -> dict[str, int]:
        """Growth of the throttle counters since the monitor began, by reason, read now.

        Empty outside the monitor's block and where NVML does not tell; costs a few milliseconds.
        """
        with self._lock:
            if self._device is None:
                return {}
            self._read_throttling(self._device)
            return {reason: us for reason, us in self._throttle_us.items() if reason not in self._refused}

    @contextmanager
    def held(self) -> Iterator[None]:
        """No reading until the end: a thread that asks NVML takes Python's lock from one whose calls are timed."""
        with self._lock:
            yield

    def read_once(self) -> None:
        """One reading now, added to ``readings``."""
        with self._lock:
            self._read()

    def _read(self) -> None:
        assert self._device is not None
        nvml, handle, missing = self._device.nvml, self._device.handle, self.missing
        at_s = self._clock()
        sm_clock = ask(missing, "sm_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        memory_clock = ask(
            missing, "memory_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)
        )
        power_mw = ask(missing, "power_w", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        temperature = ask(
            missing, "temperature_c", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        )
        self._read_throttling(self._device)
        if len(self.readings) % READINGS_PER_LOOK == 0:
            self._read_processes(self._device)
        self.readings.append(
            Reading(
                at_s=at_s,
                sm_clock_mhz=_float(sm_clock),
                memory_clock_mhz=_float(memory_clock),
                power_w=None if power_mw is None else power_mw / 1000,
                temperature_c=_float(temperature),
                throttle_us=sum(self._throttle_us.values()) if self._throttle_us else None,
            )
        )

    def summary(self) -> MonitorSummary:
        """All readings so far in one object; what was never answered is None, with the reason in ``missing``."""
        readings = list(self.readings)
        sm_clocks = _answered(reading.sm_clock_mhz for reading in readings)
        memory_clocks = _answered(reading.memory_clock_mhz for reading in readings)
        powers = _answered(reading.power_w for reading in readings)
        temperatures = _answered(reading.temperature_c for reading in readings)
        return MonitorSummary(
            num_readings=len(readings),
            sm_clock_mhz_min=min(sm_clocks, default=None),
            sm_clock_mhz_median=median(sm_clocks) if sm_clocks else None,
            sm_clock_mhz_max=max(sm_clocks, default=None),
            memory_clock_mhz=median(memory_clocks) if memory_clocks else None,
            power_w_median=median(powers) if powers else None,
            power_w_max=max(powers, default=None),
            temperature_c_max=max(temperatures, default=None),
            throttle_us=dict(self._throttle_us),
            foreign_processes=sorted(self._foreign),
            missing=dict(self.missing),
        )

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.read_once()

    def _read_throttling(self, device: NvmlDevice) -> None:
        for reason, policy in POLICIES.items():
            total_ns = ask(self.missing, f"throttle_us.{reason}", partial(_violation_ns, device, policy))
            if total_ns is None:
                self._refused.add(reason)
                continue
            self._refused.discard(reason)
            first_ns = self._first_ns.setdefault(reason, total_ns)
            self._throttle_us[reason] = (total_ns - first_ns) // 1000

    def _read_processes(self, device: NvmlDevice) -> None:
        listed = ask(
            self.missing,
            "foreign_processes",
            lambda: {int(process.pid) for process in device.nvml.nvmlDeviceGetComputeRunningProcesses(device.handle)},
        )
        if listed is None:
            return
        if os.getpid() in listed or not self._owns_context():
            self._foreign |= listed - {os.getpid()}
        elif listed:
            # In a container NVML may number processes as the host does: one of these is us, and none says which.
            self.missing["foreign_processes.own"] = (
                f"process ids are of another namespace: {len(listed)} compute processes, one of them this one"
            )
            self._foreign |= listed if len(listed) > 1 else set()


def merge_summaries(summaries: Sequence[MonitorSummary | None]) -> MonitorSummary:
    """Of processes that finished one record one after the other; medians are the last one's, the rest is joined."""
    seen = [summary for summary in summaries if summary is not None]
    last = seen[-1]
    throttle_us: dict[str, int] = {}
    for summary in seen:
        for reason, us in summary.throttle_us.items():
            throttle_us[reason] = throttle_us.get(reason, 0) + us
    return structs.replace(
        last,
        num_readings=sum(summary.num_readings for summary in seen),
        sm_clock_mhz_min=min(_answered(summary.sm_clock_mhz_min for summary in seen), default=None),
        sm_clock_mhz_max=max(_answered(summary.sm_clock_mhz_max for summary in seen), default=None),
        power_w_max=max(_answered(summary.power_w_max for summary in seen), default=None),
        temperature_c_max=max(_answered(summary.temperature_c_max for summary in seen), default=None),
        throttle_us=throttle_us,
        foreign_processes=sorted({process for summary in seen for process in summary.foreign_processes}),
    )


def _violation_ns(device: NvmlDevice, policy: str) -> int:
    """Cumulative time that this policy kept clocks down, in ns (NVML's unit)."""
    status = device.nvml.nvmlDeviceGetViolationStatus(device.handle, getattr(device.nvml, policy))
    return int(status.violationTime)


def _answered(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _cuda_is_initialised() -> bool:
    import torch

    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
