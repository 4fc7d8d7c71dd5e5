"""``ci backfill A..B``: measures every commit of a range on one card, in turn, so that they can be compared.

Nights measure one commit each, on other days and cards; here all commits share the card and the hour. Each commit is a
night of its own on the way (``ci.measuring``), and a round takes one process of each, in an order drawn anew. Records
carry the backfill's id, so that no night counts them.
"""

import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from benchmarks.estimate import estimate_process
from benchmarks.harness.ids import new_id
from benchmarks.harness.store import Store, open_store
from ci.config import NightlyConfig, load_nightly
from ci.exits import CommandError, Exit, Interrupted, MissingDataError, UsageError
from ci.gpus import Gpu, choose_gpus, find_gpus
from ci.history.layout import HISTORY
from ci.measuring import ROOT, Measuring
from ci.nightly import alone_on, open_to_write, own
from ci.processes import interruptible
from ci.session import Plan, State, load, make_seeds, save
from ci.starting import FORK_SERVER
from ci.trees import Repository
from ci.whole_files import json_bytes, replace_file

from .ranges import Commit, commits_between, export, parse_range, thin, tree_of

COMMAND = (sys.executable, "-m", "benchmarks.run")
FILE = "backfill.json"


class BackfillPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was asked for; ``--resume`` goes on with exactly this.

    Attributes:
        program: whose benchmarks measure; None: each commit's own.
        same: commits whose sources another one has too, with that one: measured once.
        lean: what gates judge alone is measured; not every commit's own program knows the option.
    """

    id: str
    range: str
    case_set: str
    pattern: str
    store: str
    seeds: list[int]  # one per round
    program: str | None
    commits: list[Commit]
    same: dict[str, str]
    lean: bool

    @property
    def measured(self) -> list[Commit]:
        """Those that processes are started for."""
        return [one for one in self.commits if not one.missing and one.commit not in self.same]


class BackfillState(msgspec.Struct, forbid_unknown_fields=True):
    """A plan, the card it is measured on, and the commits that turned out not to work, with the reason."""

    plan: BackfillPlan
    gpu: str | None = None
    skipped: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Request:
    """A backfill as asked for. ``program``: a commit, or ``own``; the newest commit's benchmarks when None."""

    range: str
    case_set: str
    pattern: str
    store: str
    rounds: int
    seed: int
    every: int = 1
    program: str | None = None
    lean: bool = True
    root: Path = ROOT


@dataclass(slots=True)
class Result:
    """What came of it; ``records`` are the ids of each commit's."""

    code: Exit
    state: BackfillState
    records: dict[str, list[str]]
    messages: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        return {commit: len(ids) for commit, ids in self.records.items()}


def commits_of(request: Request) -> list[Commit]:
    """The commits that would be measured, oldest first; only git is asked. Raises as ``commits_between``."""
    repository = Repository(request.root)
    names = thin(commits_between(repository, *parse_range(request.range)), request.every)
    return [Commit(name, repository.subject(name)) for name in names]


def preview(request: Request, num_cases: int, *, estimate: bool, only_list: bool) -> dict[str, Any]:
    """What a backfill would do, for people and programs; nothing is written."""
    commits = commits_of(request)
    facts: dict[str, Any] = (
        {} if estimate else {"commits": [{"commit": c.short, "subject": c.subject} for c in commits]}
    )
    if only_list:
        return facts
    processes = len(commits) * request.rounds
    found = estimate_process(open_store(str(HISTORY), writable=False), request.case_set, num_cases)
    seconds = {
        model: {"seconds": round(one.process_s * processes), "from_night": one.from_night}
        for model, one in found.items()
    }
    return facts | {"num_commits": len(commits), "processes": processes, "store": request.store, "estimate": seconds}


def prepare(request: Request, out: Path, console: Console) -> BackfillState:
    """Write all commits' trees and the plan to ``out``; what follows needs no git.

    Raises:
        UsageError: ``out`` holds a backfill already; or as ``commits_between``.
        MissingDataError: as ``commits_between``.
    """
    if (out / FILE).exists():
        raise UsageError(f"--out: {out / FILE} exists", f"python -m ci backfill --resume --out {out}, or another --out")
    repository = Repository(request.root)
    names = [commit.commit for commit in commits_of(request)]
    own = request.program == "own"
    program = None if own else repository.resolve(request.program or names[-1])
    commits = export(repository, names, out, program_of=program, say=lambda text: _say(console, text))
    plan = BackfillPlan(
        id=new_id(names[-1]),
        range=request.range,
        case_set=request.case_set,
        pattern=request.pattern,
        store=request.store,
        seeds=make_seeds(request.seed, request.rounds),
        program=program,
        commits=commits,
        same={} if own else _same_sources(commits),
        lean=request.lean and not own,
    )
    state = BackfillState(plan)
    save_state(state, out)
    return state


def _same_sources(commits: Sequence[Commit]) -> dict[str, str]:
    first: dict[str, str] = {}
    return {
        one.commit: earlier
        for one in commits
        if not one.missing and (earlier := first.setdefault(one.source_hash, one.commit)) != one.commit
    }


def save_state(state: BackfillState, out: Path) -> None:
    """Raises BrokenEnvironmentError where it cannot be written."""
    replace_file(out / FILE, json_bytes(state))


