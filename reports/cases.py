"""The table of cases: its columns and rows, for GPU nights and for CPU nights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.harness.records import Case, Night, Verdict
from reports import derive, text
from reports.derive import Figure, Processes, Series

REFERENCE_VERIFY = Series("host_us", "verify", "torch", "cpu-reference")
REFERENCE_COMMIT = Series("host_us", "commit", "torch", "cpu-reference")
VERDICT_MARKS = {
    "regressed": "▲",
    "invalid": "✕",
    "missing": "∅",
    "inconclusive": "?",
    "blind": "◌",
    "new": "+",
    "unchanged": "=",
    "improved": "▼",
}
VERIFY_GROUP, COMMIT_GROUP, STEP_GROUP = "verify, one layer", "commit, all layers", "step, all layers"
REFERENCE_GROUP = "torch reference"


@dataclass(frozen=True, slots=True)
class Cell:
    """What a table shows, what it sorts by, and what it says when pointed at."""

    text: str
    sort: float | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    label: str
    unit: str
    group: str
    hint: str
    cell: Callable[[Processes, str], Cell]
    exact: bool = False  # computed, so it is there for a skipped case too


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    stands_for: str
    verdict: str
    verdict_mark: str
    verdict_reason: str
    cells: tuple[Cell, ...]
    checks: Cell
    checks_passed: bool | None  # None: no check was made
    processes: Cell
    skipped: str  # why the case has no number; empty when it has


def _time(series: Series) -> Callable[[Processes, str], Cell]:
    def cell(processes: Processes, case: str) -> Cell:
        figure = processes.figure(series, case)
        return _cell(figure, text.micros(figure.median), text.span(figure, "us"))

    return cell


def _overhead(ours: Series, full: Series) -> Callable[[Processes, str], Cell]:
    def cell(processes: Processes, case: str) -> Cell:
        figure = processes.ratio_pct(ours, full, case)
        return _cell(figure, _bare(text.percent(figure.median, signed=True)), text.span(figure, "pct"))

    return cell


def _share(read: Callable[[Processes, Series, str], Figure], series: Series) -> Callable[[Processes, str], Cell]:
    def cell(processes: Processes, case: str) -> Cell:
        figure = read(processes, series, case)
        return _cell(figure, _bare(text.percent(figure.median)), text.span(figure, "pct"))

    return cell


def _spread(series: Series) -> Callable[[Processes, str], Cell]:
    def cell(processes: Processes, case: str) -> Cell:
        spread = processes.figure(series, case).sd_pct
        return Cell(_bare(text.percent(spread, digits=2)), spread, "" if spread is not None else "needs two processes")

    return cell


def _exact(series: Series, show: Callable[[float | None], str]) -> Callable[[Processes, str], Cell]:
    def cell(processes: Processes, case: str) -> Cell:
        figure = processes.exact(series, case)
        return _cell(figure, show(figure.median), f"{figure.median:,.0f} B" if show is text.size and figure.n else "")

    return cell


def _cell(figure: Figure, shown: str, hint: str) -> Cell:
    return Cell(shown, figure.median, hint if figure.n else figure.reason)


def _bare(percent: str) -> str:
    """Without its sign, for columns headed %: sixteen of them must fit a window of 1280 pixels."""
    return percent.removesuffix(f"{text.NBSP}%")


def _percent(value: float | None) -> str:
    return _bare(text.percent(value))


def _signed(value: float | None) -> str:
    return _bare(text.percent(value, signed=True, digits=2))


ROOFLINE_HINT = "byte floor at the best stream bandwidth of this process, over time"
CONTROL_HINT = "time of a stream of matching bytes and grid, over time"
RATIO_HINT = "ours / full state - 1, in one process"

GPU_COLUMNS = (
    Column("ours", "µs", VERIFY_GROUP, "device time of one verify", _time(derive.VERIFY)),
    Column("sd", "ours, %", VERIFY_GROUP, "of ours, between processes", _spread(derive.VERIFY)),
    Column("roofline", "ours, %", VERIFY_GROUP, ROOFLINE_HINT, _share(Processes.roofline_pct, derive.VERIFY)),
    Column("control", "ours, %", VERIFY_GROUP, CONTROL_HINT, _share(Processes.control_pct, derive.VERIFY)),
    Column("full state", "µs", VERIFY_GROUP, "device time of the full-state verify", _time(derive.FULL_VERIFY)),
    Column("roofline", "full, %", VERIFY_GROUP, ROOFLINE_HINT, _share(Processes.roofline_pct, derive.FULL_VERIFY)),
    Column("control", "full, %", VERIFY_GROUP, CONTROL_HINT, _share(Processes.control_pct, derive.FULL_VERIFY)),
    Column("overhead", "%", VERIFY_GROUP, RATIO_HINT, _overhead(derive.VERIFY, derive.FULL_VERIFY)),
    Column("ours", "µs", COMMIT_GROUP, "plan, state and conv of all layers", _time(derive.COMMIT)),
    Column("roofline", "%", COMMIT_GROUP, ROOFLINE_HINT, _share(Processes.roofline_pct, derive.COMMIT)),
    Column("control", "%", COMMIT_GROUP, CONTROL_HINT, _share(Processes.control_pct, derive.COMMIT)),
    Column("ours", "µs", STEP_GROUP, "all verifies and the commit in one graph", _time(derive.STEP)),
    Column("full state", "µs", STEP_GROUP, "the same with full state", _time(derive.FULL_STEP)),
    Column("overhead", "%", STEP_GROUP, RATIO_HINT, _overhead(derive.STEP, derive.FULL_STEP)),
    Column("saved", "%", "memory", "cache bytes against full state", _exact(derive.SAVED_PCT, _percent), exact=True),
)

CPU_COLUMNS = (
    Column("ours", "all layers", "cache", "bytes of one rank", _exact(derive.CACHE, text.size)),
    Column("full state", "all layers", "cache", "bytes of one rank", _exact(derive.FULL_CACHE, text.size)),
    Column("saved", "all layers", "cache", "full state - ours", _exact(derive.SAVED_BYTES, text.size)),
    Column("saved", "%", "cache", "of full state", _exact(derive.SAVED_PCT, _percent)),
    Column("gain", "%", "capacity", "tokens in one budget against full state", _exact(derive.CAPACITY_GAIN, _signed)),
)


def _compiled(metric: str, op: str, provider: str = "recoverssm") -> Callable[[Processes, str], Cell]:
    return _exact(Series(metric, op, provider, "static"), lambda value: text.number(value, 0))


STATIC_COLUMNS = tuple(
    Column(label, unit, group, hint, _compiled(metric, op, provider), exact=True)
    for group, op, provider, figures in (
        ("verify", "verify", "recoverssm", ("registers", "ctas_per_sm", "tensor_core_instructions", "barriers")),
        ("commit state", "commit_state", "recoverssm", ("registers", "ctas_per_sm", "wide_loads")),
        ("full state verify", "verify", "full_state", ("registers", "ctas_per_sm", "wide_loads")),
        ("commit", "commit", "recoverssm", ("launches",)),
        ("step", "step", "recoverssm", ("launches",)),
    )
    for metric in figures
    for label, unit, hint in (
        {
            "registers": ("registers", "a thread", "of the kernel"),
            "ctas_per_sm": ("fit", "CTAs/SM", "by registers, shared memory and warps"),
            "tensor_core_instructions": ("tensor", "instr.", "tensor-core instructions in the code"),
            "wide_loads": ("wide", "loads", "16-byte global loads in the code"),
            "barriers": ("barriers", "instr.", "barriers in the code"),
            "launches": ("launches", "a call", "kernels that one call launches"),
        }[metric],
    )
)

REFERENCE_COLUMNS = (
    Column("verify", "µs", REFERENCE_GROUP, "says nothing about a GPU", _time(REFERENCE_VERIFY)),
    Column("commit", "µs", REFERENCE_GROUP, "says nothing about a GPU", _time(REFERENCE_COMMIT)),
)


def rows_of(night: Night, processes: Processes, columns: Sequence[Column]) -> list[Row]:
    """One row per case that the night's records or verdicts name, in natural order of names."""
    cases = {case.name: case for record in processes.records for case in record.cases}
    named = {*processes.cases(), *(check.case for check in processes.all_checks)}
    named |= {verdict.case for verdict in night.verdicts}
    names = sorted(named - {""} | set(cases), key=text.natural_key)
    return [_row(name, cases.get(name), night, processes, columns) for name in names]


