"""A stand-in for pynvml: a card that answers everything, or refuses the calls it is told to."""

# ruff: noqa: N802  the names are NVML's

import threading
from types import SimpleNamespace


class NVMLError(Exception):
    pass


class FakeNvml:
    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_PERF_POLICY_POWER = 0
    NVML_PERF_POLICY_THERMAL = 1
    NVML_PERF_POLICY_SYNC_BOOST = 2
    NVML_PERF_POLICY_BOARD_LIMIT = 3
    NVML_PERF_POLICY_RELIABILITY = 5

    CALLS = (
        "nvmlInit",
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetHandleByUUID",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetViolationStatus",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlSystemGetDriverVersion",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetVbiosVersion",
        "nvmlShutdown",
    )

    def __init__(self, refused: str | None = None, pids: tuple[int, ...] = ()) -> None:
        self.refused, self.pids = refused, pids
        self.sm_clock_mhz = 1980
        self.violation_ns = dict.fromkeys(range(6), 1000000)
        self.users = 0
        self.asked_uuid: str | None = None
        self.num_polls = 0
        self.polled_often = threading.Event()

    def __getattribute__(self, name: str):
        if name in FakeNvml.CALLS and name == object.__getattribute__(self, "refused"):

            def refuse(*_: object) -> None:
                raise NVMLError("Not Supported")

            return refuse
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        self.users += 1

    def nvmlShutdown(self) -> None:
        self.users -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"card {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked_uuid = uuid
        return "card"

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        self.num_polls += 1
        if self.num_polls > 10:
            self.polled_often.set()
        return self.sm_clock_mhz if kind == self.NVML_CLOCK_SM else 3201

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 350_500

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 41

    def nvmlDeviceGetViolationStatus(self, handle: str, policy: int) -> SimpleNamespace:
        return SimpleNamespace(referenceTime=0, violationTime=self.violation_ns[policy])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self.pids]

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        return [0, 0]

    def nvmlDeviceGetEccMode(self, handle: str) -> list[int]:
        return [1, 1]

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return 700_000

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.159.03"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return "GPU-1234"

    def nvmlDeviceGetVbiosVersion(self, handle: str) -> str:
        return "96.00.A5"