def load_state(out: Path) -> BackfillState:
    """Raises UsageError without one that can be read."""
    try:
        return msgspec.json.decode((out / FILE).read_bytes(), type=BackfillState)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{out / FILE}: cannot be read: {error}", "python -m ci backfill A..B --out DIR") from error


def run(
    state: BackfillState,
    out: Path,
    console: Console,
    *,
    gpus: str | None = None,
    wait_s: float = 0.0,
    max_minutes: float | None = None,
    command: Sequence[str] = COMMAND,
) -> Result:
    """Measure what has no record yet, round by round. A commit whose first process leaves no record is skipped.

    Raises:
        CommandError: the card is in use, gone, or not the one of the beginning; or a commit that was measured before
            cannot be any more.
    """
    begun_s, gpu = time.monotonic(), _card(state, gpus)
    store, config = open_to_write(state.plan.store), load_nightly()
    state.gpu = gpu.uuid
    command = [*command, *(["--lean"] if state.plan.lean else [])]
    save_state(state, out)
    measurings = {
        one.commit: _measuring(state, one, out, store, config, command, console) for one in state.plan.measured
    }
    until_s = math.inf if max_minutes is None else begun_s + 60 * max_minutes
    for measuring in measurings.values():
        measuring.until_s = until_s
    try:
        with own(out), interruptible(), alone_on(gpu, wait_s):
            for seed in state.plan.seeds:
                _round(seed, gpu, measurings, state, out, console)
    except Interrupted as signal:
        return _result(state, measurings, out, f"{signal}: all that was measured is stored", Exit.INTERRUPTED)
    store.publish()
    is_up = time.monotonic() >= until_s
    return _result(state, measurings, out, f"time is up after {max_minutes:g} minutes" if is_up else "")


def _card(state: BackfillState, gpus: str | None) -> Gpu:
    present = find_gpus()
    if state.gpu is None:
        (gpu, *others) = choose_gpus(gpus, present)
        if others:
            raise UsageError("--gpus: expected one card: commits on different cards are not comparable")
        return gpu
    if gpus not in (None, state.gpu):
        raise UsageError(f"--gpus: this backfill began on {state.gpu}, and one card measures all of it")
    return choose_gpus(state.gpu, present)[0]


def _measuring(
    state: BackfillState,
    commit: Commit,
    out: Path,
    store: Store,
    config: NightlyConfig,
    command: Sequence[str],
    console: Console,
) -> Measuring:
    plan, folder = state.plan, out / "commits" / commit.short
    folder.mkdir(parents=True, exist_ok=True)
    night = load(folder)
    if night is None:
        asked = (plan.case_set, plan.pattern, plan.store, commit.commit, [str(state.gpu)], plan.seeds)
        night = State(Plan(f"{plan.id}-{commit.short}", *asked), {})
    tree = tree_of(out, commit).resolve()
    measuring = Measuring(night, folder.resolve(), store, config, command, FORK_SERVER, console, root=tree)
    measuring.source_hash, measuring.backfill = commit.source_hash, plan.id
    return measuring


def _round(seed: int, gpu: Gpu, own: dict[str, Measuring], state: BackfillState, out: Path, console: Console) -> None:
    """One process of every commit, all with one seed, in an order drawn from it."""
    order = list(own)
    random.Random(seed).shuffle(order)
    for commit in order:
        if commit in state.skipped:
            continue
        measuring = own[commit]
        has_worked = bool(measuring.state.records)
        try:
            save(measuring.state, measuring.out)
            measuring.measure(gpu, [seed])
            reason = "; ".join([*measuring.failures, *measuring.quarantined])
        except CommandError as error:
            if has_worked:  # so it is not the commit that is broken
                error.next_step = error.next_step or f"python -m ci backfill --resume --out {out}"
                raise
            reason = str(error)
        if reason and not measuring.state.records:
            state.skipped[commit] = reason
            save_state(state, out)
            _say(console, f"skipped {commit[:12]}: {reason}")


def _result(
    state: BackfillState, own: dict[str, Measuring], out: Path, ended: str = "", code: Exit = Exit.PASS
) -> Result:
    """Args: ended: why not everything could be measured, with the code for that."""
    records = {
        commit: [name for ids in one.state.records.values() for name in ids.values()] for commit, one in own.items()
    }
    worked = {commit: one for commit, one in own.items() if commit not in state.skipped}
    lost = [f"{commit[:12]}: {why}" for commit, one in worked.items() for why in (*one.failures, *one.quarantined)]
    messages = [*lost, *(f"warning: {why}" for one in own.values() for why in one.warnings)]
    if not worked:
        reasons = "; ".join(dict.fromkeys(state.skipped.values())) or "none has sources to measure"
        raise MissingDataError(f"none of {len(state.plan.commits)} commits could be measured: {reasons}")
    if all(len(records[commit]) == len(state.plan.seeds) for commit in worked):
        return Result(Exit.PASS, state, records, messages)
    resume = f"python -m ci backfill --resume --out {out}"
    messages.append(f"{ended or 'some processes left no record'}; go on: {resume}")
    return Result(code if ended else Exit.INVALID, state, records, messages)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
