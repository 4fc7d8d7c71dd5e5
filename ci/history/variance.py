"""Variance components of every series of a store, and the share of series that are as quiet as they should be."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import pyarrow.parquet as pq

from benchmarks.harness.record_files import samples_path
from benchmarks.harness.records import Record
from benchmarks.harness.samples import is_thinned
from benchmarks.harness.stats.variance import Components, Process, components, pooled_sd_pct
from ci.config import load_thresholds
from ci.exits import MissingDataError
from ci.validity import tell_sound
from reports.sources import Stored, read_records

from .reading import connect, run

MARK = "variance"
VARIANCE_NIGHTS = 60  # 6 MB each with their samples; one code is seldom measured in so many
# What a quiet card gives (docs/measuring.md): name, batch sizes, limit of the spread between processes, wanted share.
LARGE_BATCH = 32
SMALL_BATCHES = (1, 8)
TARGETS = (("B >= 32", 0.5, 80.0), ("B = 1 and 8", 1.0, 80.0))

_SUMS = """
select filename, metric, op, provider, "case", contract,
       count(*), avg(value), coalesce(var_samp(value), 0), median(value)
from read_parquet($files, filename = true, union_by_name = true)
where accepted is not false
group by all
order by all
"""
SeriesKey = tuple[str, str, str, str, str]  # metric, op, provider, case, contract


@dataclass(frozen=True, slots=True)
class Spread:
    """One series on one GPU model. Percent of the mean; None where the data cannot tell."""

    gpu: str
    metric: str
    op: str
    provider: str
    case: str
    contract: str
    num_requests: int
    num_occasions: int
    num_processes: int
    num_samples: int
    within_pct: float | None
    between_processes_pct: float | None
    between_occasions_pct: float | None
    process_sd_pct: float | None  # of the process medians, pooled over occasions: what the limits are about
    clipped: tuple[str, ...]  # components whose estimate was negative


@dataclass(frozen=True, slots=True)
class Share:
    """How many device-time series keep a limit of ``process_sd_pct``."""

    batches: str
    limit_pct: float
    wanted_pct: float
    num_series: int
    num_within: int

    @property
    def share_pct(self) -> float | None:
        return 100 * self.num_within / self.num_series if self.num_series else None

    @property
    def kept(self) -> bool | None:
        return None if self.share_pct is None else self.share_pct >= self.wanted_pct


@dataclass(slots=True)
class Table:
    spreads: list[Spread] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def shares(self, gpu: str) -> list[Share]:
        """Of the device times of one GPU model."""
        own = [s for s in self.spreads if s.gpu == gpu and s.metric == "device_us" and s.process_sd_pct is not None]
        groups = (
            [s for s in own if s.num_requests >= LARGE_BATCH],
            [s for s in own if s.num_requests in SMALL_BATCHES],
        )
        return [
            Share(name, limit, wanted, len(group), sum((s.process_sd_pct or 0.0) <= limit for s in group))
            for (name, limit, wanted), group in zip(TARGETS, groups, strict=True)
        ]


@dataclass(slots=True)
class _Group:
    """What was measured of one code in one environment: by night and card, and what does not count with the reason."""

    occasions: dict[tuple[str, str | None], list[Record]] = field(default_factory=dict)
    nights: set[str] = field(default_factory=set)
    left_out: dict[str, str] = field(default_factory=dict)


def variance(
    stores: Sequence[str],
    *,
    gpu_model: str = "*",
    case: str = "*",
    metric: str = "device_us",
    across_code: bool = False,
    nights: int = VARIANCE_NIGHTS,
) -> Table:
    """Components of the series that fit the globs, from every sample that counts, of the newest nights.

    A night is an occasion; of a night on several GPUs, each card's part is one. Only nights of one environment and of
    one source hash are put together, the newest such group of each GPU model that has the most occasions: what else
    differs between nights would count as noise. Processes whose controls disagree are left out and named, whatever was
    known of that when their night was judged.

    Args:
        across_code: put nights of different sources together all the same, when it is known that the code in question
            did not change.
        nights: of each GPU model and store.
    Raises:
        MissingDataError: nothing fits.
    """
    history = read_records(stores, gpu_model, nights)
    table = Table(notes=list(history.damaged))
    for model in sorted({night.gpu_model for night in history.nights.values()}):
        occasions = _occasions(history, model, across_code, table.notes)
        table.spreads += _spreads(history, model, occasions, case, metric)
    if not table.spreads:
        raise MissingDataError("no samples fit: no such GPU model, case or metric", "python -m ci history query")
    return table


def _occasions(history: Stored[Record], model: str, across_code: bool, notes: list[str]) -> list[list[Record]]:
    limit_pct = load_thresholds().statistics.drift_limit_pct
    groups: dict[Any, _Group] = {}
    for night in history.of(model):
        measured = [history.records[name] for name in night.all_records if name in history.records]
        _, unsound = tell_sound(measured, limit_pct)
        for record in measured:
            source = None if across_code else record.subject.source_hash
            group = groups.setdefault((record.environment.cut_key(host=False), source), _Group())
            group.nights.add(night.id)
            if why := unsound.get(record.id) or _why_thinned(history, record):
                group.left_out[record.id] = why
                continue
            group.occasions.setdefault((night.id, record.silicon.gpu_uuid), []).append(record)
    if not groups:
        return []
    best = max(groups.values(), key=lambda group: (len(group.occasions), max(group.nights)))
    notes += [f"record {name}: left out: {why}" for name, why in best.left_out.items()]
    others = len(history.of(model)) - len(best.nights)
    if others:
        notes.append(f"{model}: {others} nights of another environment or other sources are left out")
    return list(best.occasions.values())


def _why_thinned(history: Stored[Record], record: Record) -> str:
    thinned = is_thinned(pq.read_schema(samples_path(history.paths[record.id])))
    return "its samples were thinned (ci history prune)" if thinned else ""


def _spreads(
    history: Stored[Record], model: str, occasions: Sequence[list[Record]], case: str, metric: str
) -> list[Spread]:
    place = {
        str(history.paths[record.id].with_suffix(".parquet")): index
        for index, occasion in enumerate(occasions)
        for record in occasion
    }
    # A series that was refused keeps its samples, so that people can look at them; they are no measurement.
    counts = {
        (str(history.paths[record.id].with_suffix(".parquet")), *item.key)
        for occasion in occasions
        for record in occasion
        for item in record.measurements
        if item.status == "ok"
    }
    num_requests = {c.name: c.num_requests for occasion in occasions for r in occasion for c in r.cases}
    nested: dict[SeriesKey, list[list[Process]]] = {}
    medians: dict[SeriesKey, list[list[float]]] = {}
    sums = _sums(list(place))
    for name, *key, count, mean, square, middle in sums:
        series = (key[0], key[1], key[2], key[3], key[4])
        if (name, *series) in counts and fnmatchcase(series[3], case) and fnmatchcase(series[0], metric):
            nested.setdefault(series, [[] for _ in occasions])[place[name]].append(Process(count, mean, square))
            medians.setdefault(series, [[] for _ in occasions])[place[name]].append(middle)
    return [
        _spread(model, series, num_requests.get(series[3], 0), components(nested[series]), medians[series])
        for series in sorted(nested)
    ]


def _sums(files: list[str]) -> list[tuple[Any, ...]]:
    # Files of harness version 1 have no column of samples that do not count.
    has_dropped = any("accepted" in pq.read_schema(file).names for file in files)
    with connect() as connection:
        return run(connection, _SUMS if has_dropped else _SUMS.replace("where accepted is not false\n", ""), files)


def _spread(
    gpu: str, series: SeriesKey, num_requests: int, found: Components, medians: Sequence[Sequence[float]]
) -> Spread:
    metric, op, provider, case, contract = series
    return Spread(
        gpu=gpu,
        metric=metric,
        op=op,
        provider=provider,
        case=case,
        contract=contract,
        num_requests=num_requests,
        num_occasions=found.num_occasions,
        num_processes=found.num_processes,
        num_samples=found.num_samples,
        within_pct=found.sd_pct(found.within),
        between_processes_pct=found.sd_pct(found.between_processes),
        between_occasions_pct=found.sd_pct(found.between_occasions),
        process_sd_pct=pooled_sd_pct(medians),
        clipped=found.clipped,
    )


HEADINGS = (
    "GPU", "op", "provider", "contract", "B", "series", "within", "processes", "worst", "occasions", "of medians",
)  # fmt: skip


def summary_rows(table: Table) -> list[list[str]]:
    """Medians over the cases of one op and range of batch sizes; ``worst`` is the largest spread between processes."""
    groups: dict[tuple[str, ...], list[Spread]] = {}
    for spread in sorted(table.spreads, key=lambda s: (s.gpu, s.op, s.provider, s.contract, s.num_requests)):
        key = (spread.gpu, spread.op, spread.provider, spread.contract, _batch(spread.num_requests))
        groups.setdefault(key, []).append(spread)
    rows = []
    for group, own in groups.items():
        between = [s.between_processes_pct for s in own]
        worst = max((value for value in between if value is not None), default=None)
        occasions = _middle(s.between_occasions_pct for s in own) if max(s.num_occasions for s in own) > 1 else "one"
        within, medians = _middle(s.within_pct for s in own), _middle(s.process_sd_pct for s in own)
        rows.append([*group, str(len(own)), within, _middle(between), _percent(worst), occasions, medians])
    return rows


def _batch(num_requests: int) -> str:
    return "1" if num_requests == 1 else "2 to 31" if num_requests < LARGE_BATCH else ">= 32"


def share_lines(table: Table) -> list[str]:
    """One sentence per GPU model and limit."""
    lines = []
    for gpu in dict.fromkeys(spread.gpu for spread in table.spreads):
        for share in table.shares(gpu):
            if share.share_pct is None:
                lines.append(f"{gpu}, {share.batches}: no device-time series with two processes")
                continue
            lines.append(
                f"{gpu}, {share.batches}: {share.num_within} of {share.num_series} device-time series "
                f"({share.share_pct:.0f} %) have a spread of process medians of at most {share.limit_pct:g} %; "
                f"{share.wanted_pct:.0f} % are wanted: {'kept' if share.kept else 'not kept'}"
            )
    return lines


def markdown(table: Table) -> str:
    """What docs/measuring.md shows between its marks."""
    nights = max(spread.num_occasions for spread in table.spreads)
    processes = max(spread.num_processes for spread in table.spreads)
    clipped = sum("between_processes" in spread.clipped for spread in table.spreads)
    said = f"From {'one occasion' if nights == 1 else f'{nights} occasions'} with {processes} processes in all"
    said += ", so the part between occasions is unknown." if nights == 1 else "."
    if clipped:
        said += (
            f" Of {len(table.spreads)} series, {clipped} have a negative estimate between processes, taken as 0: there "
            "the processes differ by less than their samples."
        )
    rows = [HEADINGS, ["---"] * 4 + ["---:"] * 7, *summary_rows(table)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([said, "", *lines, "", *(f"- {line}." for line in share_lines(table))])


def _middle(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return _percent(statistics.median(known) if known else None)


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{value:.2f} %"
