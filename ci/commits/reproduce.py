"""``ci reproduce``: the commands that measure again what a verdict of a night, a record or a gate is about."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness.environment import collect_environment, commit_of
from benchmarks.harness.records import Environment, Record, Verdict
from benchmarks.patterns import matches
from ci.exits import BrokenEnvironmentError, Exit, MissingDataError, UsageError
from ci.gpus import CPU
from ci.measuring import ROOT
from reports.sources import Stored

from .ranges import NAME_DIGITS
from .sides import Side, resolve

FOLDER = Path("out/reproduce")
GATE_FILES = ("plan.json", "verdict.json")
VERDICTS = (Exit.REGRESSED, Exit.MISSING, Exit.INVALID)


@dataclass(frozen=True, slots=True)
class Step:
    """One command; ``python`` stands for the one that runs this."""

    argv: Sequence[str]
    folder: Path | None = None  # where it runs; None: here
    only_tells: bool = False  # a verdict of it is no reason to stop

    def __str__(self) -> str:
        line = shlex.join(self.argv)
        return f"(cd {shlex.quote(str(self.folder))} && {line})" if self.folder else line


@dataclass(slots=True)
class Reproduction:
    """What is measured again, by which steps; ``differs`` is what this machine has otherwise."""

    what: str
    reason: str
    steps: list[Step]
    needs_gpu: bool = True
    differs: dict[str, tuple[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def reproduce(
    history: Stored[Record] | None,
    name: str,
    *,
    case: str = "*",
    metric: str = "*",
    op: str = "*",
    gpu_model: str = "*",
) -> Reproduction:
    """Of a gate's folder, a record, or the most urgent verdict of a night that fits the globs.

    Raises:
        MissingDataError: there is no such thing, or no verdict fits.
    """
    folder = Path(name)
    if folder.is_dir():
        return _of_gate(
            folder, lambda v: matches(v["case"], case) and matches(v["metric"], metric) and matches(v["op"], op)
        )
    assert history is not None  # needed for everything else
    side = resolve(history, name, gpu_model)
    if side.night is None:
        return _with_differences(_of_record(side.records[0]), side.records[0].environment)
    fits = [
        v for v in side.night.verdicts if matches(v.case, case) and matches(v.metric, metric) and matches(v.op, op)
    ]  # most urgent first
    if not fits:
        raise MissingDataError(
            f"{side.what}: no verdict fits --case, --metric and --op", "python -m ci compare A B --all"
        )
    return _with_differences(_of_verdict(history, side, fits[0]), side.records[0].environment)


def _of_gate(folder: Path, fits: Callable[[dict[str, Any]], bool]) -> Reproduction:
    """The gate judged again, then what measures its most urgent verdict that fits, or else all of it, anew."""
    if not (folder / GATE_FILES[0]).exists():
        raise UsageError(f"{folder}: expected a gate's folder, with {GATE_FILES[0]}", "python -m ci gate prepare")
    steps = [Step(["python", "-m", "ci", "gate", "judge", str(folder)], only_tells=True)]
    what, reason, notes = f"gate {folder}", "not judged yet", ["the first command judges the same records: same bytes"]
    verdict = folder / GATE_FILES[1]
    if verdict.exists():
        try:
            result = json.loads(verdict.read_bytes())
            first = next((v for v in result["verdicts"] if v.get("reproduce") and fits(v)), None)
            command = shlex.split((first or result)["reproduce"])
            base, head = (result[side]["commit"][:NAME_DIGITS] for side in ("base", "head"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            remedy = f"python -m ci gate judge {folder} writes it anew"
            raise UsageError(
                f"{verdict}: expected a gate's verdict: {type(error).__name__}: {error}", remedy
            ) from error
        steps.append(Step([*command, "--out", str(FOLDER / f"gate-{base}-{head}")]))
        reason = f"{base} to {head}"
        if first:
            reason += f": {first['op']} {first['provider']} {first['metric']}, {first['case']}: {first['verdict']}"
        notes.append("the second one measures both commits anew")
    return Reproduction(what, reason, steps, notes=notes)


def _of_record(record: Record) -> Reproduction:
    command = [*record.command[:-1], f"{record.id}.json"] if "--out" in record.command else list(record.command)
    steps, notes = _at_commit(record.subject.commit, command)
    if "--provider" in command:
        notes = [*notes, "folders are not recorded: give the path of each file that --provider names"]
    return Reproduction(f"record {record.id}", f"seed {record.seed}", steps, _needs_gpu(record), notes=notes)


def _of_verdict(history: Stored[Record], side: Side, verdict: Verdict) -> Reproduction:
    assert side.night is not None
    case_set, commit = side.night.case_set, side.records[0].subject.commit
    chosen = ["--set", case_set, "--case", verdict.case]
    what = f"{side.what}: {'/'.join(verdict.key)} {verdict.verdict}"
    if verdict.contract == "static":
        steps, notes = _at_commit(commit, ["python", "-m", "ci", "static", *chosen, "--arch", side.gpu_model])
        return Reproduction(what, verdict.reason, steps, needs_gpu=False, notes=notes)
    if verdict.verdict in ("invalid", "missing") or verdict.contract == "exact":
        seed = ["--seed", str(_seed_of_failure(side.records, verdict))]
        steps, notes = _at_commit(commit, ["python", "-m", "benchmarks.run", *chosen, *seed, "--out", "again.json"])
        return Reproduction(what, verdict.reason, steps, _needs_gpu(side.records[0]), notes=notes)
    base = history.nights.get(side.night.base_night or "")
    earlier = (
        next((history.records[i].subject.commit for i in base.records if i in history.records), None) if base else None
    )
    if commit and earlier and commit != earlier:
        out = str(FOLDER / f"gate-{earlier[:NAME_DIGITS]}-{commit[:NAME_DIGITS]}")
        command = ["python", "-m", "ci", "gate", "--base", earlier, "--head", commit, *chosen, "--out", out]
        return Reproduction(what, verdict.reason, [Step(command)], _needs_gpu(side.records[0]))
    command = ["python", "-m", "ci", "nightly", *chosen, "--processes", "12", "--store", "out/reproduce/store"]
    steps, notes = _at_commit(commit, command)
    why = "there is no base night" if base is None else "the base night is of the same commit, or its commit is unknown"
    return Reproduction(
        what, verdict.reason, steps, _needs_gpu(side.records[0]), notes=[*notes, f"{why}: one commit is measured again"]
    )


def _seed_of_failure(records: Sequence[Record], verdict: Verdict) -> int:
    """Of a process in which it failed, else of the first."""
    for record in records:
        bad = [c for c in record.checks if not c.passed and (c.case, c.op, c.provider) == _place(verdict)]
        bad_times = [m for m in record.measurements if m.key == verdict.key and m.status != "ok"]
        if bad or bad_times:
            return record.seed
    return records[0].seed


def _place(verdict: Verdict) -> tuple[str, str, str]:
    return verdict.case, verdict.op, verdict.provider


def _needs_gpu(record: Record) -> bool:
    return record.environment.compute_capability is not None or record.environment.gpu_model.startswith("nvidia")


def _at_commit(commit: str | None, command: Sequence[str]) -> tuple[list[Step], list[str]]:
    """The command in a checkout of the commit; in this one where it is that commit, or nobody knows."""
    if commit is None:
        return [Step(command)], ["the commit is unknown: this checkout is measured instead"]
    if commit_of(ROOT / "recoverssm") == commit:
        return [Step(command)], []
    folder = FOLDER / commit[:NAME_DIGITS]
    checkout = [] if folder.exists() else [Step(["git", "worktree", "add", "--detach", str(folder), commit])]
    return [*checkout, Step(command, folder)], []


def _with_differences(found: Reproduction, environment: Environment) -> Reproduction:
    if not found.needs_gpu:
        return found
    here, there = dict(collect_environment().cut_key(host=False)), dict(environment.cut_key(host=False))
    names = ["gpu_model"] if there["gpu_model"] != here["gpu_model"] else list(there)  # another card says it all
    found.differs = {n: (str(there[n]), str(here[n])) for n in names if there[n] != here[n]}
    return found


def run(found: Reproduction) -> int:
    """Run the steps in order, up to the first that fails; returns the last exit code.

    Raises:
        BrokenEnvironmentError: it needs a GPU that this machine does not have.
    """
    model = found.differs.get("gpu_model")
    if model is None and found.needs_gpu and (here := collect_environment().gpu_model) == CPU:
        model = ("a GPU", here)
    if model is not None:
        raise BrokenEnvironmentError(
            f"{found.what}: measured on {model[0]}, this machine has {model[1]}", "run it there"
        )
    code = 0
    for step in found.steps:
        argv = [sys.executable, *step.argv[1:]] if step.argv[0] == "python" else list(step.argv)
        code = subprocess.run(argv, cwd=step.folder, check=False).returncode
        if code and not (step.only_tells and code in VERDICTS):
            break
    return code


def as_json(found: Reproduction) -> dict[str, Any]:
    return {
        "exit_code": 0,
        "what": found.what,
        "reason": found.reason,
        "needs_gpu": found.needs_gpu,
        "differs": {name: {"then": then, "here": here} for name, (then, here) in found.differs.items()},
        "steps": [{"argv": list(s.argv), "folder": str(s.folder) if s.folder else None} for s in found.steps],
        "notes": found.notes,
    }


def show(found: Reproduction, console: Console) -> None:
    """What it is about, what is otherwise here, and the commands, to copy."""
    lines = [f"{found.what}: {found.reason}"]
    lines += [f"differs here: {name}: {then} then, {here} here" for name, (then, here) in found.differs.items()]
    lines += [f"note: {note}" for note in found.notes] + [str(step) for step in found.steps]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
