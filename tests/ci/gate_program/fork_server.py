"""Stands in for ``benchmarks.fork_server``: "measures" the library beside it, which says how long its ops take.

Noise depends on the process alone, so that the same gate measured twice gives the same records.
"""

import json
import math
import random
import sys
from pathlib import Path

import recoverssm
from recoverssm import TIMES_US

from .harness import record_files, records
from .harness.environment import source_hash


def main(token: str) -> None:
    say(f"{token}ready")
    for line in sys.stdin:
        say(f"{token}started {2**22 + 1}")  # no process has this number: nothing is there to be killed
        arguments = json.loads(line)
        named = dict(zip(arguments, [*arguments[1:], ""], strict=True))
        say(f"{token}ended {measure(Path(named['--out']), named['--case'].split(','), int(named['--seed']))}")


def say(news: str) -> None:
    sys.stdout.write(news + "\n")
    sys.stdout.flush()


def measure(out: Path, cases: list[str], seed: int) -> int:
    if out.stem in recoverssm.LEAVES_NO_RECORD:
        say("a process died")
        return 1
    controls = [control("start", 250.0), control("end", 250.0 * (1.1 if out.stem in recoverssm.DRIFTS else 1.0))]
    record = records.Record(
        id=out.stem,
        created_utc="2026-11-29T12:00:00Z",
        duration_s=1.0,
        case_set="pr",
        seed=seed,
        command=["test"],
        environment=records.Environment(
            gpu_model="nvidia-h200",
            compute_capability="9.0",
            driver=recoverssm.DRIVER,
            python="3.11",
            torch="2.11",
            harness="3",
        ),
        silicon=records.Silicon(gpu_uuid=recoverssm.GPU),
        subject=records.Subject(source_hash=source_hash(Path(recoverssm.__file__).parent), version="0"),
        monitor=records.MonitorSummary(),
        cases=[describe(case) for case in cases],
        controls=controls,
        checks=[check(case) for case in cases],
        measurements=[m for case in cases for m in (exact(case), *(timed(out, case, op) for op in TIMES_US))],
        attempts=[
            records.Attempt(created_utc="2026-11-29T12:00:00Z", ended="killed by SIGSEGV", num_parts=0, lost=case)
            for case in recoverssm.CRASHES
        ],
    )
    out.write_bytes(record_files.encode(record))
    return 0


def control(when: records.When, median_us: float) -> records.Control:
    return records.Control(name="copy", when=when, read_bytes=1, write_bytes=1, median_us=median_us, bytes_per_s=1.0)


def describe(case: str) -> records.Case:
    return records.Case(
        name=case,
        stands_for="nobody",
        num_requests=32,
        spec_query_len=8,
        num_heads=12,
        num_layers=69,
        mean_accepted=3.84,
        state_dtype="fp32",
    )


def check(case: str) -> records.Check:
    value = 1.0 if case in recoverssm.WRONG else 0.0
    return records.Check(
        case=case,
        op="verify",
        provider="recoverssm",
        metric="out_error",
        value=value,
        limit=0.5,
        passed=value == 0,
    )


def exact(case: str) -> records.Measurement:
    return records.Measurement(
        metric="cache_bytes",
        op="state",
        provider="recoverssm",
        case=case,
        contract="exact",
        unit="bytes",
        value=recoverssm.CACHE_BYTES,
    )


def timed(out: Path, case: str, op: str) -> records.Measurement:
    base_us, names = TIMES_US[op], {"metric": "device_us", "op": op, "provider": "recoverssm", "case": case}
    failed = case in recoverssm.CRASHES or case in recoverssm.WRONG
    chance = random.Random(f"{out.stem}/{case}/{op}")
    noise = chance.gauss(0.0, recoverssm.NOISE) + (0.12 if chance.random() < recoverssm.SLOW_MODE else 0.0)
    return records.Measurement(
        **names,
        contract="graph-cold",
        unit="us",
        status="failed" if failed else "ok",
        reason="crashed" if failed else "precise",
        value=None if failed or base_us is None else base_us * math.exp(noise),
    )


if __name__ == "__main__":
    main(sys.argv[1])
