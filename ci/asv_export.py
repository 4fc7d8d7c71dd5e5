"""Records as asv's own result files (version 2), so that `asv publish`, `show` and `compare` read our nights.

One file per commit and environment. One of asv's samples is the median of one of our *processes*: the process is the
unit of statistics, so asv's intervals and its test in `compare` count what may be counted. Only numbers of which lower
is better go out, because asv knows no other: bytes used, not bytes saved.
"""

import hashlib
import itertools
import json
import math
import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.record_files import read_record
from benchmarks.harness.records import Case, Environment, Measurement, Night, Record
from benchmarks.harness.store import Store

from .asv_machine import API_VERSION as MACHINE_VERSION
from .exits import BrokenEnvironmentError, Exit, MissingDataError

RESULTS_VERSION, BENCHMARKS_VERSION = 2, 2  # of asv's files
EXPORT_VERSION = "1"  # raised when a number here comes to mean something else; asv then hides older ones
PARAM_NAMES = ("B", "T", "dtype", "acceptance")
RECORDS_OF_A_NIGHT = 10  # and more where several runs or GPUs made it, which are looked for so far back
COMMIT_HASH = re.compile(r"[0-9A-Fa-f]{7,64}")
SIZES = re.compile(r"_b\d+_t\d+_a[\d.]+_(fp32|bf16)(?=_unbounded$|$)")
HOST_CONTRACTS = frozenset({"host-dispatch", "cpu-reference"})
METRICS: dict[str, tuple[str, str, float]] = {
    "device_us": ("device", "seconds", 1e-6),
    "host_us": ("host", "seconds", 1e-6),
    "cache_bytes": ("cache", "bytes", 1.0),
}
"""Name, asv's unit and factor of each metric that goes out."""
COLUMNS = [
    *("result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25"),
    *("stats_q_75", "stats_number", "stats_repeat", "samples", "profile"),
]

Cell = tuple[Any, ...]
"""Values of PARAM_NAMES."""


@dataclass(slots=True)
class Exported:
    """What was written, and what was not, with the reason."""

    results: list[Path] = field(default_factory=list)
    benchmarks: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    """All processes of one commit in one environment, and their values by benchmark and cell."""

    environment: Environment
    host: bool
    commit: str
    commit_ms: int
    measured_ms: int = 0
    values: dict[str, dict[Cell, list[Measurement]]] = field(default_factory=dict)


def read_counted(store: Store, newest: int) -> tuple[Iterator[Record], list[str]]:
    """Records that some of the newest nights of each GPU model counts, and lines on the others, with their numbers.

    A night that was judged invalid counts none: its card was another instrument, its processes no repetitions, or a
    result wrong. One that regressed was measured well, and is what a reader of asv's pages looks for. Samples are not
    looked at, nor are records that do not count.
    """
    nights, there = store.recent_nights(newest=newest), dict[str, set[str]]()
    for model in store.gpu_models("records"):
        own = [night for night in nights if night.gpu_model == model]
        named = (name for night in own for name in night.all_records)
        since = min(named, default="") if len(own) == newest else ""  # else the records of older nights are of none
        ids = store.ids("records", model, newest=RECORDS_OF_A_NIGHT * newest)
        there[model] = {name for name in ids if name >= since}
    good, lines = counted_records(nights, set().union(*there.values()))
    found = (store.read_each(read_record, None, ids & good, model) for model, ids in there.items())
    return itertools.chain.from_iterable(found), lines


def counted_records(nights: Sequence[Night], there: set[str]) -> tuple[set[str], list[str]]:
    """Of the records that are there the ids of those that some night counts, and lines on the others."""
    lines = list[str]()
    good = {name for night in nights if night.exit_code != Exit.INVALID for name in night.records}
    told = set(good)
    for night in nights:
        if left := [name for name in night.records if name in there - told]:
            lines.append(f"{_number(left)} of night {night.id}, which was judged invalid")
            told.update(left)
        if left := [name for name in night.left_out if name in there - told]:
            lines.append(f"{_number(left)} that night {night.id} left out")
            told.update(left)
    if alone := there - told:
        lines.append(f"{_number(alone)} that no night counts")
    return good & there, lines


def _number(records: Collection[str]) -> str:
    return f"{len(records)} record{'' if len(records) == 1 else 's'}"


