"""What a gate says, in each form that somebody reads: ``write`` puts them all beside its verdict."""

from pathlib import Path

from ci.gate.result import GateResult, encode

from . import junit, machine, markdown

FILES = ("verdict.json", "summary.md", "comment.md", "check.json", "junit.xml", "badge.json")


def write(result: GateResult, folder: Path) -> list[Path]:
    """Every output as a file of ``folder``; the same result gives the same bytes."""
    contents = (
        encode(result),
        markdown.summary(result).encode(),
        markdown.comment(result).encode(),
        machine.as_bytes(machine.check(result)),
        junit.report(result),
        machine.as_bytes(machine.badge(result)),
    )
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in FILES]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths
