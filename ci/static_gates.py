"""Judges one static report against another: what a compiled kernel lost. Exact, no thresholds.

Kernels are held against each other by what launches them (architecture, op, case), so that a new launch row or a new
kernel for the same work is judged too. Where alignment makes several kernels of one op, the worst of each counts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .exits import MissingDataError

Figures = Mapping[str, Any]
Key = tuple[str, str, str]  # architecture, "provider/op", case


def _by_class(name: str) -> Callable[[Figures], int]:
    return lambda figures: int(figures["instructions"]["by_class"][name])


def _local(figures: Figures) -> int:
    return _by_class("local_load")(figures) + _by_class("local_store")(figures)


def _wide_loads(figures: Figures) -> int:
    return int(figures["instructions"]["by_width"]["global_load"].get("16", 0))


@dataclass(frozen=True, slots=True)
class Gate:
    """``read`` gives the figure; ``less_is_worse`` says which way it regresses."""

    what: str
    read: Callable[[Figures], int]
    less_is_worse: bool = False


GATES = (
    Gate("loads and stores of spilled registers", _local),
    Gate("bytes of stack", lambda figures: int(figures["stack_bytes"])),
    Gate("barriers", _by_class("barrier")),
    Gate("16-byte loads", _wide_loads, less_is_worse=True),
    Gate("tensor-core instructions", _by_class("tensor_core"), less_is_worse=True),
    Gate("CTAs that fit an SM", lambda figures: int(figures["ctas_per_sm"]), less_is_worse=True),
)


def regressions(base: Mapping[str, Any], head: Mapping[str, Any]) -> list[str]:
    """A sentence for every figure of ``head`` that is worse than in ``base``; cases that share it are one sentence.

    Raises:
        MissingDataError: another compiler, nothing in common, or figures that a missing tool left out.
    """
    if base["compiler"]["triton"] != head["compiler"]["triton"]:
        versions = [report["compiler"]["triton"] for report in (base, head)]
        raise MissingDataError(f"base was compiled by Triton {versions[0]}, this by {versions[1]}: not comparable")
    before, after = _one_kernel_ops(base), _one_kernel_ops(head)
    common = [key for key in after if key in before]
    if not common:
        raise MissingDataError("base has no op, case and architecture in common with this")
    found: dict[str, list[str]] = {}
    for key in common:
        arch, series, case = key
        for change in _worse(before[key], after[key]):
            names = ", ".join(sorted({f"recoverssm/kernels/{entry['kernel']}.py" for entry in after[key]}))
            found.setdefault(f"{arch} {series}: {change} ({names})", []).append(case)
    launches = _launches(base)
    for key, number in _launches(head).items():
        if number > (old := launches.get(key, number)):
            found.setdefault(f"{key[0]} {key[1]}: {old} launches a call became {number}", []).append(key[2])
    return [
        f"{sentence}: {cases[0]}" + (f" and {len(cases) - 1} more" if cases[1:] else "")
        for sentence, cases in found.items()
    ]


def _worse(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for gate in GATES:
        worst = min if gate.less_is_worse else max
        old, new = (worst(gate.read(entry["figures"]) for entry in entries) for entries in (before, after))
        if new < old if gate.less_is_worse else new > old:
            yield f"{old} {gate.what} became {new}"


def _one_kernel_ops(report: Mapping[str, Any]) -> dict[Key, list[Mapping[str, Any]]]:
    """Kernels of each op and case that is one launch; those that were not compiled are left out."""
    found: dict[Key, list[Mapping[str, Any]]] = {}
    launches = _launches(report)
    for entry in report["kernels"]:
        if entry["figures"] is None:
            continue
        if entry["figures"]["instructions"] is None or entry["figures"]["registers"] is None:
            raise MissingDataError("figures are missing that nvdisasm and cuobjdump give: nothing can be judged")
        keys = [(entry["arch"], series, case) for series in entry["launched_by"] for case in entry["cases"]]
        for key in keys:
            if launches.get(key) == 1:
                found.setdefault(key, []).append(entry)
    return found


def _launches(report: Mapping[str, Any]) -> dict[Key, int]:
    return {
        (arch, series, case): number
        for arch, by_series in report["num_launches"].items()
        for series, by_case in by_series.items()
        for case, number in by_case.items()
    }