def _row(name: str, case: Case | None, night: Night, processes: Processes, columns: Sequence[Column]) -> Row:
    verdicts = [verdict for verdict in night.verdicts if verdict.case == name]
    worst = derive.worst_verdict([verdict for verdict in verdicts if verdict.provider not in processes.others])
    checks = derive.summarize_checks(processes.checks(name))
    return Row(
        name=name,
        stands_for=case.stands_for if case else "",
        verdict=worst.verdict if worst else "no verdict",
        verdict_mark=VERDICT_MARKS[worst.verdict] if worst else text.MISSING,
        verdict_reason=_explained(worst) if worst else "the night holds no verdict for this case",
        cells=tuple(column.cell(processes, name) for column in columns),
        checks=_checks_cell(checks),
        checks_passed=None if not checks.num_checks else checks.num_failed == 0,
        processes=_processes_cell(processes, name),
        skipped="; ".join(processes.skip_reasons(name)),
    )


def _explained(verdict: Verdict) -> str:
    gated = "" if verdict.gated else " (shown only, not gated)"
    known = f"; {verdict.known}: {verdict.known_reason}" if verdict.known_reason else ""
    return f"{verdict.metric} {verdict.op} {verdict.provider}: {verdict.reason}{known}{gated}"


def _checks_cell(summary: derive.CheckSummary) -> Cell:
    if not summary.num_checks:
        return Cell("not checked", None, "no correctness check was recorded for this case")
    lines = [
        f"{item.op} {item.provider} {item.metric}: {text.scientific(item.value)}, limit {text.scientific(item.limit)}"
        for item in summary.worst
    ]
    twin = "shrunken twin, " if all("shrunken twin" in item.detail for item in summary.worst) else ""
    word = "pass" if not summary.num_failed else f"{summary.num_failed} of {summary.num_checks} failed"
    fraction = max(
        (check.value / check.limit for check in summary.worst if check.value is not None and check.limit), default=None
    )
    if fraction is not None and not summary.num_failed:
        word = text.percent(100 * fraction, digits=0)
    return Cell(twin + word, fraction, "\n".join([*(["not this case: a shrunken twin of it"] if twin else []), *lines]))


def _processes_cell(processes: Processes, case: str) -> Cell:
    counted = processes.timed_series(case) or processes.series_of(case)
    counts = [processes.figure(series, case).n for series in counted]
    total, most, least = len(processes.records), max(counts, default=0), min(counts, default=0)
    hint = "" if least == most else f"some series of this case have only {least}"
    return Cell(f"{most}" if most == total else f"{most} of {total}", most, hint)
