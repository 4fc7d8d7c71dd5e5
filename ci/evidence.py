"""Evidence that the kernels, as they are now, passed their tests on a GPU.

`make test-gpu` runs the tests marked `gpu` on a GPU host and writes `reports/evidence/gpu-tests.json`, which is
committed. `make check` runs on machines without a GPU and fails when the kernel sources have changed since, unless
`reports/evidence/pending.toml` says why that is all right for now:

    [[change]]            # these sources, and no others
    hash = "<the hash that `check` prints>"
    reason = "comments only"

    [first_run]           # accepted only as long as no evidence was ever recorded
    reason = "first GPU run outstanding"

An entry that no longer applies is an error too, so that the file stays short. Needs the standard library alone to
check and to write: no git, no plugin. What ran, and on what, comes from the JUnit files of the test run itself.
"""

import argparse
import hashlib
import json
import os
import platform
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from ci.exits import Exit

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    "recoverssm/kernels",
    "recoverssm/ops",
    "recoverssm/launch.py",
    "recoverssm/launch_table.toml",
    "recoverssm/dispatch.py",
    "recoverssm/triton_compat.py",
    "recoverssm/committer.py",
)
EVIDENCE = Path("reports/evidence/gpu-tests.json")
PENDING = Path("reports/evidence/pending.toml")
SCHEMA_VERSION = 1
FACTS = ("source_hash", "card", "driver", "torch", "triton", "python")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `check` found: an exit code and a sentence that says what to do next."""

    code: Exit
    message: str


def source_hash(root: Path = ROOT) -> str:
    """SHA-256 over the names and contents of the sources that decide what runs on the GPU."""
    digest = hashlib.sha256()
    for path in _source_files(root):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def gpu_facts() -> dict[str, str]:
    """What the GPU tests are about to run on; the tests' conftest.py writes it into the JUnit files. Needs CUDA."""
    import torch
    import triton

    return {
        "source_hash": source_hash(),
        "card": torch.cuda.get_device_name(0),
        "driver": _driver_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def find_gpu() -> Verdict:
    """Whether the GPU tests can run here at all; asked first, so that nobody waits for a run in which all skip."""
    import torch

    if not torch.cuda.is_available():
        build = "a CPU build" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
        return Verdict(
            Exit.BROKEN,
            f"no GPU here that torch {torch.__version__} ({build}) can use: the gpu tests were not started and "
            f"{EVIDENCE} is untouched.\nOn a GPU host: make test-gpu; what is missing: python -m ci doctor",
        )
    return Verdict(Exit.PASS, f"GPU tests run on {torch.cuda.get_device_name(0)}")


def write(junits: Sequence[Path], root: Path = ROOT) -> Verdict:
    """Turn the JUnit files of a GPU test run into the evidence file. Failures are recorded as they are."""
    suites = []
    for junit in junits:
        suite = ET.parse(junit).getroot().find(".//testsuite")  # noqa: S314 - our own pytest wrote this file
        if suite is None:
            return Verdict(Exit.INVALID, f"{junit}: expected a <testsuite>, found none; run make test-gpu again")
        facts = {item.get("name"): item.get("value") for item in suite.iterfind("properties/property")}
        if absent := [name for name in FACTS if not facts.get(name)]:
            return Verdict(Exit.INVALID, f"{junit}: no {', '.join(absent)} in it: it is not of a test run on a GPU")
        if facts["source_hash"] != source_hash(root):
            return Verdict(Exit.INVALID, f"{junit}: the kernel sources changed since that run; run make test-gpu again")
        suites.append(suite)
    tests = {
        f"{case.get('classname')}::{case.get('name')}": _outcome(case)
        for suite in suites
        for case in suite.iter("testcase")
    }
    counts = Counter(tests.values())
    begun = min(datetime.fromisoformat(suite.get("timestamp", "")) for suite in suites)
    evidence = {
        "schema_version": SCHEMA_VERSION,
        "date_utc": begun.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **{name: facts[name] for name in FACTS},
        "duration_s": round(sum(float(suite.get("time", "0")) for suite in suites), 1),
        "passed": counts["passed"],
        "failed": counts["failed"],
        "skipped": counts["skipped"],
        "tests": dict(sorted(tests.items())),
    }
    _replace(root / EVIDENCE, json.dumps(evidence, indent=1) + "\n")
    return Verdict(
        Exit.PASS, f"{EVIDENCE}: {_summary(evidence)}; commit it, and drop entries of {PENDING} that it settles"
    )


def check(root: Path = ROOT) -> Verdict:
    """Whether the evidence belongs to the sources as they are now, or the difference is named as pending."""
    current = source_hash(root)
    try:
        pending = _read_pending(root / PENDING)
        evidence = json.loads((root / EVIDENCE).read_text()) if (root / EVIDENCE).exists() else None
    except ValueError as error:
        return Verdict(Exit.INVALID, str(error))
    if evidence is None:
        if "first_run" in pending:
            return Verdict(Exit.PASS, f"no GPU evidence yet, pending: {pending['first_run']}")
        return Verdict(Exit.MISSING, f"{EVIDENCE} is missing: run make test-gpu on a GPU host and commit it")
    if "first_run" in pending:
        return Verdict(Exit.INVALID, f"{PENDING}: evidence exists now; remove [first_run]")
    if stale := [name for name in pending if name != current]:
        return Verdict(Exit.INVALID, f"{PENDING}: remove the entry for {stale[0]}: the sources are no longer those")
    if evidence.get("source_hash") != current:
        if current in pending:
            return Verdict(Exit.PASS, f"kernel sources differ from the GPU evidence, pending: {pending[current]}")
        return Verdict(Exit.MISSING, _stale_message(evidence, current))
    if current in pending:
        return Verdict(Exit.INVALID, f"{PENDING}: remove the entry for {current}: the evidence covers it")
    if evidence["failed"] or not evidence["passed"]:
        return Verdict(Exit.INVALID, f"{EVIDENCE}: {_summary(evidence)}; these kernels are not known to work on a GPU")
    return Verdict(Exit.PASS, f"GPU evidence is current: {_summary(evidence)}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ci.evidence",
        description="Evidence that the kernels passed their tests on a GPU.",
        epilog="example: python -m ci.evidence write --junit out/gpu-library.xml --junit out/gpu-harness.xml",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add(commands, "gpu", "say which GPU the tests would run on; fail where there is none")
    _add(commands, "check", "fail when the kernel sources changed since the evidence")
    writer = _add(commands, "write", "make the evidence file from a GPU test run's JUnit files", "out/gpu-tests.xml")
    writer.add_argument("--junit", type=Path, required=True, action="append", metavar="FILE", help="as often as needed")
    arguments = parser.parse_args(argv)
    try:
        match arguments.command:
            case "gpu":
                verdict = find_gpu()
            case "check":
                verdict = check()
            case _:
                verdict = write(arguments.junit)
    except (OSError, ET.ParseError) as error:
        verdict = Verdict(Exit.INVALID, f"cannot read or write: {error}")
    print(verdict.message, file=sys.stderr if verdict.code else sys.stdout)
    return verdict.code


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, what: str, junit: str = ""
) -> argparse.ArgumentParser:
    example = f"example: python -m ci.evidence {name}" + (f" --junit {junit}" if junit else "")
    return commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=example)