def export(records: Iterable[Record], results_dir: Path, repo: Path, left_out: Sequence[str] = ()) -> Exported:
    """Write result files, ``benchmarks.json`` and machines below ``results_dir``; writing again changes nothing.

    Entries of other benchmarks, such as those of ``asv run``, are kept. A record of no commit, of a commit that the
    repository does not have, or of changed sources is left out: asv could only show it as something it is not. So
    are times of other projects' kernels, which change with their versions and not with our commits.

    Args:
        left_out: what was left out before, for the result and for messages.
    Raises:
        ValueError: a value is not finite, or an exact figure differs between processes of one commit.
        MissingDataError: nothing is left to export.
        BrokenEnvironmentError: asv is not installed, or ``results_dir`` holds files that are not asv's.
    """
    done = Exported(left_out=list(left_out))
    groups = _grouped(records, _commits_of(repo), done)
    if not groups:
        raise MissingDataError(
            "; ".join(["no record to export", *done.left_out]), "python -m ci nightly, in a clean checkout with git"
        )
    params = _params(groups)
    _write_benchmarks(results_dir / "benchmarks.json", groups, params)
    done.benchmarks = sorted(params)
    for group in groups:
        machine = results_dir / group.environment.gpu_model / "machine.json"
        if not machine.exists():
            _write_json(machine, {**_machine(group.environment), "version": MACHINE_VERSION})
        environment_name = _environment_name(group)
        path = machine.with_name(f"{group.commit[:8]}-{environment_name}.json")
        _write_json(path, _results(group, environment_name, params))
        done.results.append(path)
    return done


def benchmark_name(measurement: Measurement) -> str:
    """What asv calls a series: the case without its sizes, op, provider, metric and contract."""
    family = SIZES.sub("", measurement.case)
    metric = METRICS[measurement.metric][0]
    return f"{family}.{measurement.op}.{measurement.provider}.{metric}.{measurement.contract.replace('-', '_')}"


def _grouped(
    records: Iterable[Record], find_commit: Callable[[str], tuple[str, int] | None], done: Exported
) -> list[_Group]:
    groups: dict[tuple[Any, ...], _Group] = {}
    for record in records:
        named = record.subject.commit
        found = find_commit(named) if named else None
        if found is None:
            done.left_out.append(f"{record.id}: " + (f"{named} is not in git here" if named else "names no commit"))
            continue
        commit, committed_ms = found
        if record.subject.dirty:
            done.left_out.append(f"{record.id}: measured changed sources, not {commit[:10]}")
            continue
        cases = {case.name: case for case in record.cases}
        for item in record.measurements:
            if item.metric not in METRICS or item.case not in cases or item.provider in record.peer_names:
                continue
            host = item.contract in HOST_CONTRACTS
            key = (commit, host, record.environment.cut_key(host=host))
            group = groups.setdefault(key, _Group(record.environment, host, commit, committed_ms))
            group.measured_ms = max(group.measured_ms, _milliseconds(record.created_utc))
            cells = group.values.setdefault(benchmark_name(item), {})
            cells.setdefault(_cell(cases[item.case]), []).append(_finite(item, record.id))
    return list(groups.values())


def _cell(case: Case) -> Cell:
    return (case.num_requests, case.spec_query_len, case.state_dtype, case.mean_accepted)


def _finite(item: Measurement, record_id: str) -> Measurement:
    """A NaN means "skipped" to asv: one that came from a measurement would hide a failure."""
    if item.value is not None and not math.isfinite(item.value):
        raise ValueError(f"{record_id}: {'/'.join(item.key)}: expected a finite value, got {item.value}")
    return item


def _params(groups: Iterable[_Group]) -> dict[str, list[list[Any]]]:
    """Of each benchmark every value of each parameter that any commit has; asv needs the full product of them."""
    cells: dict[str, set[Cell]] = {}
    for group in groups:
        for name, found in group.values.items():
            cells.setdefault(name, set()).update(found)
    return {name: [sorted(set(column)) for column in zip(*found, strict=True)] for name, found in cells.items()}


def _results(group: _Group, environment_name: str, params: Mapping[str, list[list[Any]]]) -> dict[str, Any]:
    environment = group.environment
    requirements = {"torch": environment.torch, "triton": environment.triton or ""}
    return {
        "commit_hash": group.commit,
        "env_name": environment_name,
        "date": group.commit_ms,
        "params": {**_machine(environment), "python": environment.python, **requirements},
        "python": environment.python,
        "requirements": requirements,
        "env_vars": _env_vars(group),
        "result_columns": COLUMNS,
        "results": {name: _row(cells, params[name], group.measured_ms) for name, cells in sorted(group.values.items())},
        "durations": {},
        "version": RESULTS_VERSION,
    }


def _row(cells: Mapping[Cell, Sequence[Measurement]], params: list[list[Any]], measured_ms: int) -> list[Any]:
    values = [_value(cells.get(cell, ())) for cell in itertools.product(*params)]
    stats = [one[1] for one in values]
    columns = {
        "result": [one[0] for one in values],
        "params": [[repr(value) for value in column] for column in params],
        "version": EXPORT_VERSION,
        "started_at": measured_ms,
        "samples": [one[2] for one in values],
    } | {
        f"stats_{name}": [None if one is None else one[name] for one in stats]
        for name in ("ci_99_a", "ci_99_b", "q_25", "q_75", "number", "repeat")
    }
    return [columns.get(name) for name in COLUMNS]


