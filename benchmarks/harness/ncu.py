"""Nsight Compute from the outside: its command lines, the CSV it prints of a report, and how it says no.

Seen with ncu 2025.3 on an H200. Clocks stay as they are (``--clock-control none``); caches are flushed
before every pass, ncu's own default, so that each launch is cold.
"""

import csv
import math
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

USUAL_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/ncu")

COUNTED = {
    "dram_read_bytes": "dram__bytes_read.sum",
    "l2_write_sectors": "lts__t_sectors_srcunit_tex_op_write.sum",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "tensor_pipe_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
}
"""Fields of a record's counters, and ncu's names of them.

Writes are those that the SMs send. ``lts__t_sectors_op_write`` also counts what the L2's two partitions pass to each
other: on an H200 1.5 times what any kernel writes (docs/measuring.md, "Counters").
"""

PROFILED = {
    **COUNTED,
    "duration_ns": "gpu__time_duration.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "dram_pct": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "registers": "launch__registers_per_thread",
    "shared_bytes": "launch__shared_mem_per_block",
    "local_bytes": "smsp__sass_inst_executed_op_local.sum",
}
"""What ``make profile`` prints: the counters, and what else explains a kernel's time."""

_UNKNOWN = re.compile(r"[Ff]ailed to find metric\s+(?:regex:\^?)?['\"]?([\w.]+)")
_REFUSED = re.compile(r"==ERROR==\s*(.+)")
_NOTHING = re.compile(r"==WARNING==\s*(No kernels were profiled.*)")


class NcuOutputError(ValueError):
    """What ncu printed is not the table that was asked for."""


@dataclass(frozen=True, slots=True)
class CountedLaunch:
    """One kernel launch; a metric that ncu could not take is absent from ``values``."""

    kernel: str
    values: Mapping[str, float]  # by the names that were asked for


def find_ncu() -> str | None:
    """Where ncu is: on PATH, or where CUDA puts it."""
    return shutil.which("ncu") or next((place for place in USUAL_PLACES if Path(place).is_file()), None)


def profile_command(ncu: str, metrics: Iterable[str], report: Path, program: Sequence[str]) -> list[str]:
    """Run ``program`` and count between its cudaProfilerStart and cudaProfilerStop, into ``report`` (.ncu-rep)."""
    options = ["--clock-control", "none", "--profile-from-start", "off", "--target-processes", "all"]
    return [ncu, *options, "--metrics", ",".join(metrics), "--force-overwrite", "--export", str(report), *program]


def import_command(ncu: str, report: Path) -> list[str]:
    """Print a report as CSV: one row per launch, one column per metric, in base units."""
    return [ncu, "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]


def parse_csv(text: str, metrics: Mapping[str, str]) -> list[CountedLaunch]:
    """Launches in order; ``metrics`` gives the names to use for ncu's.

    The table begins at the line with ``"Kernel Name"``; below it is a line of units, then one line per launch. Lines
    that ncu adds (``==PROF==``) and what the program printed come before it.

    Raises:
        NcuOutputError: no table, or a row of another length.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("==")]
    start = next((at for at, line in enumerate(lines) if "Kernel Name" in line and "," in line), None)
    if start is None:
        raise NcuOutputError("no table: expected a line with the column 'Kernel Name'")
    header, *rows = list(csv.reader(lines[start:]))
    name_at = header.index("Kernel Name")
    found = []
    for row in rows:
        if len(row) != len(header):
            raise NcuOutputError(f"a row of {len(row)} columns below a header of {len(header)}: {row[:3]}")
        if not row[name_at]:  # the line of units
            continue
        by_name = dict(zip(header, row, strict=True))
        values = {ours: _number(by_name.get(theirs, "")) for ours, theirs in metrics.items()}
        found.append(CountedLaunch(row[name_at], {name: value for name, value in values.items() if value is not None}))
    return found


def unknown_metrics(output: str) -> list[str]:
    """Metrics that this ncu or this card does not have, as it says."""
    return _UNKNOWN.findall(output)


def refusal(output: str) -> str | None:
    """Why ncu counted nothing, in its own words; None when it does not say."""
    for pattern in (_REFUSED, _NOTHING):
        if match := pattern.search(output):
            return match[1].strip()[:300]
    return None


def _number(text: str) -> float | None:
    """A number with or without thousands separators; None for 'n/a' and the like."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
