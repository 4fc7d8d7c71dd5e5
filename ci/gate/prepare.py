"""``gate prepare``: both trees, what judges them, and what of that the head would change. Needs git."""

import datetime as dt
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.environment import source_hash
from benchmarks.harness.ids import COMMIT_DIGITS, commit_of
from benchmarks.harness.store import RECENT_NIGHTS, Store, open_store
from ci.config import load_nightly
from ci.exits import MissingDataError, UsageError
from ci.policy import ALIASES_FILE, FILES, load_policy, policy_hash
from ci.trees import Repository, Tree, export_tree

from .listing import list_cases
from .plan import HEAD_OWN, USUAL_BLOCKS, Plan, SidePlan, save
from .result import Side

POLICY_FILES = tuple(f"ci/{name}" for name in (*FILES, "nightly.toml"))
JUDGES = ("benchmarks", "ci")
"""What measures and judges. A head that changes any of it is judged by the base's, and an owner is told."""

MARK = "ci/gate/plan.py"
"""A commit without it is older than gates: its program lacks what a gate asks for."""


@dataclass(frozen=True, slots=True)
class Request:
    """A gate as asked for.

    Attributes:
        with_data: a store; the base is then the nearest ancestor with an accepted night in it.
        harness: whose program measures: base, head, own (each its own) or a commit; None for the base's, or the head's
            where the base is older than gates.
    """

    base: str
    head: str = "HEAD"
    case_set: str = "pr"
    pattern: str = "*"
    seed: int = 0
    screen_blocks: int = USUAL_BLOCKS["screen"]
    confirm_blocks: int = USUAL_BLOCKS["confirm"]
    harness: str | None = None
    archs: Sequence[str] = ()
    with_data: str | None = None
    approved_by: str = ""


def prepare(request: Request, folder: Path, repository: Repository) -> Plan:
    """Fill ``folder`` with everything that ``gate run`` and ``gate judge`` need.

    Raises:
        UsageError: a commit, set or case that does not exist, or a folder in use.
        MissingDataError: a base that cannot be measured, or nothing selected.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"--out {folder}: expected an empty folder", "remove it, or go on with it: gate run DIR")
    head = repository.resolve(request.head)
    base, found = choose_base(request, repository, head)
    harness, programs = _choose_programs(request.harness, repository, base, head)
    policy_of = base if repository.has(base, MARK) else programs["base"]
    commits: dict[Side, str] = {"base": base, "head": head}
    try:
        sides = {
            name: export_tree(repository, commit, folder / name, program_of=programs[name])
            for name, commit in commits.items()
        }
        _export_policy(repository, policy_of, folder / "policy", POLICY_FILES)
        _export_policy(repository, head, folder / "policy-head", (f"ci/{ALIASES_FILE.name}",))
        plan = _plan(request, repository, folder, sides["base"], sides["head"], found, harness, policy_of)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    save(folder, plan)
    return plan


def choose_base(request: Request, repository: Repository, head: str) -> tuple[str, str]:
    """The commit to compare with, and how it was found: by ancestry, never by time.

    Raises:
        MissingDataError: no common commit, or none with data.
    """
    base = repository.merge_base(repository.resolve(request.base), head)
    if request.with_data is None:
        return base, "merge base"
    nearest = _nearest_with_data(open_store(request.with_data, writable=False), repository, base)
    if nearest is None:
        raise MissingDataError(
            f"base without data: no ancestor of {base[:12]} has an accepted night in {request.with_data}",
            "leave out --with-data: the base is then measured anew",
        )
    return nearest, "merge base" if nearest == base else "nearest ancestor with data"


def _nearest_with_data(store: Store, repository: Repository, commit: str) -> str | None:
    """The nearest ancestor that has an accepted night, a recent one if there is. Ids tell commits, so few are read."""
    for newest in (RECENT_NIGHTS, None):
        ids: dict[str, set[str]] = {}
        for name in store.ids("nights", newest=newest):
            ids.setdefault(commit_of(name), set()).add(name)
        for ancestor in repository.ancestors(commit):
            own = ids.get(ancestor[:COMMIT_DIGITS])
            if own and any(night.accepted for night in store.nights(ids=own)):
                return ancestor
    return None


def _choose_programs(asked: str | None, repository: Repository, base: str, head: str) -> tuple[str, dict[Side, str]]:
    """Whose program measures, in a word, and the commit of it for each side.

    Raises:
        UsageError: one that is older than gates, or no commit.
    """
    chosen = asked or ("base" if repository.has(base, MARK) else "head")
    programs = {"base": (base, base), "head": (head, head), "own": (base, head)}.get(chosen)
    if programs is None:
        commit = repository.resolve(chosen)
        chosen, programs = commit[:12], (commit, commit)
    for commit in programs:
        if not repository.has(commit, MARK):
            raise UsageError(
                f"--harness {chosen}: commit {commit[:12]} is older than gates, its program cannot measure for one",
                "--harness COMMIT: a newer program measures both sides, which an owner has to approve",
            )
    return chosen, {"base": programs[0], "head": programs[1]}


def _export_policy(repository: Repository, commit: str, folder: Path, paths: Sequence[str]) -> None:
    repository.export(commit, paths, folder)
    if (folder / "ci").is_dir():
        for path in (folder / "ci").iterdir():
            path.rename(folder / path.name)
        (folder / "ci").rmdir()


def _plan(
    request: Request,
    repository: Repository,
    folder: Path,
    base: Tree,
    head: Tree,
    found: str,
    harness: str,
    policy_of: str,
) -> Plan:
    load_policy(folder / "policy")  # a mistake in it is found here, not after measuring
    changed = repository.changed(base.commit, head.commit, JUDGES)
    if harness == "base" and any(path.startswith("benchmarks/") for path in changed):
        export_tree(repository, head.commit, folder / HEAD_OWN)
    sides = [
        SidePlan(
            commit=tree.commit,
            subject=repository.subject(tree.commit),
            source_hash=tree.source_hash,
            program_hash=source_hash(tree.folder / "benchmarks"),
        )
        for tree in (base, head)
    ]
    return Plan(
        date=dt.datetime.now(dt.UTC).date(),
        base=sides[0],
        head=sides[1],
        distance=repository.distance(base.commit, head.commit),
        base_found=found,
        harness=harness,
        case_set=request.case_set,
        pattern=request.pattern,
        cases=list_cases(folder / "base", request.case_set, request.pattern),
        archs=list(request.archs or load_nightly(folder / "policy" / "nightly.toml").static.archs),
        seed=request.seed,
        blocks={"screen": request.screen_blocks, "confirm": request.confirm_blocks},
        policy_hash=policy_hash(folder / "policy"),
        policy_of=policy_of,
        policy_changes=changed,
        approved_by=request.approved_by,
    )
