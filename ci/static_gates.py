"""Judges one static report against another by the limits of ``thresholds.toml``: what a compiled kernel lost.

Kernels are held against each other by what launches them (architecture, op, case), so that a new launch row or a new
kernel for the same work is judged too.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.harness.stats.verdict import Limits, Series, judge_night
from benchmarks.static.series import LAUNCHES, METRICS, Compiled, Key, changed_place, compiled_ops

from .config import Thresholds
from .exits import MissingDataError


def regressions(base: Mapping[str, Any], head: Mapping[str, Any], thresholds: Thresholds) -> list[str]:
    """A sentence for every figure of ``head`` that is worse than in ``base``; cases that share it are one sentence.

    Raises:
        MissingDataError: another compiler, nothing in common, or figures that a missing tool left out.
    """
    if base["compiler"]["triton"] != head["compiler"]["triton"]:
        versions = [report["compiler"]["triton"] for report in (base, head)]
        raise MissingDataError(f"base was compiled by Triton {versions[0]}, this by {versions[1]}: not comparable")
    before, after = compiled_ops(base), compiled_ops(head)
    common = [key for key in after if key in before]
    if not common:
        raise MissingDataError("base has no op, case and architecture in common with this")
    found: dict[str, list[str]] = {}
    for key in common:
        for change in _worse(key, before[key], after[key], thresholds):
            found.setdefault(f"{key[0]} {key[1]}: {change}", []).append(key[2])
    return [
        f"{sentence}: {cases[0]}" + (f" and {len(cases) - 1} more" if cases[1:] else "")
        for sentence, cases in found.items()
    ]


def _worse(key: Key, before: Compiled, after: Compiled, thresholds: Thresholds) -> Iterator[str]:
    provider, op = key[1].split("/")

    def regressed(metric: str, old: int, new: int) -> Limits | None:
        """The limits that a change breaks."""
        limits = thresholds.limits_for((metric, op, provider, key[2], "static"), gpu_model=key[0])
        (judgement,) = judge_night([Series([new], [old], limits, exact=True)])
        return limits if limits.gated and judgement.verdict == "regressed" else None

    if regressed(LAUNCHES, before.launches, after.launches):
        yield f"{before.launches} launches a call became {after.launches}"
    if not (before.kernels and after.kernels) or before.failure or after.failure:
        return  # several launches; or what does not compile, which is told as a problem
    for metric, about in METRICS.items():
        old, new = before.value(metric), after.value(metric)
        if old is None or new is None:
            raise MissingDataError("figures are missing that nvdisasm and cuobjdump give: nothing can be judged")
        if limits := regressed(metric, old, new):
            band = f", more than {limits.band_pct:g} %" if limits.band_pct else ""
            place = changed_place(metric, before, after, more=new > old)
            yield f"{old} {about.what} became {new}{band} ({place})"
