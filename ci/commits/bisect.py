"""``ci bisect GOOD BAD``: which commit made a series slower, asked of few commits by a gate between GOOD and each.

The gate's two stages are the oracle, so a commit is called slower as rarely by chance as a pull request is. What a gate
leaves undecided stays undecided: the answer may be "between x and y".
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from ci.exits import Exit, MissingDataError, UsageError
from ci.gate import prepare as preparing
from ci.gate import running
from ci.gate.judge import judge
from ci.gate.plan import PLAN_FILE, USUAL_BLOCKS
from ci.gate.result import GateResult, GateVerdict
from ci.trees import LIBRARY, Repository

from .bisect_state import FILE, BisectPlan, BisectState, Step, save
from .ranges import NAME_DIGITS, Commit, commits_between
from .search import Answer, Found, max_steps, search

STEPS = "steps"
CANNOT = ("head-does-not-build", "crashed-on-head", "check-failed", "wrong-tree")  # findings about one commit alone


@dataclass(frozen=True, slots=True)
class Request:
    """A bisection as asked for. ``program``: a commit; None for GOOD's, BAD's or HEAD's, the first that has gates."""

    good: str
    bad: str
    case_set: str = "pr"
    pattern: str = "*"
    metric: str = "*"
    op: str = "*"
    provider: str = "*"
    seed: int = 0
    blocks: tuple[int, int] = (USUAL_BLOCKS["screen"], USUAL_BLOCKS["confirm"])
    program: str | None = None


@dataclass(slots=True)
class Result:
    """What came of it; ``found`` is None while it is interrupted."""

    code: Exit
    state: BisectState
    found: Found | None = None
    messages: list[str] = field(default_factory=list)


def begin(request: Request, out: Path, repository: Repository) -> BisectState:
    """Write the plan. Raises UsageError where there is one, and as ``commits_between``."""
    if (out / FILE).exists():
        raise UsageError(f"--out: {out / FILE} exists", f"python -m ci bisect --resume --out {out}, or another --out")
    names = commits_between(repository, request.good, request.bad)
    good = repository.resolve(request.good)
    plan = BisectPlan(
        good=good,
        good_source=_library(repository, good),
        bad=names[-1],
        commits=[Commit(name, repository.subject(name), _library(repository, name)) for name in names],
        case_set=request.case_set,
        pattern=request.pattern,
        metric=request.metric,
        op=request.op,
        provider=request.provider,
        seed=request.seed,
        blocks=request.blocks,
        program=_usual_program(repository, good, names[-1])
        if request.program is None
        else repository.resolve(request.program),
    )
    state = BisectState(plan)
    out.mkdir(parents=True, exist_ok=True)
    save(state, out)
    return state


def _library(repository: Repository, commit: str) -> str:
    return repository.hash_of(commit, LIBRARY[0]) if repository.has(commit, LIBRARY[0]) else ""


def _usual_program(repository: Repository, good: str, bad: str) -> str:
    """GOOD's, else BAD's, else that of what is checked out: the first that knows of gates."""
    if repository.has(good, preparing.MARK):
        return "base"
    return bad if repository.has(bad, preparing.MARK) else repository.resolve("HEAD")


def preview(request: Request, repository: Repository) -> dict[str, Any]:
    """The commits that would be searched and how many of them may be measured; nothing is written."""
    names = commits_between(repository, request.good, request.bad)
    commits = [{"commit": name[:NAME_DIGITS], "subject": repository.subject(name)} for name in names]
    return {"commits": commits, "at_most_measured": max_steps(len(names))}


def prepare(state: BisectState, commit: str, out: Path, repository: Repository) -> Path:
    """The folder of the gate between GOOD and this commit, or the first with its library; filled where it is not yet.

    Raises as ``gate prepare``.
    """
    plan = state.plan
    source = {one.commit: one.source_hash for one in plan.commits}[commit]
    commit = next(one.commit for one in plan.commits if one.commit == commit or (source and one.source_hash == source))
    folder = out / STEPS / commit[:NAME_DIGITS]
    if not (folder / PLAN_FILE).exists():
        request = preparing.Request(
            base=plan.good,
            head=commit,
            case_set=plan.case_set,
            pattern=plan.pattern,
            seed=plan.seed,
            screen_blocks=plan.blocks[0],
            confirm_blocks=plan.blocks[1],
            harness=plan.program,
        )
        preparing.prepare(request, folder, repository)
    return folder


def run(state: BisectState, out: Path, repository: Repository, options: running.Options, console: Console) -> Result:
    """Ask commits until one is found, or no more can be told.

    Raises:
        MissingDataError: BAD cannot be measured, or is not slower than GOOD in anything that fits.
        CommandError: GOOD cannot be measured, or this machine cannot measure.
    """
    plan, begun_s = state.plan, time.monotonic()
    asking = _Asking(state, out, repository, options, console, begun_s)
    try:
        found = search(len(plan.commits), lambda place: asking.ask(plan.commits[place]))
    except _Paused:
        resume = f"python -m ci bisect --resume --out {out}"
        return Result(Exit.INTERRUPTED, state, None, [f"everything measured is kept; go on: {resume}"])
    if not found.is_bad:
        step = state.steps[plan.bad]
        raise MissingDataError(
            f"{plan.bad[:NAME_DIGITS]} is not shown to be slower than {plan.good[:NAME_DIGITS]}: {step.reason}",
            "nothing to search: choose cases with --case, or more blocks with --blocks and --confirm-blocks",
        )
    return Result(Exit.PASS, state, found)


