"""``ci neighbours``: each GPU of a host measured alone, then all at once, and what that does to every series."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from benchmarks.harness.records import Record
from benchmarks.harness.stats.paired import estimate
from benchmarks.harness.store import open_store

from .config import EXACT_CONTRACTS
from .exits import WORST_FIRST, Exit, MissingDataError
from .gpus import choose_gpus, find_gpus
from .nightly import Result, run_nightly
from .options import Options
from .session import STATE_FILE, load

MIN_PAIRS = 2  # of a ratio with an interval
NO_EFFECT_PCT = 1.0  # two processes of one kernel on one card differ by up to half of it (docs/measuring.md)
SHOWN = 20
Series = tuple[str, ...]  # metric, op, provider, case, contract; of a control "control", its name


@dataclass(frozen=True, slots=True)
class Change:
    """One series, of one GPU or between two: how much longer, in percent, with standard error and 95 % interval.

    Of processes with the same seed, and so inputs, order of cases and placement, by which they differ most.
    """

    gpu: str
    series: Series
    change_pct: float
    error_pct: float
    low_pct: float
    high_pct: float
    pairs: int

    @property
    def is_clear(self) -> bool:
        """Whether the whole interval lies outside what is no effect."""
        return self.low_pct > NO_EFFECT_PCT or self.high_pct < -NO_EFFECT_PCT

    def as_json(self) -> dict[str, Any]:
        return {
            "gpu": self.gpu,
            "series": "/".join(self.series),
            "change_pct": self.change_pct,
            "error_pct": self.error_pct,
            "low_pct": self.low_pct,
            "high_pct": self.high_pct,
            "pairs": self.pairs,
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
        beside=[change for gpu in alone for change in changes(gpu, alone[gpu], beside.get(gpu, {}))],
        between=_between(alone),
        cards={
            f"{gpu} {name}": _card(list(records.values()))
            for name, some in (("alone", alone), ("beside", beside))
            for gpu, records in some.items()
        },
        messages=[line for result in done.values() if result for line in result.messages],
    )


def changes(gpu: str, base: Mapping[int, Record], records: Mapping[int, Record]) -> list[Change]:
    """Of every series that at least two pairs of processes have, by their seeds; the largest first."""
    before, after = _values(base), _values(records)
    found = []
    for series in before.keys() & after.keys():
        old, new = before[series], after[series]
        ratios = [math.log(new[seed] / old[seed]) for seed in old.keys() & new.keys()]
        if len(ratios) >= MIN_PAIRS:
            e = estimate(ratios)
            error = 100 * e.sd / math.sqrt(e.n)
            found.append(Change(gpu, series, _pct(e.mean), error, _pct(e.low), _pct(e.high), e.n))
    return sorted(found, key=lambda change: (-abs(change.change_pct), change.series))


def between_gpus_pct(found: Sequence[Change]) -> float:
    """Standard deviation between GPUs that the differences of pairs of them show, beyond their own errors."""
    return math.sqrt(max(0.0, statistics.fmean((c.change_pct**2 - c.error_pct**2) / 2 for c in found)))


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
            line = f"{gpu} {contract}, {title}: median {middle:+.2f} %, {worst}, {clear} of {len(group)} clear"
            spread = f"; standard deviation between GPUs {between_gpus_pct(group):.2f} %"
            lines.append(line + (spread if some is found.between else ""))
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


def _records(options: Options, name: str) -> dict[str, dict[int, Record]]:
    """By GPU and seed."""
    state, store = load(options.out / name), open_store(options.store, writable=False)
    assert state is not None  # the night wrote it
    of_gpus = {gpu: state.records.get(gpu, {}) for gpu in state.plan.gpus}
    found = {record.id: record for record in store.records({n for names in of_gpus.values() for n in names.values()})}
    return {gpu: {seed: found[name] for seed, name in names.items() if name in found} for gpu, names in of_gpus.items()}


def _night_ids(options: Options, name: str) -> list[str]:
    state = load(options.out / name)
    return state.night_ids if state else []


def _values(records: Mapping[int, Record]) -> Mapping[Series, Mapping[int, float]]:
    values: dict[Series, dict[int, float]] = defaultdict(dict)
    for seed, record in records.items():
        for item in record.measurements:
            if item.contract not in EXACT_CONTRACTS and item.status == "ok" and item.value:
                values[item.key][seed] = item.value
        for control in record.controls:
            if control.when == "start":
                values["control", control.name][seed] = control.median_us
    return values


def _between(alone: Mapping[str, Mapping[int, Record]]) -> list[Change]:
    firsts: dict[str, str] = {}
    found = []
    for gpu, records in alone.items():
        if records:
            first = firsts.setdefault(next(iter(records.values())).environment.gpu_model, gpu)
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


def _pct(log_ratio: float) -> float:
    return 100 * math.expm1(log_ratio)
