"""What is to be said of a gate beside its verdicts: what the head changed of its judge, what broke, what is missing."""

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.harness.records import Record
from benchmarks.static.series import compiled_ops
from ci.exits import Exit
from ci.validity import check_verdict, failed_checks

from .evidence import Evidence
from .plan import BlockStage
from .result import Finding, FindingKind, GateVerdict, Side

SHOWN = 5  # of many alike


def find(evidence: Evidence, verdicts: Sequence[GateVerdict], notes: Sequence[str]) -> list[Finding]:
    """All of them, most urgent first."""
    found = [
        *_damaged(evidence),
        *_policy(evidence),
        *_vanished(evidence),
        *_broken(evidence),
        *_crashes(evidence),
        *_checks(evidence),
        *_cards(evidence),
        *_unfinished(evidence, verdicts),
        *(Finding(kind="note", message=note) for note in notes),
    ]
    return sorted(found, key=lambda finding: (_urgency(finding), finding.kind == "note"))


def _urgency(finding: Finding) -> int:
    order = (Exit.BROKEN, Exit.INVALID, Exit.MISSING, Exit.REGRESSED, Exit.PASS)
    return order.index(Exit.PASS if finding.cleared_by else Exit(finding.exit_code))


def _damaged(evidence: Evidence) -> Iterator[Finding]:
    if evidence.damaged:
        name, why = min(evidence.damaged.items())
        yield Finding(
            kind="damaged-folder",
            message=f"{len(evidence.damaged)} files of the folder are damaged or gone: {name}: {why}",
            exit_code=Exit.BROKEN,
            next_step="copy the folder anew, all of it; on the card, python -m ci gate run DIR makes them again",
        )


def _policy(evidence: Evidence) -> Iterator[Finding]:
    plan = evidence.plan
    whose = {"base": "", "own": "each side was measured by its own program"}
    changes = [whose.get(plan.harness, f"both sides were measured by the program of {plan.harness}")]
    changes += [f"the head changes {shortened(plan.policy_changes)}"] if plan.policy_changes else []
    if told := " and ".join(part for part in changes if part):
        step = "an owner looks at these, then: python -m ci gate judge DIR --policy-approved-by NAME"
        yield Finding(
            kind="policy-changed",
            message=f"policy changed: {told}; limits are those of {plan.policy_of[:12]}",
            exit_code=Exit.MISSING,
            next_step="" if plan.approved_by else step,
            cleared_by=plan.approved_by,
        )


