"""Made-up nights in a store: records with samples that belong to them, verdicts with the medians of the processes."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pyarrow as pa
import pytest
from msgspec.structs import replace

from benchmarks.harness.objects import Objects
from benchmarks.harness.records import Measurement, Night, Record, Subject, Verdict
from benchmarks.harness.samples import SampleSeries, samples_table
from benchmarks.harness.store import Store
from tests.ci.nights import CASE, ENVIRONMENT, exact, make_case, make_record, timed

LEVELS = (100.0, 101.0, 99.0)  # of verify in each process, us
FULL_STATE = 2.0  # verify of full state over ours
SPREAD = (-0.5, 0.0, 0.5)  # of the samples of one process


@dataclass(frozen=True)
class MadeNight:
    night: Night
    records: list[Record]


def samples_of(record: Record) -> pa.Table:
    """Samples about each timed value, with the value as their median."""
    series = [
        SampleSeries(*m.key, m.unit, tuple(m.value + step for step in SPREAD), (1.0, 2.0, 3.0))
        for m in record.measurements
        if m.n_samples and m.value is not None
    ]
    return samples_table(series)


def make_measurements(level: float, case: str = CASE) -> list[Measurement]:
    return [
        timed(level, n_samples=3, case=case),
        timed(level * FULL_STATE, n_samples=3, case=case, provider="full_state"),
        timed(level * 10, n_samples=3, case=case, op="commit"),
        exact(75.0, metric="memory_saved_pct", unit="%", case=case),
    ]


def make_night(
    day: int, *, levels: Sequence[float] = LEVELS, cases: Sequence[str] = (CASE,), month: int = 11, **changes: object
) -> MadeNight:
    """A night of 2026 with one process per level. ``changes`` may hold fields of the night, and these of its records:
    environment, source_hash, commit."""
    at = f"2026{month:02d}{day:02d}T0{{}}0000Z"
    environment = changes.pop("environment", ENVIRONMENT)
    commit, source_hash = changes.pop("commit", f"{day:02d}{'0' * 38}"), str(changes.pop("source_hash", "abc"))
    short = str(commit or "nocommit")[:8].strip("-") or "none"
    records = [
        make_record(
            [item for case in cases for item in make_measurements(level, case)],
            id=f"{at.format(index)}-{short}-00000{index}",
            created_utc=f"2026-{month:02d}-{day:02d}T0{index}:00:00Z",
            cases=[make_case(case) for case in cases],
            checks=[],
            environment=environment,
            subject=Subject(commit=commit, source_hash=source_hash, version="0.1.0"),
        )
        for index, level in enumerate(levels)
    ]
    facts: dict[str, object] = {
        "id": f"{at.format(9)}-{short}-000009",
        "created_utc": f"2026-{month:02d}-{day:02d}T09:00:00Z",
        "case_set": "smoke",
        "gpu_model": records[0].environment.gpu_model,
        "records": [record.id for record in records],
        "verdicts": verdicts_of(records),
        "accepted": True,
        "exit_code": 0,
    }
    return MadeNight(Night(**{**facts, **changes}), records)


def leave_out(made: MadeNight, index: int = 0, **changes: object) -> MadeNight:
    """The night with one of its processes left out of the verdicts."""
    counted = [record for at, record in enumerate(made.records) if at != index]
    facts = {"left_out": [made.records[index].id], "verdicts": verdicts_of(counted), **changes}
    return MadeNight(replace(made.night, records=[record.id for record in counted], **facts), made.records)


def verdicts_of(records: Sequence[Record]) -> list[Verdict]:
    result = []
    for index, item in enumerate(records[0].measurements):
        values = [record.measurements[index].value for record in records]
        names = {name: getattr(item, name) for name in ("metric", "op", "provider", "case", "contract", "unit")}
        value = median(value for value in values if value is not None)
        facts = {"low": value - 1, "high": value + 1, "process_sd_pct": 1.0, "n_processes": len(records)}
        result.append(Verdict(**names, **facts, value=value, verdict="new", reason="first", gated=True))
    return result


def store_nights(folder: Path, *nights: MadeNight) -> Store:
    """The store in ``folder`` with these nights added."""
    store = Store(folder)
    for made in nights:
        for record in made.records:
            store.add_record(record, samples_of(record))
        store.add_night(made.night)
    return store


def put_at_url(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    """The URL of a copy of ``store``, of which nothing is kept here; and a list to which each object read is added."""
    url = f"file://{tmp_path}/there"
    shutil.copytree(store.folder, tmp_path / "there", ignore=shutil.ignore_patterns(".lock"))
    monkeypatch.setenv("RECOVERSSM_CACHE_DIR", str(tmp_path / "here"))
    asked: list[str] = []
    get = Objects.get

    def noted(self: Objects, names: Iterable[str]) -> dict[str, bytes]:
        names = list(names)
        asked.extend(names)
        return get(self, names)

    monkeypatch.setattr(Objects, "get", noted)
    return url, asked


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but the lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
