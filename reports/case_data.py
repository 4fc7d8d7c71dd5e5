"""The data file of one case on one GPU model: tiles, history for the figure, every series and every check.

Numbers are formatted here, in Python, but for those of the history, which are too many.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.harness.records import Night, Verdict
from reports import derive, text
from reports.cases import VERDICT_MARKS
from reports.derive import Processes, Series
from reports.tiles import Past, tiles_of

# What the history figure can show: key, title with direction, unit, lines (name, series, what it is held against).
Line = tuple[str, Series, Series | None]

HISTORY: tuple[tuple[str, str, str, tuple[Line, ...]], ...] = (
    (
        "verify_overhead",
        "Verify overhead, % of full state (lower is better)",
        "pct",
        (("verify overhead", derive.VERIFY, derive.FULL_VERIFY),),
    ),
    (
        "verify",
        "Verify, one layer, device time in µs (lower is better)",
        "us",
        (("RecoverSSM", derive.VERIFY, None), ("full state", derive.FULL_VERIFY, None)),
    ),
    (
        "commit",
        "Commit, all layers, device time in µs (lower is better)",
        "us",
        (("RecoverSSM", derive.COMMIT, None),),
    ),
    (
        "step_overhead",
        "Step overhead, % of full state (lower is better)",
        "pct",
        (("step overhead", derive.STEP, derive.FULL_STEP),),
    ),
    (
        "step",
        "Step, all layers, device time in µs (lower is better)",
        "us",
        (("RecoverSSM", derive.STEP, None), ("full state", derive.FULL_STEP, None)),
    ),
)

SERIES_HEADINGS = (
    "op",
    "provider",
    "metric",
    "contract",
    "verdict",
    "value",
    "range over processes",
    "n",
    "sd",
    "bytes moved",
    "roofline",
    "control",
)
SERIES_NUMBERS = tuple(range(5, 12))  # columns that are set flush right
CHECK_HEADINGS = ("op", "provider", "metric", "largest value", "limit", "result", "detail")


def case_data(case: str, night: Night, nights: Sequence[Night], past: Past) -> dict[str, Any]:
    """Everything the page shows of one case. ``nights`` and ``past`` run in parallel and end with the night shown."""
    processes = past.processes[-1]
    cases = {item.name: item for record in processes.records for item in record.cases}
    return {
        "case": case,
        "stands_for": cases[case].stands_for if case in cases else "",
        "skipped": "; ".join(processes.skip_reasons(case)),
        "tiles": [asdict(tile) for tile in tiles_of(case, past)],
        "history": {
            "nights": [
                _night_label(item, label, cut) for item, label, cut in zip(nights, past.labels, past.cuts, strict=True)
            ],
            "metrics": [_history_metric(case, past, *metric) for metric in HISTORY],
        },
        "series": _series_table(case, night, processes),
        "checks": {"headings": CHECK_HEADINGS, "numbers": (3, 4), "rows": _check_rows(case, processes)},
        "reproduce": f"python -m ci nightly --set {night.case_set} --case '{case}'",
    }


def _night_label(night: Night, label: str, cut: tuple[str, ...]) -> dict[str, Any]:
    return {
        "utc": night.created_utc.removesuffix("Z"),
        "label": f"{text.utc(night.created_utc)}, {label}",
        "red": night.exit_code != 0,
        "cut": "; ".join(cut),
    }


def _history_metric(case: str, past: Past, key: str, title: str, unit: str, lines: Sequence[Line]) -> dict[str, Any]:
    """Points are numbers: a history has a hundred thousand of them, of which a reader looks at a few."""
    drawn = [{"name": name, "points": list(_points(case, past, series, base))} for name, series, base in lines]
    return {"key": key, "title": title, "unit": unit, "lines": drawn}


def _points(case: str, past: Past, series: Series, base: Series | None) -> Iterator[dict[str, Any]]:
    for processes, values in zip(past.processes, past.grid.by_night(past.values(case, series, base)), strict=True):
        if values:
            yield {"median": statistics.median(values), "values": values}
        else:
            figure = processes.ratio_pct(series, base, case) if base else processes.figure(series, case)
            yield {"median": None, "reason": figure.reason}


def _series_table(case: str, night: Night, processes: Processes) -> dict[str, Any]:
    """A row of numbers for each series, and a note below it: the verdict's sentence, too long for a column."""
    verdicts = {verdict.key: verdict for verdict in night.verdicts if verdict.case == case}
    found = dict.fromkeys(processes.series_of(case))
    found |= dict.fromkeys(Series(item.metric, item.op, item.provider, item.contract) for item in verdicts.values())
    rows, notes = [], []
    for series in sorted(found, key=lambda item: (item.contract == "exact", item.provider != "recoverssm", item)):
        verdict = verdicts.get((series.metric, series.op, series.provider, case, series.contract))
        rows.append(_series_row(case, series, processes, verdict))
        notes.append(_series_note(verdict) or processes.figure(series, case).reason)
    return {"headings": SERIES_HEADINGS, "numbers": SERIES_NUMBERS, "rows": rows, "notes": notes}


def _series_row(case: str, series: Series, processes: Processes, verdict: Verdict | None) -> list[str]:
    line = processes.line(series, case)
    unit = line.unit if line else verdict.unit if verdict else ""
    figure = processes.figure(series, case)
    return [
        series.op,
        series.provider,
        series.metric,
        series.contract,
        _verdict_word(verdict),
        text.value_with_unit(figure.median, unit),
        text.span(figure, unit),
        str(figure.n) if figure.n == len(processes.records) else f"{figure.n} of {len(processes.records)}",
        text.MISSING if series.contract == "exact" else text.percent(figure.sd_pct, digits=2),
        text.size(line.moved_bytes) if line and line.read_bytes is not None else text.MISSING,
        text.percent(processes.roofline_pct(series, case).median),
        text.percent(processes.control_pct(series, case).median),
    ]


def _verdict_word(verdict: Verdict | None) -> str:
    if verdict is None:
        return text.MISSING
    known = f" ({verdict.known})" if verdict.known else ""
    return f"{VERDICT_MARKS[verdict.verdict]} {verdict.verdict}{known}" + ("" if verdict.gated else " (not gated)")


def _series_note(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    return "; ".join(part for part in (_change(verdict), verdict.reason) if part)


def _change(verdict: Verdict) -> str:
    if verdict.change_pct is None:
        return ""
    shown = text.percent(verdict.change_pct, signed=True)
    if verdict.change_low_pct is not None and verdict.change_high_pct is not None:
        low = text.percent(verdict.change_low_pct, signed=True)
        shown += f" (95 %: {low} to {text.percent(verdict.change_high_pct, signed=True)})"
    shown = f"{shown} since the base night"
    return shown + ("" if verdict.limit_pct is None else f", limit {text.percent(verdict.limit_pct)}")


def _check_rows(case: str, processes: Processes) -> list[list[str]]:
    return [
        [
            check.op,
            check.provider,
            check.metric,
            text.scientific(check.value),
            text.scientific(check.limit),
            "✓ pass" if check.passed else "✕ fail",
            check.detail,
        ]
        for check in derive.summarize_checks(processes.checks(case)).worst
    ]