def _value(found: Sequence[Measurement]) -> tuple[float | None, dict[str, Any] | None, list[float] | None]:
    """Result, statistics and samples of one cell: NaN where there is nothing to measure, None where that failed."""
    if any(item.status == "failed" for item in found):
        return None, None, None
    ok = [item for item in found if item.value is not None and item.status == "ok"]
    if not ok:
        return (None if any(item.status == "invalid" for item in found) else math.nan), None, None
    factor = METRICS[ok[0].metric][2]
    values = [item.value * factor for item in ok if item.value is not None]
    if ok[0].contract in ("exact", "static"):
        if len(set(values)) > 1:
            raise ValueError(f"{'/'.join(ok[0].key)}: an exact figure differs between processes: {sorted(set(values))}")
        return values[0], None, None
    return median(values), _statistics(values), values


def _statistics(values: Sequence[float]) -> dict[str, Any]:
    """As asv computes them of samples, by asv's own function: its `compare` falls back on the interval."""
    try:
        from asv_runner.statistics import compute_stats
    except ImportError as error:
        raise BrokenEnvironmentError(f"asv is not installed here: {error}", "make setup, or pip install asv") from error
    found: dict[str, Any] = compute_stats(list(values), 1)[1]
    return found


def _machine(environment: Environment) -> dict[str, str]:
    return {"machine": environment.gpu_model, "gpu": environment.gpu_model}


def _env_vars(group: _Group) -> dict[str, str]:
    names = ["driver", "cuda", "ptxas", "harness", "mig", "ecc", "power_limit_w"]
    names += ["cpu_model", "os_kernel"] if group.host else []
    found = {name: getattr(group.environment, name) for name in names}
    return {name: str(value) for name, value in found.items() if value is not None}


def _environment_name(group: _Group) -> str:
    """Readable, and unlike any other environment's."""
    environment = group.environment
    digest = hashlib.sha256(repr(environment.cut_key(host=group.host)).encode()).hexdigest()[:8]
    kind = "host" if group.host else "device"
    name = f"nights-{kind}-py{environment.python}-torch{environment.torch}-triton{environment.triton}-{digest}"
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name)


def _write_benchmarks(path: Path, groups: Iterable[_Group], params: Mapping[str, list[list[Any]]]) -> None:
    known: Any = {"version": BENCHMARKS_VERSION}
    if path.exists():
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise BrokenEnvironmentError(f"{path}: not JSON: {error}", "choose another --results-dir") from error
        if not isinstance(known, dict) or known.get("version") != BENCHMARKS_VERSION:
            raise BrokenEnvironmentError(f"{path}: expected asv's version {BENCHMARKS_VERSION}", "asv update")
    metrics = {name: next(iter(cells.values()))[0].metric for group in groups for name, cells in group.values.items()}
    for name, columns in params.items():
        known[name] = {
            "code": "",
            "name": name,
            "param_names": list(PARAM_NAMES),
            "params": [[repr(value) for value in column] for column in columns],
            "type": "track",
            "unit": METRICS[metrics[name]][1],
            "version": EXPORT_VERSION,
        }
    _write_json(path, known)


def _write_json(path: Path, value: Any) -> None:
    """Whole or not at all. NaN and Infinity are written: asv's files have them, ours never do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)


def _commits_of(repo: Path) -> Callable[[str], tuple[str, int] | None]:
    """Of a hash in a record: the whole hash, and when the commit was made, in milliseconds.

    None for a commit that the repository does not have, and for what is no hash: a branch names another commit every
    day, and git would take an option for one.
    """
    known: dict[str, tuple[str, int] | None] = {}

    def find(commit: str) -> tuple[str, int] | None:
        if not COMMIT_HASH.fullmatch(commit):
            return None
        if commit not in known:
            command = ["git", "-C", str(repo), "show", "--no-patch", "--format=%H %ct", f"{commit}^{{commit}}", "--"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except OSError as error:
                raise BrokenEnvironmentError(f"asv's results need git: {error}", "run this where git is") from error
            whole, _, made_s = done.stdout.strip().partition(" ")
            # A branch may look like a hash; git would prefer it.
            is_it = done.returncode == 0 and whole.startswith(commit.lower())
            known[commit] = (whole, int(made_s) * 1000) if is_it else None
        return known[commit]

    return find


def _milliseconds(utc: str) -> int:
    return int(datetime.fromisoformat(utc).timestamp() * 1000)
