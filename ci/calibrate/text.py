"""Trust records and the table of rules in Markdown, for docs/trust.md."""

import math
from collections.abc import Sequence

from .benchmark import Row
from .trust import SeriesTrust, TrustRecord

MET = {True: "kept", False: "missed", None: "cannot be told"}
MOST_BLIND = 30  # of the blind series that are named
EFFECT_PCT = 3.0  # series blind to it are named


def trust_markdown(record: TrustRecord) -> str:
    """What one record says: promises, occasions, power, blind series, spread."""
    blind = record.blind(EFFECT_PCT)
    parts = [
        f"{record.gpu_model}, processes up to {record.newest_utc}; A/A set {record.data_sha256[:12]}, limits "
        f"{record.policy_sha256[:12]}, seed {record.seed}. A gate: {record.num_screen_blocks} blocks of four "
        f"processes, {record.num_confirm_blocks} fresh ones for suspects, false discoveries among them "
        f"{100 * record.rate:g} %.",
        _table(
            ("promise", "wanted", "found", ""),
            [(one.name, one.wanted, one.found, MET[one.met]) for one in record.targets],
        ),
        _table(
            ("occasion", "card", "code", "processes", "with a delay", "do not count"),
            [
                (
                    one.id,
                    one.card,
                    (one.commit or one.source_hash)[:8],
                    str(one.num_plain),
                    ", ".join(f"{count} +{pct} %" for pct, count in one.num_delayed.items()) or "none",
                    str(one.num_unsound),
                )
                for one in record.occasions
            ],
        ),
        f"False alarms of disjoint gates: {record.disjoint.num_with_alarm} of {record.disjoint.num_gates}"
        f"{_unsettled(record)}; exact 95 % upper bound {_percent(record.disjoint.upper_pct)}. Resampled "
        f"({record.resampled.label}): {record.resampled.num_with_alarm} of {record.resampled.num_gates} gates, "
        f"{record.resampled.num_with_suspects} of them with suspects. {_identical(record)}",
        _table(
            (
                "delay",
                "came out as",
                "against plain processes",
                "found, on the device",
                "found, synthetic",
                "series x gates",
            ),
            [
                (
                    f"{one.delay_pct:g} %",
                    f"{one.realised_pct:.2f} %",
                    f"{one.apart_pct:+.2f} %",
                    f"{one.real_pct:.1f} %",
                    f"{one.synthetic_pct:.1f} %",
                    f"{one.num_series} x {one.num_gates}",
                )
                for one in record.power
            ],
        )
        if record.power
        else "No process with a delay was collected, so nothing is known of what is found.",
        f"{len(blind)} of {len(record.series)} series are blind to {EFFECT_PCT:g} %"
        + (f", the worst {min(len(blind), MOST_BLIND)} of them here:" if blind else "."),
    ]
    if blind:
        parts.append(_table(_SERIES, [_series(one) for one in blind[:MOST_BLIND]]))
    return "\n\n".join([*parts, _spreads(record.series)])


_SERIES = ("provider", "op", "case", "median", "spread", "modes apart", "limit", "detectable", "without the floor")


def _series(one: SeriesTrust) -> tuple[str, ...]:
    return (
        one.provider,
        one.op,
        f"`{one.case}`",
        "–" if one.median_us is None else f"{one.median_us:.2f} us",
        _percent(one.process_sd_pct),
        _percent(one.modes_pct),
        _percent(one.limit_pct),
        _percent(one.detectable_pct),
        _percent(one.noise_detectable_pct),
    )


def _spreads(series: Sequence[SeriesTrust]) -> str:
    known = sorted(one.process_sd_pct for one in series if one.process_sd_pct is not None)
    if not known:
        return "No series has a spread: one process on each occasion."
    middle, nine_tenths = known[len(known) // 2], known[math.ceil(0.9 * len(known)) - 1]
    return (
        f"Spread of process medians on one occasion, over {len(known)} series: median {middle:.2f} %, nine of ten at "
        f"most {nine_tenths:.2f} %, worst {known[-1]:.2f} %. Every series is in the record."
    )


def rules_markdown(rows: Sequence[Row]) -> str:
    """One line for each rule."""
    delays = sorted({pct for row in rows for pct in row.found})
    heads = ("rule", "processes a side", "clean pairs with any alarm", "clean series called slower")
    lines = [
        (
            row.name,
            row.processes,
            f"{row.any_alarm_pct:.1f} %",
            f"{row.alarm_pct:.2f} %",
            *(f"{row.found_pct(pct):.1f} %" for pct in delays),
        )
        for row in rows
    ]
    pairs = f"{rows[0].clean_pairs} clean pairs, {rows[0].clean_cells} series of them."
    return f"{_table((*heads, *(f'+{pct:g} % found' for pct in delays)), lines)}\n\n{pairs}"


def _identical(record: TrustRecord) -> str:
    found = record.identical
    if not found.gates:
        return "No real gate with the same binaries on both sides was given."
    return (
        f"Real gates with the same binaries on both sides: {len(found.gates)} with {found.num_series} such series, of "
        f"which the screen suspected {found.num_suspects}, in {found.num_gates_with_suspects} gates (exact 95 % upper "
        f"bound {_percent(found.upper_pct)} of gates)."
    )


def _unsettled(record: TrustRecord) -> str:
    count = record.disjoint.num_unsettled
    return f", {count} with suspects that no processes were left to confirm" if count else ""


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(
        [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *(f"| {' | '.join(row)} |" for row in rows)]
    )
