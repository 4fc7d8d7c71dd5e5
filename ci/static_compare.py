"""``ci compare --static A B``: what differs between two builds, kernel by kernel. Judges nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.static.series import METRICS, Entry, compiled_ops

from .exits import MissingDataError
from .static import REPORT, read_report

_FIGURES = ("registers", "stack_bytes", "shared_bytes", "ctas_per_sm", "code_bytes", "code_instructions")


@dataclass(slots=True)
class Difference:
    """One kernel in both builds.

    Attributes:
        ids, kernels: in A and B; they differ where other constants or another kernel do the same work.
        changed: figures and classes of instructions, those of loads and stores by bytes per thread too, in A and B.
        failures: why it does not compile, in A and B.
    """

    arch: str
    ids: tuple[str, str]
    kernels: tuple[str, str]
    same_binary: bool
    changed: dict[str, tuple[int, int]] = field(default_factory=dict)
    failures: tuple[str | None, str | None] = (None, None)
    cases: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Comparison:
    """Every kernel that both builds have; ``launches`` of ops that changed; ``alone``: ops and cases of one build."""

    compilers: tuple[str, str]
    kernels: list[Difference]
    launches: dict[str, tuple[int, int]]
    alone: dict[str, int]


def load(path: Path) -> dict[str, Any]:
    """A report, or that in a folder of ``ci static``. Raises as ``read_report``."""
    return read_report(path / REPORT if path.is_dir() else path, "compare")


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> Comparison:
    """Kernels are held against each other by what launches them; compilers may differ.

    Raises:
        MissingDataError: nothing in common.
    """
    before, after = compiled_ops(a), compiled_ops(b)
    common = [key for key in before if key in after]
    if not common:
        raise MissingDataError("the two builds have no op, case and architecture in common")
    found: dict[tuple[str, str, str], Difference] = {}
    launches = {}
    for key in common:
        if before[key].launches != after[key].launches:
            launches[" ".join(key)] = (before[key].launches, after[key].launches)
        for old, new in _pairs(before[key].kernels, after[key].kernels):
            one = found.setdefault((key[0], old["id"], new["id"]), _difference(key[0], old, new))
            if key[2] not in one.cases:
                one.cases.append(key[2])
    versions = [_compiler(report) for report in (a, b)]
    alone = {"A": len(before) - len(common), "B": len(after) - len(common)}
    return Comparison((versions[0], versions[1]), list(found.values()), launches, alone)


def _pairs(old: Sequence[Entry], new: Sequence[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """The same kernel where both have it; the others of one op in their order."""
    by_id = {entry["id"]: entry for entry in new}
    yield from ((entry, by_id[entry["id"]]) for entry in old if entry["id"] in by_id)
    ids = {entry["id"] for entry in old}
    rest = [entry for entry in old if entry["id"] not in by_id], [entry for entry in new if entry["id"] not in ids]
    yield from zip(*rest, strict=False)


def _difference(arch: str, old: Entry, new: Entry) -> Difference:
    failures = (old["failure"], new["failure"])
    is_whole = old["figures"] is not None and new["figures"] is not None
    return Difference(
        arch,
        (old["id"], new["id"]),
        (old["kernel"], new["kernel"]),
        is_whole and old["figures"]["binary_hash"] == new["figures"]["binary_hash"],
        _changed(old["figures"], new["figures"]) if is_whole else {},
        failures,
    )


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    before, after = _flat(old), _flat(new)
    pairs = {name: (before.get(name, 0), after.get(name, 0)) for name in {**before, **after}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _flat(figures: Mapping[str, Any]) -> dict[str, int]:
    """Figures by name in words; those that a missing tool would have given are left out."""
    flat = {METRICS[name].what: METRICS[name].read(figures) for name in _FIGURES}
    if figures["instructions"] is not None:
        flat |= {f"{name} (SASS)": number for name, number in figures["instructions"]["by_class"].items()}
        for name, widths in figures["instructions"]["by_width"].items():
            flat |= {f"{name} of {width} bytes (SASS)": number for width, number in widths.items()}
    return {name: value for name, value in flat.items() if value is not None}


def _compiler(report: Mapping[str, Any]) -> str:
    ptxas = ", ".join(sorted(set(map(str, report["compiler"]["ptxas"].values()))))
    return f"Triton {report['compiler']['triton']} (ptxas {ptxas})"


def show(found: Comparison, console: Console) -> None:
    """A paragraph for each kernel that differs, then how many do."""

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    say(f"A: {found.compilers[0]}")
    say(f"B: {found.compilers[1]}")
    for one in found.kernels:
        if not one.same_binary:
            others = f" +{len(one.cases) - 1}" if one.cases[1:] else ""
            say(f"{one.arch} {_arrow(*one.kernels)} {_arrow(*one.ids)} ({one.cases[0]}{others})")
            for line in _lines(one):
                say(f"    {line}")
    for name, (old, new) in found.launches.items():
        say(f"{name}: {old} launches a call -> {new}")
    same = sum(one.same_binary for one in found.kernels)
    say(f"{len(found.kernels)} kernels in both: {same} of the same binary, {len(found.kernels) - same} differ")
    for build, number in found.alone.items():
        if number:
            say(f"ops and cases in {build} alone: {number}")


def _lines(one: Difference) -> Iterator[str]:
    for build, failure in zip("AB", one.failures, strict=True):
        if failure:
            yield f"does not compile in {build}: {failure}"
    if not any(one.failures) and not one.changed:
        yield "the same figures, in another order or of other registers"
    for is_sass in (False, True):
        parts = [
            f"{name.removesuffix(' (SASS)')} {old} -> {new}"
            for name, (old, new) in one.changed.items()
            if name.endswith("(SASS)") == is_sass
        ]
        if parts:
            yield ("SASS: " if is_sass else "") + ", ".join(parts)


def _arrow(old: str, new: str) -> str:
    return old if old == new else f"{old} -> {new}"


def as_json(found: Comparison) -> dict[str, Any]:
    """Everything, the kernels that are the same too."""
    return asdict(found)