def shortened(names: Sequence[str]) -> str:
    """The first few of them and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _vanished(evidence: Evidence) -> Iterator[Finding]:
    for case in evidence.state.vanished or ():
        if evidence.policy.aliases.now(case) == case:
            yield Finding(
                kind="case-vanished",
                message=f"missing: case {case} is in the base's set {evidence.plan.case_set} and no more in the head's",
                exit_code=Exit.MISSING,
                case=case,
                next_step="where it was renamed, name it in ci/aliases.toml; else an owner removes it from the base",
            )


def _broken(evidence: Evidence) -> Iterator[Finding]:
    for side, why in evidence.state.broken.items():
        yield _does_not_build(side, why)
    if evidence.state.broken:
        return
    for side, why in evidence.state.not_compiled.items():
        yield _does_not_build(side, f"nothing was compiled for static figures: {why}")
    reports = evidence.reports
    if "base" in reports and "head" in reports:
        old, new = (compiled_ops(reports[side]) for side in ("base", "head"))
        lost = [place for place, op in new.items() if op.failure and place in old and not old[place].failure]
        if lost:
            yield _does_not_build("head", f"{new[lost[0]].failure} ({' '.join(lost[0])}, and {len(lost) - 1} others)")


def _does_not_build(side: Side, why: str) -> Finding:
    if side == "base":
        return Finding(kind="base-without-data", message=f"base without data: {why}", exit_code=Exit.MISSING)
    return Finding(
        kind="head-does-not-build",
        message=f"the head does not build: {why}",
        exit_code=Exit.INVALID,
        next_step="where it is the base's program that cannot call the head any more: --harness own",
    )


def _crashes(evidence: Evidence) -> Iterator[Finding]:
    for side, code in (("base", Exit.MISSING), ("head", Exit.INVALID)):
        lost = {name: why for name, why in evidence.state.failures.items() if name.endswith(side)}
        if lost:
            name, why = next(iter(sorted(lost.items())))
            message = f"{len(lost)} processes of the {side} left no record, such as {name}: {why}"
            yield Finding(kind=_crashed(side), message=message, exit_code=code)
    cases = {side: _lost_cases(evidence.records_of(side)) for side in ("base", "head")}
    for case in sorted(cases["base"].keys() | cases["head"].keys()):
        base, head = cases["base"].get(case), cases["head"].get(case)
        if base and head:
            message = f"{case} crashed on both sides: base {base}; head {head}"
            yield Finding(kind="crashed-on-both", message=message, case=case)
        elif head:
            message = f"{case} crashed on the head alone: {head}"
            yield Finding(kind="crashed-on-head", message=message, case=case, exit_code=Exit.INVALID)
        else:
            message = f"{case} crashed on the base alone: {base}; there is nothing to compare with"
            yield Finding(kind="crashed-on-base", message=message, case=case)


def _crashed(side: str) -> FindingKind:
    return "crashed-on-base" if side == "base" else "crashed-on-head"


def _lost_cases(records: Sequence[Record]) -> dict[str, str]:
    """Cases in which a process died, with how the first one did and how many."""
    ends = [(attempt.lost, attempt.ended) for record in records for attempt in record.attempts if attempt.lost]
    counts = Counter(case for case, _ in ends)
    first = dict(reversed(ends))
    return {case: f"{first[case]} ({count} of {len(records)} processes)" for case, count in counts.items()}


def _checks(evidence: Evidence) -> Iterator[Finding]:
    base = failed_checks(evidence.records_of("base"))
    head = evidence.records_of("head")
    for key, checks in sorted(failed_checks(head).items()):
        one = check_verdict(checks, len(head))
        what = f"{one.case}: {one.provider} {checks[0].op} {one.metric}: {one.reason}"
        if key in base:
            yield Finding(kind="note", message=f"{what}; on the base too", case=one.case)
        else:
            yield Finding(kind="check-failed", message=what, case=one.case, exit_code=Exit.INVALID)


def _cards(evidence: Evidence) -> Iterator[Finding]:
    for name, why in sorted(evidence.strange.items()):
        yield Finding(kind="wrong-tree", message=f"{name}: {why}", exit_code=Exit.INVALID)
    for name, (kind, why) in sorted(evidence.mixed.items()):
        yield Finding(kind=kind, message=f"block {name} does not count: {why}", exit_code=Exit.INVALID)
    blocks = [block for stage in evidence.blocks.values() for block in stage]
    environments = {block.base[0].environment.cut_key(host=True) for block in blocks}
    if len(environments) > 1:
        message = (
            f"blocks were measured in {len(environments)} different environments (driver, torch, power limit, ...)"
        )
        yield Finding(kind="environments-differ", message=message, exit_code=Exit.INVALID)
    models = {block.base[0].silicon.gpu_uuid for block in blocks}
    if len(models) > 1:
        message = f"differing GPUs: blocks were measured on {len(models)} cards, where one is expected"
        yield Finding(kind="gpus-differ", message=message, exit_code=Exit.INVALID)
    if evidence.unsound:
        name, why = next(iter(sorted(evidence.unsound.items())))
        message = f"{len(evidence.unsound)} processes cannot be believed, and their blocks do not count: {name}: {why}"
        yield Finding(kind="unsound-processes", message=message)


def _unfinished(evidence: Evidence, verdicts: Sequence[GateVerdict]) -> Iterator[Finding]:
    state = evidence.state
    if state.broken:
        return
    if not state.complete:
        yield Finding(
            kind="unfinished",
            message="not all is measured yet",
            exit_code=Exit.MISSING,
            next_step="python -m ci gate run DIR goes on",
        )
        return
    stages: list[BlockStage] = ["screen", "confirm"] if state.suspects else ["screen"]
    for stage in stages:
        counted, needed = evidence.num_counted(stage), evidence.needed(stage)
        if counted < needed:
            message = f"{stage}: {counted} blocks count, {needed} are needed: too many processes drifted or failed"
            yield Finding(kind="too-few-blocks", message=message, exit_code=Exit.INVALID)
    if not any(one.contract not in ("exact", "static") for one in verdicts):
        message = "base without data: no series was timed on both sides"
        yield Finding(kind="base-without-data", message=message, exit_code=Exit.MISSING)
