"""From a report to series: the static metrics of each op of each case on each architecture. Imports no torch.

Figures are those of ops that are one launch; of the others the launches are counted. Where alignment makes several
kernels of one op, the worst of each figure counts.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 2  # of a report; version 1 had no source lines

Figures = Mapping[str, Any]
Entry = Mapping[str, Any]  # of a report's "kernels"
Key = tuple[str, str, str]  # architecture, "provider/op", case
Worst = Callable[[Iterable[int]], int]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a kernel.

    Attributes:
        what: in words, after a number. read: None where a missing tool would have given it.
        worst: of several kernels of an op. located: the entry of a report's "lines" that says where it comes from.
    """

    what: str
    unit: str
    read: Callable[[Figures], int | None]
    worst: Worst = max
    located: str = ""


def _figure(name: str) -> Callable[[Figures], int | None]:
    return lambda figures: figures[name]


def _in_code(count: Callable[[Mapping[str, Any]], int]) -> Callable[[Figures], int | None]:
    return lambda figures: None if figures["instructions"] is None else count(figures["instructions"])


def _of_class(*names: str) -> Callable[[Figures], int | None]:
    return _in_code(lambda code: sum(code["by_class"][name] for name in names))


def _shared_bytes(figures: Figures) -> int | None:
    static = figures["static_shared_bytes"]
    return None if static is None else static + figures["dynamic_shared_bytes"]


METRICS: Mapping[str, Metric] = {
    "spill_instructions": Metric(
        "loads and stores of spilled registers", "instructions", _of_class("local_load", "local_store"), max, "spills"
    ),
    "stack_bytes": Metric("bytes of stack", "bytes", _figure("stack_bytes"), max, "spills"),
    "wide_loads": Metric(
        "16-byte loads",
        "instructions",
        _in_code(lambda code: code["by_width"]["global_load"].get("16", 0)),
        min,
        "wide_loads",
    ),
    "tensor_core_instructions": Metric(
        "tensor-core instructions", "instructions", _of_class("tensor_core"), min, "tensor_core"
    ),
    "barriers": Metric("barriers", "instructions", _of_class("barrier"), max, "barriers"),
    "ctas_per_sm": Metric("CTAs that fit an SM", "CTAs", _figure("ctas_per_sm"), min),
    "registers": Metric("registers a thread", "registers", _figure("registers")),
    "shared_bytes": Metric("bytes of shared memory", "bytes", _shared_bytes),
    "code_bytes": Metric("bytes of code", "bytes", _figure("code_bytes")),
    "code_instructions": Metric("instructions", "instructions", _in_code(lambda code: code["total"])),
    "code_fma": Metric("FMA instructions", "instructions", _of_class("fma")),
    "code_mufu": Metric("special-function instructions", "instructions", _of_class("mufu")),
    "code_shuffles": Metric("shuffles", "instructions", _of_class("shuffle")),
    "code_global_loads": Metric("global loads", "instructions", _of_class("global_load")),
    "code_global_stores": Metric("global stores", "instructions", _of_class("global_store")),
}

LAUNCHES = "launches"
"""The metric of ops, beside those of kernels: how many kernels one call launches."""


@dataclass(slots=True)
class Compiled:
    """One op of one case on one architecture; ``kernels`` only where a call is one launch."""

    launches: int
    kernels: list[Entry] = field(default_factory=list)

    @property
    def failure(self) -> str | None:
        """Why a kernel of it does not compile."""
        return next((entry["failure"] for entry in self.kernels if entry["failure"]), None)

    def value(self, metric: str) -> int | None:
        """None where a kernel does not compile, or a missing tool would have given the figure."""
        if self.failure:
            return None
        values = [METRICS[metric].read(entry["figures"]) for entry in self.kernels]
        known = [value for value in values if value is not None]
        return METRICS[metric].worst(known) if known and len(known) == len(values) else None

    def places(self, metric: str) -> list[Mapping[str, Any]]:
        """Source lines ("at", "text", "count") of what the metric counts, most first, in the kernel that is worst."""
        read, worst = METRICS[metric].read, self.value(metric)
        entry = next((one for one in self.kernels if one["figures"] and read(one["figures"]) == worst), None)
        return [] if entry is None else list(entry["lines"].get(METRICS[metric].located, ()))

    @property
    def source(self) -> str:
        """Where its kernel is defined, or its kernels are."""
        return ", ".join(sorted({entry["source"] for entry in self.kernels}))


def compiled_ops(report: Mapping[str, Any]) -> dict[Key, Compiled]:
    """Every op and case of a report, in its order.

    A kernel that only ops of several launches launch, as when a commit makes its plan in memory of its own, counts with
    the op that launches a kernel of that name alone.
    """
    found = {
        (arch, series, case): Compiled(number)
        for arch, by_series in report["num_launches"].items()
        for series, by_case in by_series.items()
        for case, number in by_case.items()
    }
    alone: dict[tuple[str, str, str], Compiled] = {}  # by architecture, kernel and case
    others = []
    for entry in report["kernels"]:
        keys = [(entry["arch"], series, case) for series in entry["launched_by"] for case in entry["cases"]]
        # Kernels name ops and cases apart: not each of the cases need launch the kernel by each of the ops.
        single = [key for key in keys if key in found and found[key].launches == 1]
        for key in single:
            found[key].kernels.append(entry)
            alone.setdefault((entry["arch"], entry["kernel"], key[2]), found[key])
        others += [] if single else [entry]
    for entry in others:
        for case in entry["cases"]:
            if op := alone.get((entry["arch"], entry["kernel"], case)):
                op.kernels.append(entry)
    return found


def changed_place(metric: str, before: Compiled, after: Compiled, *, more: bool) -> str:
    """The line that gained or lost most of what the metric counts, with its text; else where the kernel is defined.

    Lines are told apart by their text, for their numbers change with every line above them; those alike are all named.
    """
    places = (before.places(metric), after.places(metric))
    old, new = (Counter[str](), Counter[str]())
    for counts, found in zip((old, new), places, strict=True):
        for place in found:
            counts[place["text"]] += place["count"]
    changed = new - old if more else old - new
    if not changed:
        return after.source
    ((text, _),) = changed.most_common(1)
    here, there = ([place["at"] for place in found if place["text"] == text] for found in reversed(places))
    return f"{', '.join(here)}: {text}" if here else f"{', '.join(there)} of the base: {text}"
