"""Made-up records, and a night that is measured by prepared processes."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq
from rich.console import Console

from benchmarks.harness import record_files, records
from benchmarks.harness.ids import new_id, utc_now
from benchmarks.harness.records import Measurement, Record
from benchmarks.harness.samples import SCHEMA
from benchmarks.harness.store import Store

if TYPE_CHECKING:
    from ci.nightly import Result
    from ci.options import Options

CASE = "kimi_k3_tp8_b32_t8_a3.84_fp32"
ENVIRONMENT = records.Environment(gpu_model="nvidia-h200", python="3.12.1", torch="2.11.0", harness="1", driver="580.1")
CONTROLS = [
    records.Control(name="copy", when=when, read_bytes=1 << 29, write_bytes=1 << 29, median_us=250.0, bytes_per_s=4e12)
    for when in ("start", "end")
]

QUIET = (100.0, 100.2, 99.8, 100.1, 99.9)


def timed(value: float | None, **changes: object) -> Measurement:
    """The verify time of one process."""
    facts = {"metric": "device_us", "op": "verify", "provider": "recoverssm", "case": CASE, "contract": "graph-cold"}
    return Measurement(**{**facts, "unit": "us", "value": value, "n_samples": 20, **changes})


def exact(value: float, **changes: object) -> Measurement:
    """The bytes of the cache."""
    facts = {"metric": "cache_bytes", "op": "state", "provider": "recoverssm", "case": CASE, "contract": "exact"}
    return Measurement(**{**facts, "unit": "bytes", "value": value, **changes})


def make_case(name: str = CASE, num_requests: int = 32) -> records.Case:
    return records.Case(
        name=name,
        stands_for="a test",
        num_requests=num_requests,
        spec_query_len=8,
        num_heads=12,
        num_layers=69,
        mean_accepted=3.84,
        state_dtype="fp32",
    )


def make_record(measurements: Iterable[Measurement], **changes: object) -> Record:
    """A record with one case, a copy control at both ends and one passed check."""
    check = records.Check(
        case=CASE, op="verify", provider="recoverssm", metric="out_error", value=1e-4, limit=1e-2, passed=True
    )
    facts: dict[str, object] = {
        "id": new_id("0123456789"),
        "created_utc": utc_now(),
        "duration_s": 20.0,
        "case_set": "smoke",
        "seed": 1,
        "command": ["test"],
        "environment": ENVIRONMENT,
        "silicon": records.Silicon(),
        "subject": records.Subject(commit="0123456789", source_hash="abc", version="0.1.0"),
        "monitor": records.MonitorSummary(),
        "cases": [make_case()],
        "controls": CONTROLS,
        "checks": [check],
        "measurements": list(measurements),
    }
    return Record(**{**facts, **changes})


def make_records(values: Sequence[float | None] = QUIET, **changes: object) -> list[Record]:
    """One record per value: a verify time and the exact bytes."""
    return [make_record([timed(value), exact(1000.0)], **changes) for value in values]


def drifting(end_us: float | None, name: str = "copy") -> list[records.Control]:
    """A control that took 250 us at the start of its process, and this long at its end."""
    start = records.Control(name=name, read_bytes=1, write_bytes=1, median_us=250.0, bytes_per_s=1.0)
    ends = [] if end_us is None else [msgspec.structs.replace(start, when="end", median_us=end_us)]
    return [start, *ends]


@dataclass
class FakeNight:
    """Nights in a folder of their own, whose measuring processes are prepared: ``prepare`` them, then ``run``."""

    tmp: Path
    store: Path = field(init=False)
    folder: Path = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.store, self.folder = self.tmp / "store", self.tmp / "processes"
        self.folder.mkdir(exist_ok=True)

    def prepare(self, found: Iterable[Record | bytes | None], do: dict[int, str] | None = None) -> None:
        """What the next processes leave (a record, a broken file, nothing), and by index what else they do."""
        base = len(self.started)
        for index, record in enumerate(found):
            path = self.folder / f"{base + index}.json"
            if record is not None:
                path.write_bytes(record_files.encode(record) if isinstance(record, Record) else record)
                pq.write_table(SCHEMA.empty_table(), path.with_suffix(".parquet"))
            if do and index in do:
                path.with_suffix(".do").write_text(do[index])
            else:
                path.with_suffix(".do").unlink(missing_ok=True)

    @property
    def started(self) -> list[str]:
        path = self.folder / "started.txt"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def options(self) -> "Options":
        from ci.options import Options  # half a second, which the processes that only make up records do not spend

        fake = Path(__file__).with_name("fake_run.py")
        return Options(
            case_set="smoke",
            pattern="*",
            selected=[CASE],
            store=str(self.store),
            out=self.tmp / "out",
            processes=5,
            seed=1,
            page=False,
            command=(sys.executable, "-S", str(fake), str(self.folder)),
            controls_command=(sys.executable, "-S", "-c", "raise SystemExit(5)"),
            fork_server=(sys.executable, "-S", str(fake.with_name("fake_fork_server.py")), str(fake), str(self.folder)),
        )

    def run(self, **changes: object) -> "Result":
        from ci.nightly import run_nightly

        with (self.tmp / "progress.txt").open("w") as file:
            return run_nightly(replace(self.options, **changes), Console(file=file, width=200))

    def night(
        self, found: Iterable[Record | bytes | None], do: dict[int, str] | None = None, **changes: object
    ) -> "Result":
        self.prepare(found, do)
        return self.run(**changes)

    def open(self) -> Store:
        return Store(self.store)

    def stored(self) -> list[Record]:
        return self.open().records()
