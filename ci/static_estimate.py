"""``ci static-estimate``: whether the static estimate of time ranks the variants of an op as a card did.

Times are those in a journal of ``ci tune``; what was timed is compiled anew, without a card.
"""

import json
import math
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from scipy import stats

from benchmarks.static.bounds import Estimate, Launch, estimate, load_cards

from .exits import BrokenEnvironmentError, CommandError, Exit, MissingDataError, UsageError
from .gpus import CPU, Gpu
from .processes import run_child

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = (sys.executable, "-m", "benchmarks.static.variants")
CAP_S = 3600.0
MIN_VARIANTS = 30  # fewer say little of a rank correlation
MIN_SPEARMAN = 0.8

_ERRORS: dict[int, type[CommandError]] = {
    Exit.USAGE: UsageError,
    Exit.MISSING: MissingDataError,
    Exit.BROKEN: BrokenEnvironmentError,
}


@dataclass(frozen=True, slots=True)
class Ranked:
    """A variant with its time and its estimate."""

    point: str
    candidate: str
    us: float
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Agreement:
    """Spearman's correlation of estimates with times; None where fewer than two variants or no difference make it so.

    Attributes:
        by_point: number of variants and correlation at each point, where bytes are the same for all.
        pooled: over all points, whose bytes differ: it says more of the points than of the variants.
        within: over all points, times and estimates in units of their point's medians: it says of the variants alone.
    """

    by_point: dict[str, tuple[int, float | None]]
    pooled: float | None
    within: float | None

    @property
    def num_variants(self) -> int:
        return sum(number for number, _ in self.by_point.values())

    @property
    def judged(self) -> float | None:
        """``within``, where there are enough variants."""
        return self.within if self.num_variants >= MIN_VARIANTS else None

    @property
    def is_kept(self) -> bool:
        """Whether the estimate may stand on a page."""
        return self.judged is not None and self.judged >= MIN_SPEARMAN


def compile_variants(
    journal: Path, arch: str, folder: Path, console: Console, program: Sequence[str] = PROGRAM
) -> tuple[Exit, dict[str, Any]]:
    """Compile in a process of its own, which sees no GPU.

    Raises:
        UsageError, MissingDataError, BrokenEnvironmentError: there is nothing to estimate.
        Interrupted: the compiling process is gone.
    """
    out = folder.resolve() / f"variants-{journal.stem}-{arch}.json"
    out.unlink(missing_ok=True)
    arguments = ["--journal", str(journal.resolve()), "--arch", arch, "--out", str(out)]
    arguments += ["--cache", str(folder.resolve() / "cache")]
    env = Gpu(CPU, "").child_env({name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"})

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    ended = run_child([*program, *arguments], env=env, cwd=ROOT, cap_s=CAP_S, on_line=say)
    if not out.exists():
        said = ended.tail[-1] if ended.tail else ended.describe(CAP_S)
        raise _ERRORS.get(ended.code, BrokenEnvironmentError)(said)
    return Exit(ended.code), json.loads(out.read_text(encoding="utf-8"))


def rank(found: Mapping[str, Any]) -> list[Ranked]:
    """Estimates of all variants that compile. Raises UsageError without a card for the architecture."""
    cards = load_cards()
    if found["arch"] not in cards:
        raise UsageError(
            f"--arch: {found['arch']}: no card in benchmarks/static/cards.toml, which has {', '.join(cards)}"
        )
    return [
        Ranked(
            entry["point"],
            entry["candidate"],
            entry["us"],
            estimate(
                entry["figures"],
                Launch(entry["num_programs"], entry["num_tokens"], entry["num_bytes"]),
                cards[found["arch"]],
            ),
        )
        for entry in found["variants"]
        if entry["figures"]
    ]


def agreement(ranked: Sequence[Ranked]) -> Agreement:
    """How well estimates rank what was timed."""
    points: dict[str, list[Ranked]] = {}
    for one in ranked:
        points.setdefault(one.point, []).append(one)
    pairs = {name: ([one.us for one in some], [one.estimate.us for one in some]) for name, some in points.items()}
    by_point = {name: (len(times), _spearman(times, estimates)) for name, (times, estimates) in pairs.items()}
    pooled = _spearman([one.us for one in ranked], [one.estimate.us for one in ranked])
    scaled = [(_in_medians(times), _in_medians(estimates)) for times, estimates in pairs.values()]
    within = _spearman([us for times, _ in scaled for us in times], [us for _, estimates in scaled for us in estimates])
    return Agreement(by_point, pooled, within)


def _in_medians(values: Sequence[float]) -> list[float]:
    median = statistics.median(values)
    return [value / median for value in values]


def _spearman(times: Sequence[float], estimates: Sequence[float]) -> float | None:
    if len(set(times)) < 2 or len(set(estimates)) < 2:
        return None
    value = float(stats.spearmanr(times, estimates).statistic)
    return value if math.isfinite(value) else None


def show(found: Mapping[str, Any], ranked: Sequence[Ranked], agreed: Agreement, console: Console) -> None:
    """A line per variant, then per point, then what follows."""

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    card = load_cards()[found["arch"]]
    say(f"estimates for {card.name} ({found['arch']}), no measurements; times of {found['card']}")
    for one in sorted(ranked, key=lambda one: (one.point, one.us)):
        say(
            f"{one.point}: {one.candidate}: {one.us:.2f} us timed, {one.estimate.us:.2f} us estimated, "
            f"{one.estimate.binds} binds"
        )
    for entry in found["variants"]:
        if entry["failure"]:
            say(f"problem: {entry['point']}: {entry['candidate']}: does not compile: {entry['failure']}")
    for point, (number, value) in agreed.by_point.items():
        say(f"{point}: {number} variants, Spearman {_shown(value)}")
    say(f"all points together: {len(ranked)} variants, Spearman {_shown(agreed.pooled)}")
    say(f"relative to the median of their point: Spearman {_shown(agreed.within)}; {_verdict(agreed)}")


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:+.2f}"


def _verdict(agreed: Agreement) -> str:
    if agreed.judged is None:
        return f"not judged, for {MIN_VARIANTS} variants that differ are needed"
    return f"the estimate {'may stand' if agreed.is_kept else 'does not stand'} on a page (limit {MIN_SPEARMAN})"


def as_json(found: Mapping[str, Any], ranked: Sequence[Ranked], agreed: Agreement) -> dict[str, Any]:
    """Everything, with the verdict."""
    variants = [asdict(one) | {"estimated_us": one.estimate.us, "binds": one.estimate.binds} for one in ranked]
    facts: dict[str, Any] = {
        "judged": agreed.judged,
        "kept": agreed.is_kept,
        "min_variants": MIN_VARIANTS,
        "limit": MIN_SPEARMAN,
    }
    return {"arch": found["arch"], "card": found["card"], **asdict(agreed), **facts, "variants": variants}


def exit_code(code: Exit, agreed: Agreement) -> Exit:
    """0 where the estimate was judged, whatever came out; the compiling program's own code where that is worse."""
    return code if code != Exit.PASS else Exit.PASS if agreed.judged is not None else Exit.MISSING
