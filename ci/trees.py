"""Trees of commits: a commit's files in a folder of their own, and the proof that a process imports from there.

What lies in a checkout or is installed beside it must never be measured in place of a commit. So a commit's files are
taken from git, never from the working tree, and a process that starts in such a folder is told to forget every other.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.environment import source_hash

from .exits import BrokenEnvironmentError, MissingDataError, UsageError

LIBRARY = ("recoverssm", "pyproject.toml")
"""What of a commit is measured; pyproject.toml names its version."""

PROGRAM = ("benchmarks",)
"""What measures."""

GIT_CAP_S = 120
IMPORT_CAP_S = 180  # torch from a cold disk

_PROBE = """
import sys
from pathlib import Path
import recoverssm
print(Path(recoverssm.__file__).resolve().parent)
"""


@dataclass(frozen=True, slots=True)
class Tree:
    """A commit's library in a folder. ``source_hash`` is of the package's files, as records have it."""

    commit: str
    folder: Path
    source_hash: str


@dataclass(frozen=True, slots=True)
class Repository:
    """Questions to git about one repository.

    Raises:
        BrokenEnvironmentError: from every method: there is no git, or no repository.
    """

    root: Path

    def resolve(self, ref: str) -> str:
        """The commit that a name means. Raises UsageError where it means none."""
        done = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        if done.returncode:
            raise UsageError(f"{ref!r}: expected a commit, branch or tag of {self.root.name}", "git fetch")
        return done.stdout.strip()

    def merge_base(self, base: str, head: str) -> str:
        """The newest commit that both have. Raises MissingDataError where there is none."""
        done = self._git("merge-base", base, head)
        if done.returncode:
            shallow = self._git("rev-parse", "--is-shallow-repository").stdout.strip() == "true"
            why = "this clone is shallow" if shallow else "their histories have nothing in common"
            step = "git fetch --unshallow" if shallow else "give a base that the head descends from"
            raise MissingDataError(f"no merge base of {base[:12]} and {head[:12]}: {why}", step)
        return done.stdout.strip()

    def distance(self, base: str, head: str) -> int:
        """How many commits the head has that the base lacks."""
        return int(self._must("rev-list", "--count", f"{base}..{head}"))

    def ancestors(self, commit: str) -> Iterator[str]:
        """The commit itself, then those before it, nearest first along the first parents."""
        yield from self._must("rev-list", "--first-parent", commit).split()

    def between(self, base: str, head: str) -> list[str]:
        """Commits after the base up to the head, oldest first, along the first parents."""
        return self._must("rev-list", "--first-parent", "--reverse", f"{base}..{head}").split()

    def subject(self, commit: str) -> str:
        """First line of its message."""
        return self._must("show", "--no-patch", "--format=%s", commit)

    def changed(self, base: str, head: str, paths: Sequence[str]) -> list[str]:
        """Files below ``paths`` in which the two commits differ."""
        return self._must("diff", "--name-only", "--no-renames", base, head, "--", *paths).splitlines()

    def uncommitted(self, paths: Sequence[str]) -> list[str]:
        """Files below ``paths`` of the checkout that differ from what is checked out, new ones among them."""
        lines = self._must("status", "--porcelain", "--", *paths).splitlines()
        return [line.split(maxsplit=1)[1] for line in lines]

    def has(self, commit: str, path: str) -> bool:
        return self._git("cat-file", "-e", f"{commit}:{path}").returncode == 0

    def hash_of(self, commit: str, path: str) -> str:
        """Git's hash of what lies below a path: equal exactly where all files are."""
        return self._must("rev-parse", "--verify", "--end-of-options", f"{commit}:{path}")

    def export(self, commit: str, paths: Sequence[str], folder: Path) -> None:
        """Write the files below ``paths`` as the commit has them; a path that it lacks is left out.

        Raises:
            MissingDataError: a link leads out of the folder.
        """
        present = [path for path in paths if self.has(commit, path)]
        folder.mkdir(parents=True, exist_ok=True)
        if not present:
            return
        with tempfile.TemporaryFile() as archive:
            command = ["git", "archive", "--format=tar", commit, "--", *present]
            done = subprocess.run(
                command, cwd=self.root, stdout=archive, stderr=subprocess.PIPE, timeout=GIT_CAP_S, check=False
            )
            if done.returncode:
                raise BrokenEnvironmentError(
                    f"git archive {commit[:12]}: {done.stderr.decode(errors='replace').strip()}"
                )
            archive.seek(0)
            with tarfile.open(fileobj=archive) as tar:
                try:
                    tar.extractall(folder, filter="data")
                except tarfile.FilterError as error:
                    raise MissingDataError(f"commit {commit[:12]} cannot be laid out: {error}") from error

    def _must(self, *arguments: str) -> str:
        done = self._git(*arguments)
        if done.returncode:
            raise BrokenEnvironmentError(f"git {' '.join(arguments[:2])}: {done.stderr.strip()}")
        return done.stdout.strip()

    def _git(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        try:
            return subprocess.run(
                ["git", *arguments], cwd=self.root, capture_output=True, text=True, timeout=GIT_CAP_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BrokenEnvironmentError(f"git: {error}", "do this where git is; the GPU host needs none") from error


def export_tree(repository: Repository, commit: str, folder: Path, *, program_of: str | None = None) -> Tree:
    """The library of ``commit`` and the measuring program of ``program_of`` (the same commit by default), side by side.

    Raises:
        MissingDataError: the commit has no library, or holds a link that leads out of it.
    """
    if not repository.has(commit, "recoverssm"):
        raise MissingDataError(f"commit {commit[:12]} has no folder recoverssm: nothing to measure")
    repository.export(commit, LIBRARY, folder)
    repository.export(program_of or commit, PROGRAM, folder)
    return Tree(commit, folder, source_hash(folder / "recoverssm"))


def clean_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without what could put another library or program in place of that where a process starts.

    Folders of PYTHONPATH that hold neither stay: a host may have its other packages there.
    """
    paths = env.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if Path(path).is_absolute() and not _holds_ours(Path(path))]
    cleaned = {name: value for name, value in env.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    return {**cleaned, **({"PYTHONPATH": os.pathsep.join(kept)} if kept else {})}


def _holds_ours(folder: Path) -> bool:
    return any((folder / name).exists() for name in (LIBRARY[0], *PROGRAM))


def prove_import(folder: Path, env: Mapping[str, str]) -> str | None:
    """Why a process that starts in ``folder`` does not import the library from there; None where it does."""
    command = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(
            command, cwd=folder, env=clean_env(env), capture_output=True, text=True, timeout=IMPORT_CAP_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"recoverssm: not imported within {IMPORT_CAP_S} s"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}, without a word"])[-1]
        return f"recoverssm cannot be imported: {last}"
    if not done.stdout.strip():
        return "recoverssm cannot be imported: it ends the process that tries"
    found, expected = Path(done.stdout.splitlines()[-1]), (folder / "recoverssm").resolve()
    return None if found == expected else f"recoverssm: expected from {expected}, imported from {found}"
