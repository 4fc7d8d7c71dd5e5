"""From a report to records, one for each architecture: what was compiled stands in the store as what was measured does.

Its GPU model is the architecture, for no card is involved; Python and torch do not cut its series, for they decide
nothing of what is compiled. What does is the compiler, and two releases of it make two series.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

import recoverssm

from ..cases import BenchCase
from ..harness import HARNESS_VERSION
from ..harness.environment import collect_silicon, collect_subject
from ..harness.ids import new_id, utc_now
from ..harness.records import Environment, Measurement, MonitorSummary, Record
from ..harness.samples import samples_table
from .planning import arch_number
from .series import LAUNCHES, METRICS, Compiled, Key, compiled_ops

ANY = "any"
_INDIFFERENT = "does not decide what is compiled"
_NOT_RUN = "compiled for it, not run on it"
_UNKNOWN = ("gpu_memory_bytes", "num_sms", "l2_bytes", "mig", "ecc", "power_limit_w", "driver", "cuda")


@dataclass(frozen=True, slots=True)
class Run:
    """What the compiling process was asked to do, and how long it took."""

    case_set: str
    cases: Sequence[BenchCase]
    command: Sequence[str]
    commit: str | None
    duration_s: float


def records_of(report: Mapping[str, Any], run: Run) -> list[tuple[Record, pa.Table]]:
    """A record and its samples, of which there are none, for each architecture that the compiler knows."""
    subject = collect_subject(Path(recoverssm.__file__).parent, commit=run.commit)
    compiled = compiled_ops(report)
    return [
        (
            Record(
                id=new_id(subject.commit),
                created_utc=utc_now(),
                duration_s=round(run.duration_s, 3),
                case_set=run.case_set,
                seed=0,
                command=list(run.command),
                environment=environment_of(arch, report["compiler"]),
                silicon=msgspec.structs.replace(collect_silicon(), gpu_uuid=None),
                subject=msgspec.structs.replace(subject, binaries=_binaries(report, arch)),
                monitor=MonitorSummary(missing={"nvml": _NOT_RUN}),
                cases=[case.to_record() for case in run.cases],
                controls=[],
                checks=[],
                measurements=[
                    one for key, op in compiled.items() if key[0] == arch for one in measurements_of(key, op)
                ],
            ),
            samples_table([], MonitorSummary()),
        )
        for arch in report["num_launches"]
    ]


def environment_of(arch: str, compiler: Mapping[str, Any]) -> Environment:
    """What cuts a series: the architecture, Triton and its ptxas."""
    number = arch_number(arch)
    return Environment(
        gpu_model=arch,
        compute_capability=f"{number // 10}.{number % 10}",
        python=ANY,
        torch=ANY,
        triton=compiler["triton"],
        ptxas=compiler["ptxas"][arch],
        harness=HARNESS_VERSION,
        missing=dict.fromkeys(_UNKNOWN, _NOT_RUN)
        | dict.fromkeys(("python", "torch", "cpu_model", "os_kernel"), _INDIFFERENT),
    )


def measurements_of(key: Key, op: Compiled) -> Iterator[Measurement]:
    """The launches of an op, and where these are one, the figures of its kernel; ``reason`` is where they come from."""
    _, series, case = key
    provider, name = series.split("/")

    def measurement(metric: str, unit: str, **facts: Any) -> Measurement:
        return Measurement(metric=metric, op=name, provider=provider, case=case, contract="static", unit=unit, **facts)

    yield measurement(LAUNCHES, "launches", value=op.launches)
    for metric, about in METRICS.items() if op.kernels else ():
        value = op.value(metric)
        if value is not None:
            yield measurement(metric, about.unit, value=value, reason=_place(metric, op))
        elif op.failure:
            yield measurement(metric, about.unit, status="failed", reason=f"does not compile: {op.failure}")
        else:
            yield measurement(metric, about.unit, status="skipped", reason="a tool that Triton carries is missing")


def _place(metric: str, op: Compiled) -> str:
    """The line that most of it comes from; where less is worse the kernel, for what is lost has no line."""
    places = op.places(metric) if METRICS[metric].worst is max else []
    return f"{places[0]['at']}: {places[0]['text']}" if places else op.source


def _binaries(report: Mapping[str, Any], arch: str) -> dict[str, str]:
    return {
        f"{entry['kernel']} {entry['id']}": entry["figures"]["binary_hash"]
        for entry in report["kernels"]
        if entry["arch"] == arch and entry["figures"]
    }
