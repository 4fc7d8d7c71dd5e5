"""``ci neighbours``: each GPU of a host measured alone, then all at once, and what that does to every series."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from benchmarks.harness.records import Record
from benchmarks.harness.stats.verdict import Limits, compare
from benchmarks.harness.store import open_store

from .config import EXACT_CONTRACTS
from .exits import WORST_FIRST, Exit, MissingDataError
from .gpus import choose_gpus, find_gpus
from .nightly import Result, run_nightly
from .options import Options
from .session import STATE_FILE, load

MIN_PROCESSES = 2  # on both sides of a ratio with an interval
NO_EFFECT_PCT = 1.0  # two processes of one kernel on one card differ by up to half of it (docs/measuring.md)
SHOWN = 20
Series = tuple[str, ...]  # metric, op, provider, case, contract; of a control "control", its name
_LIMITS = Limits(2.0, 0.5)  # the interval does not depend on them


@dataclass(frozen=True, slots=True)
class Change:
    """One series, of one GPU or between two: how much longer, in percent of the geometric means, with 95 % interval."""

    gpu: str
    series: Series
    change_pct: float
    low_pct: float
    high_pct: float
    processes: tuple[int, int]

    @property
    def is_clear(self) -> bool:
        """Whether the whole interval lies outside what is no effect."""
        return self.low_pct > NO_EFFECT_PCT or self.high_pct < -NO_EFFECT_PCT

    def as_json(self) -> dict[str, Any]:
        return {
            "gpu": self.gpu,
            "series": "/".join(self.series),
            "change_pct": self.change_pct,
            "low_pct": self.low_pct,
            "high_pct": self.high_pct,
            "processes": list(self.processes),
        }


@dataclass(slots=True)
class Found:
    """Of two nights. ``beside``: at once against alone. ``between``: alone against the first GPU of its model."""

    code: Exit
    nights: list[str]
    beside: list[Change]
    between: list[Change]
    cards: dict[str, dict[str, Any]]  # by GPU and night
    messages: list[str]


def measure_neighbours(options: Options, console: Console) -> Found:
    """Run both nights, or what ``--resume`` finds missing of them, and compare them GPU by GPU.

    Raises:
        MissingDataError: fewer than two GPUs. CommandError: as a night.
    """
    gpus = choose_gpus(options.gpus or "all", find_gpus())
    if len(gpus) < 2:
        raise MissingDataError(f"expected two GPUs or more, got {', '.join(gpu.uuid for gpu in gpus)}")
    shared = replace(options, gpus=",".join(gpu.uuid for gpu in gpus), page=False, static=False)
    done: dict[str, Result | None] = {}
    for name in ("alone", "beside"):
        one = replace(shared, out=options.out / name, exclusive=name == "alone")
        done[name] = _night(one, console)
        if (result := done[name]) and result.code == Exit.INTERRUPTED:
            return Found(Exit.INTERRUPTED, [], [], [], {}, [*result.messages, "go on: the same command with --resume"])
    alone, beside = (_records(options, name) for name in ("alone", "beside"))
    codes = [result.code for result in done.values() if result]
    return Found(
        code=min([*codes, Exit.PASS], key=WORST_FIRST.index),
        nights=[night for name in done for night in _night_ids(options, name)],
        beside=[change for gpu in alone for change in changes(gpu, alone[gpu], beside.get(gpu, []))],
        between=_between(alone),
        cards={
            f"{gpu} {name}": _card(r)
            for name, some in (("alone", alone), ("beside", beside))
            for gpu, r in some.items()
        },
        messages=[line for result in done.values() if result for line in result.messages],
    )


def changes(gpu: str, base: Sequence[Record], records: Sequence[Record]) -> list[Change]:
    """Of every series that both have at least two processes of; the largest first."""
    before, after = _values(base), _values(records)
    found = []
    for series in before.keys() & after.keys():
        old, new = before[series], after[series]
        if min(len(old), len(new)) >= MIN_PROCESSES:
            evidence = compare(new, old, _LIMITS)
            ratio = statistics.geometric_mean(new) / statistics.geometric_mean(old)
            sizes = (len(old), len(new))
            found.append(Change(gpu, series, 100 * (ratio - 1), evidence.low_pct, evidence.high_pct, sizes))
    return sorted(found, key=lambda change: (-abs(change.change_pct), change.series))


def show(found: Found, console: Console) -> None:
    """A line for each GPU and contract, then what moved clearly."""
    lines = [f"nights: {', '.join(found.nights)}"]
    lines += [
        f"{name}: {', '.join(f'{key} {value}' for key, value in card.items())}" for name, card in found.cards.items()
    ]
    for title, some in (("at once against alone", found.beside), ("against the first GPU, alone", found.between)):
        groups: dict[tuple[str, str], list[Change]] = defaultdict(list)
        for change in some:
            groups[change.gpu, change.series[-1] if len(change.series) > 2 else change.series[0]].append(change)
        for (gpu, contract), group in sorted(groups.items()):
            middle = statistics.median(change.change_pct for change in group)
            clear = sum(change.is_clear for change in group)
            worst = f"largest {group[0].change_pct:+.2f} %"
            lines.append(f"{gpu} {contract}, {title}: median {middle:+.2f} %, {worst}, {clear} of {len(group)} clear")
        lines += [
            f"  {change.gpu} {'/'.join(change.series)}: {change.change_pct:+.2f} % "
            f"({change.low_pct:+.2f}..{change.high_pct:+.2f})"
            for change in [change for change in some if change.is_clear][:SHOWN]
        ]
    for line in [*lines, *found.messages]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def as_json(found: Found) -> dict[str, Any]:
    """All of it; ``clear``: the interval lies outside ±1 %."""
    return {
        "exit_code": int(found.code),
        "nights": found.nights,
        "beside": [{**change.as_json(), "clear": change.is_clear} for change in found.beside],
        "between": [{**change.as_json(), "clear": change.is_clear} for change in found.between],
        "cards": found.cards,
        "messages": found.messages,
    }


def _night(options: Options, console: Console) -> Result | None:
    """None where an earlier run has finished it."""
    old = load(options.out) if options.resume else None
    if old is not None and old.is_complete:
        return None
    return run_nightly(replace(options, resume=(options.out / STATE_FILE).exists() and options.resume), console)


def _records(options: Options, name: str) -> dict[str, list[Record]]:
    state, store = load(options.out / name), open_store(options.store, writable=False)
    assert state is not None  # the night wrote it
    return {gpu: store.records(list(state.records.get(gpu, {}).values())) for gpu in state.plan.gpus}


def _night_ids(options: Options, name: str) -> list[str]:
    state = load(options.out / name)
    return state.night_ids if state else []


def _values(records: Sequence[Record]) -> Mapping[Series, list[float]]:
    values: dict[Series, list[float]] = defaultdict(list)
    for record in records:
        for item in record.measurements:
            if item.contract not in EXACT_CONTRACTS and item.status == "ok" and item.value:
                values[item.key].append(item.value)
        for control in record.controls:
            if control.when == "start":
                values["control", control.name].append(control.median_us)
    return values


def _between(alone: Mapping[str, Sequence[Record]]) -> list[Change]:
    firsts: dict[str, str] = {}
    found = []
    for gpu, records in alone.items():
        if records:
            first = firsts.setdefault(records[0].environment.gpu_model, gpu)
            found += changes(f"{gpu} / {first}", alone[first], records) if first != gpu else []
    return found


def _card(records: Sequence[Record]) -> dict[str, Any]:
    """Clocks, power, heat and what held the card back, over the processes of one night."""
    monitors = [record.monitor for record in records]

    def middle(name: str) -> float | None:
        values = [value for monitor in monitors if (value := getattr(monitor, name)) is not None]
        return statistics.median(values) if values else None

    throttled: dict[str, int] = defaultdict(int)
    for monitor in monitors:
        for reason, us in monitor.throttle_us.items():
            throttled[reason] += us
    names = ("sm_clock_mhz_median", "power_w_median", "power_w_max", "temperature_c_max")
    facts = {name: middle(name) for name in names}
    return {**facts, "throttle_us": dict(throttled), "neighbours": max((r.neighbours for r in records), default=0)}
