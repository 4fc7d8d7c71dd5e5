"""The words and figures that all outputs of a gate share; plain text, not yet escaped for any of them."""

from collections.abc import Sequence
from typing import NamedTuple

from ci.config import EXACT_CONTRACTS
from ci.gate.result import Finding, GateResult, GateVerdict
from ci.judging import URGENCY

QUIET = ("unchanged", "new")  # counted, not listed: nothing about them needs a reader
UNDECIDED = ("inconclusive", "blind")  # nor about these, where they could fail nothing
OUTCOMES = {
    "passed": "passed",
    "regressed": "failed",
    "incomplete": "incomplete",
    "invalid": "invalid",
    "broken": "did not run",
}
SHORT_HASH = 10


class Listed(NamedTuple):
    """Verdicts to show, and how many there are in all."""

    shown: Sequence[GateVerdict]
    total: int

    @property
    def left_out(self) -> str:
        """A sentence where not all are shown; empty else."""
        if len(self.shown) == self.total:
            return ""
        return f"{len(self.shown)} of {self.total} shown, strongest evidence first; verdict.json has all"


def ranked(verdicts: Sequence[GateVerdict]) -> list[GateVerdict]:
    """What fails first; then most urgent, strongest evidence, largest change."""

    def rank(v: GateVerdict) -> tuple[object, ...]:
        evidence = min((p for p in (v.q, v.p) if p is not None), default=1.0)
        return not v.fails, not v.gated, URGENCY.index(v.verdict), evidence, -abs(v.change_pct or 0.0), v.key

    return sorted(verdicts, key=rank)


def notable(result: GateResult, rows: int) -> Listed:
    """Verdicts that somebody should read, at most ``rows``."""
    found = [v for v in ranked(result.verdicts) if not _is_quiet(v)]
    return Listed(found[:rows], len(found))


def _is_quiet(v: GateVerdict) -> bool:
    return (v.verdict in QUIET and v.known != "fixed") or (v.verdict in UNDECIDED and not v.gated)


def headline(result: GateResult) -> str:
    """The outcome with what decides it: ``failed: 3 regressed of 214 series``."""
    failing = [v for v in result.verdicts if v.fails]
    worst = [f for f in result.findings if f.exit_code and not f.cleared_by]
    reasons = []
    if failing:
        names = {name: sum(v.verdict == name for v in failing) for name in URGENCY}
        counted = ", ".join(f"{count} {name}" for name, count in names.items() if count)
        reasons.append(f"{counted} of {len(result.verdicts)} series")
    reasons += [", ".join(dict.fromkeys(finding.kind.replace("-", " ") for finding in worst))] if worst else []
    text = OUTCOMES[result.outcome]
    return f"{text}: {'; '.join(reasons)}" if reasons else text


def totals(result: GateResult) -> str:
    """How many series have each verdict, and how many of them decide nothing."""
    counts = result.counts()
    parts = [f"{counts[name]} {name}" for name in URGENCY if counts.get(name)]
    shown = sum(not v.gated for v in result.verdicts)
    parts += [f"{shown} not gated"] if shown else []
    identical = sum(v.identical for v in result.verdicts)
    parts += [f"{identical} of identical binaries"] if identical else []
    return ", ".join(parts) or "no series"


def sides(result: GateResult) -> str:
    """Which commits were held against each other."""
    head, base = (commit[:SHORT_HASH] for commit in (result.head.commit, result.base.commit))
    return f"head {head} against base {base}: {distance(result)}"


def distance(result: GateResult) -> str:
    """How the base was found, and how far it is."""
    return f"{result.base_found}, {result.distance} commit{'' if result.distance == 1 else 's'} apart"


def setting(result: GateResult) -> str:
    """Card, versions, set and blocks."""
    counts = sorted(result.n_blocks.items(), reverse=True)
    blocks = f"blocks: {', '.join(f'{count} in {stage}' for stage, count in counts)}"
    parts = [result.gpu_model or "no card", result.environment, f"set {result.case_set}", blocks, f"seed {result.seed}"]
    return "; ".join(part for part in parts if part)


def name_of(v: GateVerdict) -> str:
    """The verdict as a reader should see it."""
    if v.known == "acknowledged":
        return "acknowledged"
    word = f"{v.verdict} (fixed)" if v.known == "fixed" else v.verdict
    return word if v.gated else f"{word}, not gated"


def series_of(v: GateVerdict, gpu_model: str = "") -> str:
    """Its name; the card only where it is not the gate's."""
    name = f"{v.metric}/{v.op}/{v.provider}/{v.case}/{v.contract}"
    return name if v.gpu_model == gpu_model else f"{name} on {v.gpu_model}"


def value_of(value: float | None, v: GateVerdict) -> str:
    """A value in its unit."""
    if value is None:
        return ""
    exact = v.contract in EXACT_CONTRACTS
    if v.decimals is None and exact:
        number = f"{value:,.0f}" if value == int(value) else f"{value:.4g}"
    else:
        number = f"{value:,.{2 if v.decimals is None else v.decimals}f}"
    return number if v.unit == "none" else f"{number} {v.unit}"


def change_of(v: GateVerdict) -> str:
    """The change with its interval."""
    if v.change_pct is None:
        return ""
    text = f"{v.change_pct:+.2f} %"
    if v.low_pct is None or v.high_pct is None or v.contract in EXACT_CONTRACTS:
        return text
    return f"{text} ({v.low_pct:+.2f}..{v.high_pct:+.2f})"


def reason_of(v: GateVerdict) -> str:
    return "; ".join(part for part in (v.reason, v.known_reason) if part)


def finding_of(finding: Finding) -> str:
    """One line: what, and who cleared it. The message is complete on its own."""
    return f"{finding.message}; cleared by {finding.cleared_by}" if finding.cleared_by else finding.message
