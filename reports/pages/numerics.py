"""How exact the results are: errors of single calls against float64, and of states after thousands of chained steps."""

from collections.abc import Iterator, Sequence

from benchmarks.harness.records import Check
from reports import text
from reports.covering import Covered, covering, night_cell, raw_cells
from reports.derive import Series
from reports.document import Cell, Document, Section, Table, cells, heads
from reports.drawing import Chart, Line, Point
from reports.pages.documents import document_content
from reports.pages.page import Content, Page, Site

CHAINS = {"chain": "bounded gate", "chain_unbounded": "unbounded gate"}
HEADS = {"state_error": "heads written as usual", "slow_state_error": "heads written weakly"}
EARLY_STEPS, ALL_STEPS = 100, 10_000  # benchmarks/long_runs.py: growth is the error at the end over the early one
PROVIDERS = {"recoverssm": "RecoverSSM", "full_state": "full state"}
STATE_SIZES = (
    "std_0.1, std_1 and std_5 are one verify and one commit on states of that standard deviation; ulp_off_pct is "
    "how many elements of a bf16 state, in percent, are not the float64 state rounded to nearest."
)
ERRORS = ("out_error", "u_error", "state_error", "slow_state_error", "ulp_off_pct")


def load(site: Site) -> Content:
    return document_content(PAGE.name, numerics_document(site))


PAGE = Page(
    "numerics",
    "Numerics",
    "How far from float64 are outputs, records and states, and do errors grow over a long run?",
    load,
    ("document.js",),
    template="document",
)


def numerics_document(site: Site) -> Document:
    lead = (
        "Errors are relative Frobenius norms of the difference to the same computation in float64; lower is better. "
        "Every case is checked before it is timed, and one that fails has no time."
    )
    models = site.history.gpu_models()
    sections = [_section(site, model) for model in models]
    missing = Section("numerics", "Checks", missing="No night of a GPU is recorded.")
    return Document((lead,), tuple(sections) or (missing,))


def _section(site: Site, model: str) -> Section:
    nights = covering(site.history, model)
    slug, title = text.file_slug(model), text.gpu_name(model)
    if not nights:
        return Section(slug, title, missing="No record of its nights can be read.")
    return Section(
        slug,
        title,
        (),
        tuple(_chain_charts(slug, nights)),
        (_chains(site, nights), _worst(nights), _failures(nights), _history(site, model)),
        raw_cells(site.history, [covered.night.id for covered in nights], raw=site.raw),
    )


# ---- long runs


def _runs(nights: Sequence[Covered]) -> Iterator[tuple[Covered, str, str, str, str, str]]:
    """Night, case, dtype, op, metric and provider of every chained run."""
    for covered in nights:
        for case in covered.cases:
            for op in CHAINS:
                for metric in HEADS:
                    for provider in PROVIDERS:
                        figure = covered.processes.exact(Series(metric, op, provider, "exact"), case.name)
                        if figure.n or figure.reason != "not measured":
                            yield covered, case.name, case.state_dtype, op, metric, provider


def _chains(site: Site, nights: Sequence[Covered]) -> Table:
    rows = []
    for covered, case, _, op, metric, provider in _runs(nights):
        error = covered.processes.exact(Series(metric, op, provider, "exact"), case)
        growth = covered.processes.exact(Series(f"{metric}_growth", op, provider, "exact"), case)
        limits = [
            check
            for check in covered.processes.checks(case)
            if (check.op, check.provider, check.metric) == (op, provider, metric)
        ]
        rows.append(
            cells(
                case,
                CHAINS[op],
                HEADS[metric],
                PROVIDERS[provider],
                Cell(_known(error.median), hint=error.reason),
                text.scientific(limits[0].limit) if limits else text.MISSING,
                Cell(_growth(growth.median), hint=growth.reason),
                night_cell(site.history, covered.night, raw=site.raw),
            )
        )
    columns = heads(
        "case",
        "gate",
        "heads",
        "provider",
        f"#state error, after {ALL_STEPS:,} steps",
        "#limit",
        "#growth, since step 100",
        "night, UTC",
    )
    note = (
        "A weakly written head remembers longest; a bf16 state there stagnates, which is a property of the format. "
        "Growth 1 is none."
    )
    return Table("States after a long run", columns, tuple(rows), note, "No night followed a case over a long run.")


