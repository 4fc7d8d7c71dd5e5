"""Run details of one night: environment, subject, and each process with its monitor and controls."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from benchmarks.harness.records import Environment, Head, MonitorSummary
from reports import text

ENVIRONMENT_LABELS = {
    "gpu_model": "GPU model",
    "gpu_memory_bytes": "GPU memory",
    "compute_capability": "compute capability",
    "num_sms": "SMs",
    "l2_bytes": "L2 cache",
    "mig": "MIG",
    "ecc": "ECC",
    "power_limit_w": "power limit",
    "cuda": "CUDA",
    "python": "Python",
    "torch": "torch",
    "triton": "Triton",
    "cpu_model": "CPU",
    "os_kernel": "OS kernel",
}
PROCESS_HEADINGS = (
    "process",
    "started",
    "took",
    "card",
    "VBIOS",
    "host",
    "SM clock min / median / max",
    "memory clock",
    "power median / max",
    "temperature max",
    "throttled",
    "other processes",
    "copy",
    "read",
    "read 4 : write 1",
)


@dataclass(frozen=True, slots=True)
class Link:
    label: str
    href: str


@dataclass(frozen=True, slots=True)
class ProcessRow:
    cells: tuple[str, ...]
    links: tuple[Link, ...]


def environment_items(environment: Environment) -> list[tuple[str, str]]:
    """Label and value of each fact; an absent one says why."""
    values = msgspec.structs.asdict(environment)
    missing: dict[str, str] = values.pop("missing")
    return [(ENVIRONMENT_LABELS.get(name, name), _fact(name, value, missing)) for name, value in values.items()]


def _fact(name: str, value: Any, missing: dict[str, str]) -> str:
    if value is None:
        return f"unknown: {missing[name]}" if name in missing else "unknown"
    if name.endswith("_bytes"):
        return text.size(value)
    if name.endswith("_w"):
        return f"{text.number(value, 0)} W"
    return str(value)


def subject_items(records: Sequence[Head]) -> list[tuple[str, str]]:
    """What was measured. Processes of one night measure one subject; when they do not, all values are listed."""
    subjects = [record.subject for record in records]
    rows = {
        "commit": [text.short_commit(item.commit, item.dirty) for item in subjects],
        "committed": [text.utc(item.commit_utc) for item in subjects],
        "source hash": [item.source_hash[:16] for item in subjects],
        "version": [item.version for item in subjects],
    }
    return [(label, ", ".join(dict.fromkeys(values))) for label, values in rows.items()]


def process_row(record: Head, links: Sequence[Link]) -> ProcessRow:
    """One measuring process. Card and host are hashed."""
    monitor = record.monitor
    rates = {
        control.name: f"{text.number(control.bytes_per_s / 1e12, 2)} TB/s"
        for control in record.controls
        if control.when == "start"
    }
    cells = (
        record.id,
        text.utc(record.created_utc),
        f"{text.number(record.duration_s, 0)} s",
        text.short_hash(record.silicon.gpu_uuid),
        record.silicon.vbios or text.MISSING,
        text.short_hash(record.silicon.host),
        _clock(monitor),
        _reading(monitor, "memory_clock_mhz", "MHz"),
        f"{text.number(monitor.power_w_median, 0)} / {_reading(monitor, 'power_w_max', 'W')}",
        _reading(monitor, "temperature_c_max", "°C"),
        _throttled(monitor),
        str(len(monitor.foreign_processes)),
        *(rates.get(name, text.MISSING) for name in ("copy", "read", "read4_write1")),
    )
    return ProcessRow(cells, tuple(links))


def _clock(monitor: MonitorSummary) -> str:
    low, middle = text.number(monitor.sm_clock_mhz_min, 0), text.number(monitor.sm_clock_mhz_median, 0)
    return f"{low} / {middle} / {_reading(monitor, 'sm_clock_mhz_max', 'MHz')}"


def _reading(monitor: MonitorSummary, name: str, unit: str) -> str:
    value = getattr(monitor, name)
    return f"{text.number(value, 0)} {unit}" if value is not None else monitor.missing.get(name, text.MISSING)


def _throttled(monitor: MonitorSummary) -> str:
    times = [f"{name} {text.number(spent / 1000, 1)} ms" for name, spent in monitor.throttle_us.items() if spent]
    if times:
        return ", ".join(times)
    return monitor.missing.get("throttle_us", "no" if monitor.num_readings else text.MISSING)
