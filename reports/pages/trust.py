"""How often the gate is wrong, what it finds, and to what it is blind, by the trust record of each GPU model."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from ci.calibrate.trust import SeriesTrust, TrustRecord
from reports import text
from reports.document import Cell, Document, Section, Table, cells, heads
from reports.drawing import Chart, Line, Point
from reports.pages.documents import document_content
from reports.pages.page import Content, Page, Site
from reports.trust_records import Trust

MET = {True: ("✓ kept", "good"), False: ("✕ missed", "bad"), None: ("? cannot be told", "warn")}
BLIND_PCT = 3.0  # series blind to it are listed
HOW = "python -m ci calibrate collect, publish and score (docs/trust.md)"


def load(site: Site) -> Content:
    trust = site.trust
    if not trust.records and not trust.damaged:
        return Content(missing=f"No trust record is there yet; it is written by {HOW}.")
    raw = [(f"files/trust/{path.name}", path.read_bytes()) for path, _ in trust.records]
    return document_content(PAGE.name, trust_document(trust), raw)


PAGE = Page(
    "trust",
    "Trust",
    "How often is the gate wrong, what does it find, and to what is it blind?",
    load,
    ("document.js",),
    template="document",
)


def trust_document(trust: Trust) -> Document:
    """The newest record of each GPU model; older ones and what could not be read are named."""
    sections = [section for path, record in trust.newest() for section in _sections(path, record)]
    if trust.older():
        links = tuple(_raw(path) for path, _ in trust.older())
        sections.append(Section("older", "Older records", links=links))
    if trust.damaged:
        sections.append(Section("damaged", "Left out", missing="; ".join(trust.damaged)))
    lead = (
        "Gates are made of recorded processes of the same code, with none or a known delay. The last word is the exact "
        "bound; what is resampled is a model estimate."
    )
    return Document((lead,), tuple(sections))


def _raw(path: Path) -> Cell:
    return Cell(path.name, f"files/trust/{path.name}")


def _sections(path: Path, record: TrustRecord) -> Iterator[Section]:
    slug, name = text.file_slug(record.gpu_model), text.gpu_name(record.gpu_model)
    lead = (
        f"Processes up to {text.utc(record.newest_utc)}; A/A set {record.data_sha256[:12]}, limits "
        f"{record.policy_sha256[:12]}, seed {record.seed}. A gate: {record.num_screen_blocks} blocks of four "
        f"processes, {record.num_confirm_blocks} fresh ones for suspects, false discoveries among them "
        f"{100 * record.rate:g} %."
    )
    promises = (_promises(record), _alarms(record))
    yield Section(slug, f"{name}: what is promised", (lead,), tables=promises, links=(_raw(path),))
    yield Section(f"{slug}-found", f"{name}: what is found", (), _charts(record), (_power(record),))
    blind = record.blind(BLIND_PCT)
    shares = ", ".join(f"{_share(pct)} of series to {effect} %" for effect, pct in record.blind_pct.items())
    listed = _series(f"Series blind to {BLIND_PCT:g} %", blind, note=f"Blind: {shares}." if shares else "")
    everything = _series(f"All {len(record.series)} series, worst first", record.series, folded=True)
    yield Section(f"{slug}-blind", f"{name}: what is not", tables=(listed, everything))
    yield Section(f"{slug}-data", f"{name}: how loud it was", tables=(_spread(record.series), _occasions(record)))


def _promises(record: TrustRecord) -> Table:
    rows = [
        cells(one.name, one.wanted, one.found, Cell(MET[one.met][0], tone=MET[one.met][1])) for one in record.targets
    ]
    return Table("Promises", heads("promise", "wanted", "found", "result"), tuple(rows))


def _alarms(record: TrustRecord) -> Table:
    disjoint, resampled, same = record.disjoint, record.resampled, record.identical
    occasions = [
        cells(f"resampled, occasion {name}", text.MISSING, text.MISSING, text.MISSING, _share(pct), text.MISSING)
        for name, pct in resampled.by_occasion_pct.items()
    ]
    rows = (
        cells(
            "disjoint gates: no process in two of them",
            str(disjoint.num_gates),
            f"{disjoint.num_with_suspects}, {disjoint.num_unsettled} unsettled",
            str(disjoint.num_with_alarm),
            _share(100 * disjoint.num_with_alarm / disjoint.num_gates) if disjoint.num_gates else text.MISSING,
            _share(disjoint.upper_pct),
        ),
        cells(
            f"resampled: {resampled.label}",
            str(resampled.num_gates),
            str(resampled.num_with_suspects),
            str(resampled.num_with_alarm),
            _share(resampled.rate_pct),
            Cell("none claimed", hint="processes are used again and again"),
        ),
        *occasions,
        cells(
            f"real gates with unchanged binaries: {same.num_series} series",
            str(len(same.gates)),
            str(same.num_gates_with_suspects),
            Cell("not confirmed", hint="these series are screened only"),
            text.MISSING,
            _share(same.upper_pct),
        ),
    )
    columns = heads(
        "~gates of the code against itself", "#gates", "#with suspects", "#with alarm", "#rate", "#95 % bound, at most"
    )
    return Table("False alarms", columns, rows, note="No alarm in n gates proves no more than a rate below about 3/n.")


def _power(record: TrustRecord) -> Table:
    rows = [
        cells(
            f"+{one.delay_pct:g} %",
            text.percent(one.realised_pct, digits=2),
            text.percent(one.apart_pct, signed=True, digits=2),
            text.percent(one.real_pct),
            text.percent(one.synthetic_pct),
            f"{one.points_apart:.1f}",
            f"{one.num_series} × {one.num_gates}",
        )
        for one in record.power
    ]
    columns = heads(
        "delay asked for",
        "#came out as",
        "#against plain processes",
        "#found, on the device",
        "#found, synthetic",
        "#points apart",
        "#series × gates",
    )
    return Table("Slowdowns found", columns, tuple(rows), empty="No process with a delay was collected.")


def _series(title: str, series: Sequence[SeriesTrust], *, note: str = "", folded: bool = False) -> Table:
    delays = sorted({delay for one in series for delay in one.found_pct}, key=float)
    columns = heads(
        "case",
        "op",
        "provider",
        "gated",
        "#median, µs",
        "#spread, sd of processes",
        "#limit",
        "#detectable",
        "#without the floor",
        *(f"#+{delay} % found" for delay in delays),
    )
    rows = [
        cells(
            one.case,
            one.op,
            one.provider,
            "yes" if one.gated else "no",
            text.micros(one.median_us),
            text.percent(one.process_sd_pct, digits=2),
            text.percent(one.limit_pct, digits=2),
            text.percent(one.detectable_pct, digits=2),
            text.percent(one.noise_detectable_pct, digits=2),
            *(_share(one.found_pct.get(delay)) for delay in delays),
        )
        for one in series
    ]
    return Table(title, columns, tuple(rows), note, empty="No series.", folded=folded)


def _spread(series: Sequence[SeriesTrust]) -> Table:
    by_op: dict[tuple[str, str], list[float]] = {}
    for one in series:
        if one.process_sd_pct is not None:
            by_op.setdefault((one.op, one.provider), []).append(one.process_sd_pct)
    rows = [
        cells(
            op,
            provider,
            str(len(found)),
            text.percent(min(found), digits=2),
            text.percent(sorted(found)[len(found) // 2], digits=2),
            text.percent(max(found), digits=2),
        )
        for (op, provider), found in sorted(by_op.items())
    ]
    columns = heads("op", "provider", "#series", "#quietest", "#middle", "#loudest")
    note = "Standard deviation of process medians on one occasion, in percent of their mean."
    return Table("Spread between processes", columns, tuple(rows), note, "No series has a spread.")


def _occasions(record: TrustRecord) -> Table:
    rows = [
        cells(
            one.id,
            text.utc(one.began_utc),
            f"#{one.card[:8]}",
            text.short_commit(one.commit),
            str(one.num_plain),
            ", ".join(f"{count} of +{delay} %" for delay, count in one.num_delayed.items()) or "none",
            str(one.num_unsound),
        )
        for one in record.occasions
    ]
    columns = heads("occasion", "began", "card", "commit", "#processes", "with a delay", "#do not count")
    return Table("Occasions: one start of one machine each", columns, tuple(rows))


def _charts(record: TrustRecord) -> tuple[Chart, ...]:
    slug = text.file_slug(record.gpu_model)
    shares = {
        "delay on the device": [one.real_pct for one in record.power],
        "synthetic": [one.synthetic_pct for one in record.power],
    }
    delays = [one.delay_pct for one in record.power]
    found = [
        Line(name, tuple(Point(x, y, f"+{x:g} %: {y:.1f} %") for x, y in zip(delays, values, strict=True)))
        for name, values in shares.items()
    ]
    power = Chart(
        f"{slug}-power",
        "Slowdowns found, all series",
        "delay of one series, %",
        "gates that find it, % (higher is better)",
        tuple(found),
    )
    known = sorted(one.detectable_pct for one in record.series if one.detectable_pct is not None)
    curve = [Point(pct, 100 * (index + 1) / len(record.series), f"{pct:.2f} %") for index, pct in enumerate(known)]
    detectable = Chart(
        f"{slug}-detectable",
        "What the whole gate detects",
        "slowdown found with 80 % power, % (lower is better)",
        "series, % of all",
        (Line("series", tuple(curve)),),
        x_log=True,
        note=f"{len(record.series) - len(known)} of {len(record.series)} series are left out: the data cannot tell.",
    )
    return power, detectable


def _share(pct: float | None) -> str:
    return text.MISSING if pct is None or not math.isfinite(pct) else text.percent(pct, digits=2)
