"""A store as large as the site must stand, made in a minute; and what a build of it takes. No number was measured.

    python -m tests.reports.synthetic --out /tmp/large [--nights 400]

writes 510 series of 34 cases in five processes a night on two GPU models, builds the site, adds a night, builds again,
and prints seconds, peak memory and sizes as JSON.
"""

import argparse
import hashlib
import io
import json
import math
import random
import resource
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from benchmarks.harness.record_files import encode, samples_path
from benchmarks.harness.records import Measurement, Night, Record
from benchmarks.harness.samples import SampleSeries, samples_table
from tests.reports.golden import NightPlan, golden_cases, golden_record, golden_verdicts

NUM_CASES = 34  # of fifteen series each
MODELS = ("nvidia-h200", "nvidia-h100")
FIRST_NIGHT = datetime(2025, 1, 1, 2, tzinfo=UTC)
STEP_AT, DRIVER_AT = 0.4, 0.7  # share of the nights after which verify is 3 % slower, and the driver another


class Generator:
    """Writes nights of one GPU model without fsync: what a store does one by one would take most of the time."""

    def __init__(self, folder: Path, model: str, num_nights: int, num_cases: int = NUM_CASES) -> None:
        self.folder, self.model, self.num_nights = folder, model, num_nights
        self.tail = hashlib.sha256(model.encode()).hexdigest()[:5]  # ids of two models never meet
        self.cases = golden_cases()[:num_cases]
        plan = NightPlan(1, gpu_model=model)
        self.template = golden_record(plan, 0, self.cases)
        self.verdicts = golden_verdicts(plan, [self.template])
        series = [
            SampleSeries("device_us", "verify", "recoverssm", case.name, "graph-cold", "us", (1.0, 1.1), (1.0, 2.0))
            for case in self.cases
        ]
        buffer = io.BytesIO()
        pq.write_table(samples_table(series), buffer, compression="zstd", write_page_checksum=True)
        self.samples = buffer.getvalue()
        for kind in ("records", "nights"):
            (folder / kind / model).mkdir(parents=True, exist_ok=True)

    def night(self, index: int, processes: int = 5) -> None:
        noise = random.Random(f"{self.model} {index}")
        at = FIRST_NIGHT + timedelta(days=index)
        ids = [f"{at:%Y%m%dT%H%M%SZ}-{index:08x}-{self.tail}{process:x}" for process in range(processes)]
        for process, id_ in enumerate(ids):
            record = self._record(index, at + timedelta(minutes=process), id_, noise)
            path = self.folder / "records" / self.model / f"{id_}.json"
            samples_path(path).write_bytes(self.samples)
            path.write_bytes(encode(record))
        done = at + timedelta(minutes=30)
        night = Night(
            id=f"{done:%Y%m%dT%H%M%SZ}-{index:08x}-{self.tail}f",
            created_utc=f"{done:%Y-%m-%dT%H:%M:%SZ}",
            case_set="nightly",
            gpu_model=self.model,
            records=ids,
            verdicts=self.verdicts,
            accepted=True,
            exit_code=0,
        )
        (self.folder / "nights" / self.model / f"{night.id}.json").write_bytes(encode(night))

    def _record(self, index: int, at: datetime, id_: str, noise: random.Random) -> Record:
        share = index / self.num_nights
        return msgspec.structs.replace(
            self.template,
            id=id_,
            created_utc=f"{at:%Y-%m-%dT%H:%M:%SZ}",
            environment=msgspec.structs.replace(
                self.template.environment, driver="590.00-synthetic" if share >= DRIVER_AT else "580.00-synthetic"
            ),
            silicon=msgspec.structs.replace(self.template.silicon, gpu_uuid=f"GPU-synthetic-{index % 3}"),
            subject=msgspec.structs.replace(self.template.subject, commit=f"{index:040x}"),
            measurements=[self._measurement(item, share, noise) for item in self.template.measurements],
        )

    def _measurement(self, item: Measurement, share: float, noise: random.Random) -> Measurement:
        if item.contract == "exact" or item.value is None:
            return item
        slower = 1.03 if item.op == "verify" and item.provider == "recoverssm" and share >= STEP_AT else 1.0
        value = item.value * slower * math.exp(noise.gauss(0, 0.004))
        return msgspec.structs.replace(
            item,
            value=value,
            low=value * 0.999,
            high=value * 1.001,
            n_samples=40,
            launches_per_sample=20,
            sm_mhz=1980.0,
            reason="median within 0.1 %",
        )


def write_large(folder: Path, nights: int, models: tuple[str, ...] = MODELS, num_cases: int = NUM_CASES) -> None:
    for model in models:
        generator = Generator(folder, model, nights, num_cases)
        for index in range(nights):
            generator.night(index)


def timed_build(store: Path, site: Path) -> dict[str, float]:
    """Seconds of one build in a process of its own, by the clock and of a core, and the largest memory of any so far.

    On a machine with other work a core's seconds say more than the clock's: a build runs on one core.
    """
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "reports", "build", "--store", store, "--out", site], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    core = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seconds": round(time.monotonic() - started, 1),
        "core_seconds": round(core, 1),
        "peak_mib": round(after.ru_maxrss / 1024),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="folder of store and site; emptied")
    arguments.add_argument("--nights", type=int, default=400)
    chosen = arguments.parse_args()
    shutil.rmtree(chosen.out, ignore_errors=True)
    store, site = chosen.out / "store", chosen.out / "site"
    write_large(store, chosen.nights)
    found = {"first": timed_build(store, site)}
    Generator(store, MODELS[0], chosen.nights).night(chosen.nights)
    found["one_more_night"] = timed_build(store, site)
    data = [path.stat().st_size for path in (site / "data").rglob("*.js")]
    found["sizes"] = {"index_bytes": (site / "index.html").stat().st_size, "largest_data_bytes": max(data)}
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