def _chain_charts(slug: str, nights: Sequence[Covered]) -> Iterator[Chart]:
    for dtype in dict.fromkeys(dtype for _, _, dtype, *_ in _runs(nights)):
        lines = []
        for covered, case, own, op, metric, provider in _runs(nights):
            error = covered.processes.exact(Series(metric, op, provider, "exact"), case).median
            growth = covered.processes.exact(Series(f"{metric}_growth", op, provider, "exact"), case).median
            if own != dtype or op != "chain" or not error or not growth:
                continue
            early = Point(EARLY_STEPS, error / growth, f"{case}, {EARLY_STEPS} steps: {error / growth:.1e}")
            late = Point(ALL_STEPS, error, f"{case}, {ALL_STEPS:,} steps: {error:.1e}")
            lines.append(Line(f"{PROVIDERS[provider]}, {HEADS[metric]}", (early, late)))
        if lines:
            yield Chart(
                f"{slug}-chain-{dtype}",
                f"State error over chained steps, {dtype} states, bounded gate",
                "steps (log scale)",
                "relative error (log scale, lower is better)",
                tuple(lines),
                x_log=True,
                y_log=True,
            )


# ---- single calls


def _worst(nights: Sequence[Covered]) -> Table:
    """Per op, provider and metric the check that came nearest to its limit, over all cases and processes."""
    worst: dict[tuple[str, str, str], tuple[float, Check, int]] = {}
    for check in _checks(nights):
        if check.metric not in ERRORS or check.op in CHAINS:
            continue
        key = (check.op, check.provider, check.metric)
        share = float("inf") if check.value is None else check.value / check.limit if check.limit else 0.0
        before = worst.get(key)
        number = (before[2] if before else 0) + 1
        worst[key] = (share, check, number) if before is None or share > before[0] else (*before[:2], number)
    rows = [
        cells(
            op,
            provider,
            metric,
            text.scientific(check.value),
            text.scientific(check.limit),
            Cell(
                text.percent(100 * share, digits=0) if share != float("inf") else "not finite",
                tone="" if check.passed else "bad",
            ),
            check.case,
            str(number),
        )
        for (op, provider, metric), (share, check, number) in sorted(worst.items())
    ]
    columns = heads("op", "provider", "error", "#largest", "#limit", "#of the limit", "in case", "#checks")
    sizes = any(op.startswith("std_") for op, *_ in worst)
    return Table("Largest errors of single calls", columns, tuple(rows), STATE_SIZES if sizes else "")


def _failures(nights: Sequence[Covered]) -> Table:
    checks = list(_checks(nights))
    failed = [check for check in checks if not check.passed]
    exact = sum(check.metric not in ERRORS for check in checks)
    rows = [
        cells(
            one.case,
            one.op,
            one.provider,
            one.metric,
            text.scientific(one.value),
            text.scientific(one.limit),
            Cell(f"✕ {one.detail}", tone="bad"),
        )
        for one in failed
    ]
    columns = heads("case", "op", "provider", "check", "#value", "#limit", "~what it saw")
    passed = (
        f"None of {len(checks):,} checks failed; {exact:,} of them compare bit for bit: untouched memory, null rows, "
        "plans, conv windows, bytes of the allocator."
    )
    return Table("Checks that failed", columns, tuple(rows), empty=passed)


def _checks(nights: Sequence[Covered]) -> Iterator[Check]:
    for covered in nights:
        for case in covered.cases:
            yield from covered.processes.checks(case.name)


def _history(site: Site, model: str) -> Table:
    """The largest error of each kind, night by night, newest first."""
    kinds = [("verify", "out_error"), ("verify", "u_error"), ("commit_state", "state_error")]
    rows = []
    for night in reversed(site.history.of(model)[-30:]):
        checks = site.history.processes(night).all_checks
        for dtype in ("fp32", "bf16"):
            found = [
                max(
                    (
                        one.value
                        for one in checks
                        if (one.op, one.metric, one.provider) == (op, metric, "recoverssm")
                        and one.value is not None
                        and one.case.endswith(dtype)
                    ),
                    default=None,
                )
                for op, metric in kinds
            ]
            if any(value is not None for value in found):
                rows.append(
                    cells(
                        night_cell(site.history, night, raw=site.raw),
                        night.case_set,
                        dtype,
                        *(_known(value) for value in found),
                    )
                )
    columns = heads(
        "night, UTC", "set", "states", "#verify, out_error", "#verify, u_error", "#commit_state, state_error"
    )
    return Table("Night by night: RecoverSSM's largest errors", columns, tuple(rows), folded=True)


def _known(value: float | None) -> str:
    """Of a computed value, which is missing where it is None; a check's None is no finite number."""
    return text.MISSING if value is None else text.scientific(value)


def _growth(value: float | None) -> str:
    return text.MISSING if value is None else text.number(value, 2)