def _source_files(root: Path) -> list[Path]:
    files: list[Path] = []
    for name in SOURCES:
        path = root / name
        files += path.rglob("*.py") if path.is_dir() else [path] if path.exists() else []
    return sorted(files)


def _outcome(case: ET.Element) -> str:
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in kinds else "passed"


def _read_pending(path: Path) -> dict[str, str]:
    """Reasons by source hash; the key `first_run` stands for evidence that never was."""
    if not path.exists():
        return {}
    try:
        content = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{PENDING}: {error}") from error
    if unknown := set(content) - {"first_run", "change"}:
        raise ValueError(f"{PENDING}: expected [first_run] or [[change]], got {sorted(unknown)}")
    entries: list[dict[str, Any]] = content.get("change", [])
    if "first_run" in content:
        entries = [{"hash": "first_run", **content["first_run"]}, *entries]
    for entry in entries:
        if not str(entry.get("hash", "")).strip() or not str(entry.get("reason", "")).strip():
            raise ValueError(f"{PENDING}: every entry needs a reason, and every [[change]] the hash it is for")
    return {str(entry["hash"]): str(entry["reason"]) for entry in entries}


def _summary(evidence: dict[str, Any]) -> str:
    counts = f"{evidence['passed']} passed, {evidence['failed']} failed, {evidence['skipped']} skipped"
    return f"{counts} on {evidence['card']}, {evidence['date_utc']}"


def _stale_message(evidence: dict[str, Any], current: str) -> str:
    return (
        f"kernel sources changed since the GPU evidence of {evidence.get('date_utc')}: "
        f"expected {evidence.get('source_hash')}, got {current}.\n"
        f"Run make test-gpu on a GPU host and commit {EVIDENCE}, or name the change in {PENDING}:\n"
        f'[[change]]\nhash = "{current}"\nreason = "..."'
    )


def _driver_version() -> str:
    import pynvml

    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
