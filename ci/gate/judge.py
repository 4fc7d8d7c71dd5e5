"""``gate judge``: from a gate folder to its result. Reads that folder alone; the same folder gives the same bytes."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ci.judging import URGENCY
from ci.validity import held_back

from .evidence import Evidence
from .exact import judge_exact
from .findings import find
from .plan import STAGES, USUAL_BLOCKS, BlockStage, Plan, load_plan, save
from .result import Finding, GateResult, GateVerdict, SideOf, exit_code
from .times import judge_times


def judge(folder: Path) -> GateResult:
    """The result of what the folder holds; nothing is written. Raises UsageError: it is no gate folder."""
    return judge_evidence(Evidence.read(folder))


def approve(folder: Path, owner: str) -> None:
    """Note in the plan that an owner has seen what the head changes of its judge."""
    save(folder, msgspec.structs.replace(load_plan(folder), approved_by=owner))


def judge_evidence(evidence: Evidence) -> GateResult:
    """Exact things first, then times; known regressions excuse, everything else counts."""
    plan, exact = evidence.plan, judge_exact(evidence)
    verdicts, stale = _with_known(evidence, [*exact.verdicts, *judge_times(evidence)])
    verdicts = sorted((_with_reproduction(plan, one) for one in verdicts), key=_rank)
    notes = [*exact.notes, *_notes(evidence, exact.num_alike)]
    findings = [*find(evidence, verdicts, notes), *(Finding(kind="stale-policy", message=note) for note in stale)]
    first = next((block.base[0] for stage in STAGES for block in evidence.blocks[stage]), None)
    return GateResult(
        base=_side(plan, "base"),
        head=_side(plan, "head"),
        distance=plan.distance,
        base_found=plan.base_found,
        harness=plan.harness,
        case_set=plan.case_set,
        cases=plan.cases,
        gpu_model=first.environment.gpu_model if first else "",
        environment=_environment(evidence),
        seed=plan.seed,
        n_blocks={stage: evidence.num_counted(stage) for stage in STAGES},
        verdicts=verdicts,
        findings=findings,
        exit_code=int(exit_code(verdicts, findings)),
        reproduce=command(plan),
    )


def command(plan: Plan, case: str | None = None, arch: str = "") -> str:
    """What repeats the gate, or one case or compiled figure of it."""
    pattern = case or plan.pattern
    argv = ["python", "-m", "ci", "gate", "--base", plan.base.commit[:12], "--head", plan.head.commit[:12]]
    argv += ["--set", plan.case_set, *(["--case", pattern] if pattern != "*" else [])]
    argv += ["--harness", plan.harness] if plan.harness != "base" else []
    options: dict[BlockStage, str] = {"screen": "--blocks", "confirm": "--confirm-blocks"}
    for stage, option in options.items():
        argv += [option, str(plan.blocks[stage])] if plan.blocks[stage] != USUAL_BLOCKS[stage] else []
    return shlex.join([*argv, *(["--arch", arch] if arch else []), "--seed", str(plan.seed)])


def _side(plan: Plan, side: str) -> SideOf:
    one = plan.base if side == "base" else plan.head
    return SideOf(commit=one.commit, source_hash=one.source_hash, subject=one.subject)


def _with_known(evidence: Evidence, verdicts: Sequence[GateVerdict]) -> tuple[list[GateVerdict], list[str]]:
    """Verdicts with what an owner knows of them, and entries that should go."""
    known, today = evidence.policy.known.not_landed(), evidence.plan.date
    said = []
    for one in verdicts:
        fresh = one.stage == "confirm"  # the screen has shown it too
        says = known.say(one.key, one.gpu_model, one.verdict, one.change_pct, today=today, seen_before=fresh)
        said.append(msgspec.structs.replace(one, known=says.state, known_reason=says.reason))
    return said, known.stale(((one.key, one.gpu_model, one.known) for one in said), today)


def _with_reproduction(plan: Plan, one: GateVerdict) -> GateVerdict:
    if one.verdict == "unchanged":
        return one
    arch = one.gpu_model if one.contract == "static" else ""
    return msgspec.structs.replace(one, reproduce=command(plan, one.case, arch))


def _rank(one: GateVerdict) -> tuple[object, ...]:
    # What fails before what is only shown, then exact before time, then the stronger evidence, then the larger change.
    strength = one.q if one.q is not None else one.p if one.p is not None else 1.0
    return (
        URGENCY.index(one.verdict),
        not one.fails,
        one.stage != "exact",
        strength,
        -abs(one.change_pct or 0.0),
        one.key,
        one.gpu_model,
    )


def _notes(evidence: Evidence, num_alike: int) -> list[str]:
    plan = evidence.plan
    notes = [f"{num_alike} static figures are the same on both sides"] if num_alike else []
    if plan.base.commit == plan.head.commit:
        notes.append("base and head are one commit: every pair is an A/A pair")
    elif plan.base.source_hash == plan.head.source_hash:
        notes.append("base and head have the same library sources: every pair is an A/A pair")
    if plan.base_found != "merge base":
        notes.append(f"the base is the {plan.base_found}, {plan.distance} commits before the head")
    disturbed = [r for r in evidence.records.values() if r.monitor.foreign_processes]
    if disturbed:
        notes.append(f"other processes used the GPU during {len(disturbed)} of {len(evidence.records)} processes")
    return notes + held_back(list(evidence.records.values()))


def _environment(evidence: Evidence) -> str:
    record = next(iter(evidence.records.values()), None)
    if record is None:
        return ""
    one = record.environment
    facts = {"driver": one.driver, "torch": one.torch, "Triton": one.triton, "Python": one.python}
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
