"""A store on a git branch, checked out beside the workspace: every addition is a commit, every night a push."""

import subprocess
from pathlib import Path

from .errors import BranchError
from .store import Store

PUSH_TRIES = 5
REBASE_STATES = ("rebase-merge", "rebase-apply")  # folders of git while a rebase is under way
AUTHOR = ("recoverssm-nightly", "nightly@recoverssm.invalid")  # where git knows no user, as on a fresh runner


def open_branch_store(branch: str, *, writable: bool = True, workspace: Path | None = None) -> Store:
    """Check ``branch`` out beside the workspace, up to date with its remote where there is one.

    A branch that exists nowhere is made, empty and without a parent; one that is only to be read is an absent folder.

    Raises:
        BranchError: no git repository here; the remote cannot be reached and the branch is not here either; or
            something else is checked out in the store's folder.
    """
    if not branch or branch.startswith("-"):
        raise BranchError(f"expected branch:NAME, such as branch:perf-history, got the name {branch!r}")
    top = Path(_git(workspace or Path.cwd(), "rev-parse", "--show-toplevel"))
    remote = _remote(top)
    on_remote = remote is not None and _fetch(top, remote, branch)
    folder = top.parent / f"{top.name}-{branch}"
    if not (folder / ".git").exists():
        if not _has(top, f"refs/heads/{branch}"):
            if not on_remote and not writable:
                return Store(folder, writable=False)
            start = f"{remote}/{branch}" if on_remote else _empty_commit(top, branch)
            _git(top, "branch", "--no-track", branch, start)
        _git(top, "worktree", "prune")
        _git(top, "worktree", "add", str(folder), branch)
    store = BranchStore(folder, branch=branch, remote=remote, writable=writable)
    store.catch_up(on_remote=on_remote)
    return store


class BranchStore(Store):
    """The store in ``folder``, a worktree of ``branch``."""

    def __init__(self, folder: Path, *, branch: str, remote: str | None, writable: bool = True) -> None:
        super().__init__(folder, writable=writable)
        self._branch, self._remote = branch, remote

    def catch_up(self, *, on_remote: bool) -> None:
        """Clean up after runs that were killed, and put what is only here onto what the remote has.

        Raises:
            BranchError: something else is checked out in the folder, or git cannot rebase.
        """
        with self._locked():  # another night may be adding to the same checkout
            _require_branch(self.folder, self._branch)
            if self.writable:
                _commit_leftovers(self.folder)
            if on_remote:
                _rebase(self.folder, f"{self._remote}/{self._branch}")

    def publish(self) -> None:
        """Push; when others pushed first, rebase onto theirs and try again.

        Raises:
            BranchError: the files are committed in the worktree, and the message says how to push them later.
        """
        if self._remote is None:
            return
        problem = ""
        for _ in range(PUSH_TRIES):
            try:
                _git(self.folder, "push", self._remote, f"HEAD:refs/heads/{self._branch}")
            except BranchError as error:
                problem = str(error)
            else:
                return
            try:
                _git(self.folder, "fetch", self._remote, self._refspec())
                with self._locked():
                    _rebase(self.folder, f"{self._remote}/{self._branch}")
            except BranchError as error:
                problem = str(error)
        raise BranchError(
            f"{self._branch}: could not push to {self._remote} in {PUSH_TRIES} tries ({problem}). Nothing is lost: all "
            f"is committed in {self.folder}. Push later: git -C {self.folder} push {self._remote} HEAD:{self._branch}"
        )

    def _refspec(self) -> str:
        return f"+refs/heads/{self._branch}:refs/remotes/{self._remote}/{self._branch}"

    def _added(self, paths: list[Path], what: str) -> None:
        try:
            with self._locked():
                _git(self.folder, "add", "--all", "--", *(str(path) for path in self._touched(paths)))
                _git(self.folder, *_identity(self.folder), "commit", "--quiet", "--message", f"history: {what}")
        except BranchError as error:
            raise BranchError(
                f"{self._branch}: could not commit {what} ({error}). Nothing is lost: the files are in {self.folder}. "
                f"Commit later: git -C {self.folder} add records nights && git -C {self.folder} commit"
            ) from error

    def _touched(self, paths: list[Path]) -> list[Path]:
        """The paths, and for what was set aside also its place before, where git still has it."""
        kept_in = self.folder / "quarantine"
        before = [self.folder / path.relative_to(kept_in) for path in paths if path.is_relative_to(kept_in)]
        tracked = [path for path in before if _git(self.folder, "ls-files", "--", str(path))]
        return [*paths, *tracked]