class _Paused(Exception):  # an end as agreed, no error
    """The gate was interrupted, or its time is up."""


@dataclass(slots=True)
class _Asking:
    """One ``ci bisect`` on its way."""

    state: BisectState
    out: Path
    repository: Repository
    options: running.Options
    console: Console
    begun_s: float

    def ask(self, commit: Commit) -> Step:
        """What is known of a commit already, or is found out now and kept."""
        known = self.state.steps.get(commit.commit) or self._by_sources(commit)
        step = known or self._measure(commit)
        self.state.steps[commit.commit] = step
        save(self.state, self.out)
        self._say(f"{commit}: {step.answer}: {step.reason}")
        return step

    def _by_sources(self, commit: Commit) -> Step | None:
        """What is known of another commit with the same library."""
        plan = self.state.plan
        if commit.source_hash == plan.good_source:
            return Step(answer="good", reason="the same sources as GOOD", is_measured=False)
        for other in plan.commits:
            step = self.state.steps.get(other.commit)
            if step is not None and step.is_measured and commit.source_hash == other.source_hash:
                reason = f"the same sources as {other.short}: {step.reason}"
                return msgspec.structs.replace(step, reason=reason, is_measured=False)
        return None

    def _measure(self, commit: Commit) -> Step:
        try:
            folder = prepare(self.state, commit.commit, self.out, self.repository)
        except MissingDataError as error:
            if "base without data" in str(error):
                raise
            return Step(answer="skipped", reason=str(error), is_measured=False)
        self._say(f"asking {commit}")
        left_s = None
        if self.options.max_s is not None:
            left_s = max(0.0, self.options.max_s - (time.monotonic() - self.begun_s))
        options = running.Options(self.options.gpus, self.options.wait_s, left_s, self.options.static_command)
        if running.run(folder, options, self.console) == Exit.INTERRUPTED:
            raise _Paused
        return self._understand(judge(folder), commit.commit)

    def _understand(self, result: GateResult, commit: str) -> Step:
        plan = self.state.plan
        fits = [one for one in result.verdicts if self._follows(one)]
        if commit == plan.bad and self.state.series is None:
            slower = [one for one in fits if one.verdict == "regressed"]  # strongest evidence first
            if slower:
                self.state.series, self.state.gpu_model = slower[0].key, slower[0].gpu_model
                self.state.others = ["/".join(one.key) for one in slower[1:]]
                fits = slower[:1]
        lost = next((one for one in result.findings if one.kind == "base-without-data"), None)
        if lost is not None:
            raise MissingDataError(f"GOOD cannot be measured: {lost.message}", lost.next_step)
        if not fits and self._is_static and not any(one.kind in CANNOT for one in result.findings):
            reason = "unchanged: the same figure as GOOD's"  # a gate lists no others
            return Step(answer="good", reason=reason, is_measured=sum(result.n_blocks.values()) > 0)
        return understand(result, fits)

    @property
    def _is_static(self) -> bool:
        return self.state.series is not None and self.state.series[-1] == "static"

    def _follows(self, one: GateVerdict) -> bool:
        if self.state.series is not None:
            return (one.key, one.gpu_model) == (self.state.series, self.state.gpu_model)
        plan = self.state.plan
        globs = ((one.metric, plan.metric), (one.op, plan.op), (one.provider, plan.provider))
        return one.gated and all(fnmatchcase(name, glob) for name, glob in globs)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def understand(result: GateResult, fits: Sequence[GateVerdict]) -> Step:
    """What a gate says of its head, by the verdict on what is followed; the most urgent one where that is open yet."""
    cannot = next((one for one in result.findings if one.kind in CANNOT), None)
    if not fits or fits[0].verdict in ("invalid", "missing", "new"):
        why = fits[0].reason if fits else "the gate has no gated verdict on it"
        reason = cannot.message if cannot else why
        return Step(answer="skipped", reason=reason, is_measured=sum(result.n_blocks.values()) > 0)
    first = fits[0]
    answer: Answer = "unclear"
    if first.verdict == "regressed":
        answer = "bad"
    elif all(one.verdict in ("unchanged", "improved") for one in fits):
        answer = "good"
    return Step(
        answer=answer,
        reason=f"{first.verdict}: {first.reason}",
        change_pct=first.change_pct,
        low_pct=first.low_pct,
        high_pct=first.high_pct,
    )


def prepare_all(state: BisectState, out: Path, repository: Repository, say: Callable[[str], None]) -> None:
    """Every gate that may be asked for, so that measuring needs no git; what cannot be prepared will be skipped."""
    for number, commit in enumerate(state.plan.commits, start=1):
        if commit.source_hash == state.plan.good_source:
            continue
        say(f"gate {number} of {len(state.plan.commits)}: {commit}")
        try:
            prepare(state, commit.commit, out, repository)
        except MissingDataError as error:
            if "base without data" in str(error):
                raise
            state.steps[commit.commit] = Step(answer="skipped", reason=str(error), is_measured=False)
    save(state, out)