def _remote(top: Path) -> str | None:
    remotes = _git(top, "remote").split()
    return "origin" if "origin" in remotes else next(iter(remotes), None)


def _fetch(top: Path, remote: str, branch: str) -> bool:
    """Whether the remote has the branch, which is then up to date here."""
    try:
        listed = _git(top, "ls-remote", "--heads", remote, f"refs/heads/{branch}")
        if listed:
            _git(top, "fetch", remote, f"+refs/heads/{branch}:refs/remotes/{remote}/{branch}")
    except BranchError as error:
        if _has(top, f"refs/heads/{branch}"):
            return False  # go on with what is here; publish() says what is wrong with the remote
        raise BranchError(
            f"{branch}: not here, and {remote} cannot be asked for it ({error}). Give a folder as --store for now"
        ) from error
    return bool(listed)


def _has(top: Path, ref: str) -> bool:
    return bool(_git(top, "for-each-ref", ref))


def _empty_commit(top: Path, branch: str) -> str:
    tree = _git(top, "mktree", stdin="")
    return _git(top, *_identity(top), "commit-tree", tree, "-m", f"{branch}: begin")


def _require_branch(folder: Path, branch: str) -> None:
    """Undo a rebase that was killed, which leaves no branch checked out; refuse to write to another branch."""
    _abort_rebase(folder)
    try:
        found = _git(folder, "symbolic-ref", "--short", "HEAD")
    except BranchError:
        found = "a single commit"
    if found != branch:
        raise BranchError(f"{folder} has {found} checked out; go back: git -C {folder} checkout {branch}")


def _commit_leftovers(folder: Path) -> None:
    """Commit files that an interrupted run wrote but could not commit; temporary ones stay out."""
    present = [name for name in ("records", "nights", "quarantine") if (folder / name).exists()]
    if present:
        _git(folder, "add", "--all", "--", *present, ":(exclude,glob)**/*.tmp")
    if _git(folder, "diff", "--cached", "--name-only"):
        _git(folder, *_identity(folder), "commit", "--quiet", "--message", "history: commit what an earlier run left")


def _rebase(folder: Path, onto: str) -> None:
    try:
        _git(folder, *_identity(folder), "rebase", "--quiet", onto)
    except BranchError:
        _abort_rebase(folder)
        raise


def _abort_rebase(folder: Path) -> None:
    # A rebase that git refused to begin has left nothing to undo.
    if any(Path(folder, _git(folder, "rev-parse", "--git-path", name)).exists() for name in REBASE_STATES):
        _git(folder, "rebase", "--abort")


def _identity(folder: Path) -> list[str]:
    """Options that name an author where git knows none; commits of a program are not signed."""
    options = ["-c", "commit.gpgsign=false"]
    for key, value in zip(("user.name", "user.email"), AUTHOR, strict=True):
        known = subprocess.run(["git", "config", key], cwd=folder, check=False, capture_output=True)
        if known.returncode != 0:
            options += ["-c", f"{key}={value}"]
    return options


def _git(folder: Path, *arguments: str, stdin: str | None = None) -> str:
    """Standard output of a git command, stripped. Raises BranchError with what git said."""
    # The workspace's hooks check code; the history branch has none, and they would fail there.
    try:
        done = subprocess.run(
            ["git", "-c", "core.hooksPath=/dev/null", *arguments],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            input=stdin,
            timeout=600,
        )
    except subprocess.CalledProcessError as error:
        raise BranchError(f"git {' '.join(arguments[:3])}: {error.stderr.strip() or error.stdout.strip()}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BranchError(f"git {' '.join(arguments[:3])}: {error}") from error
    return done.stdout.strip()
