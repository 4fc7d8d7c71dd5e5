"""``python3 -m ci.legs.publish FOLDER``: what was collected, onto branches of this repository.

This runs where the right to write is. So it needs git and the standard library alone, nothing has to be installed; it
opens no file that it publishes; and whatever wrote FOLDER, ``perf-history`` only gains files of a store's names.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ci.exits import WORST_FIRST, BrokenEnvironmentError, CommandError, Exit, MissingDataError
from ci.history.names import STORED

NEW, SITE = "new", "site"  # folders of what was collected
NIGHTS_BRANCH, SITE_BRANCH = "perf-history", "gh-pages"
PAGE_FILE = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]*/)*[A-Za-z0-9][A-Za-z0-9._-]*")  # nothing hidden
MAX_FILES, MAX_FILE_BYTES, MAX_BYTES = 50_000, 64 << 20, 4 << 30  # as of an import
PUSH_TRIES = 5
AUTHOR = ("-c", "user.name=recoverssm-nightly", "-c", "user.email=nightly@recoverssm.invalid")
# No hooks of the workspace, and every file as it is.
PLAIN = ("-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false", "-c", "core.fileMode=false")


class StrangeFileError(CommandError):
    """What was collected holds something else than it may; of its folder nothing was published."""

    code = Exit.INVALID


class Tree(NamedTuple):
    """A folder as git has it; ``files`` are its blobs by name."""

    id: str
    files: dict[str, str]


def publish_nights(folder: Path) -> str:
    """Add the records and nights of ``folder`` to the branch of nights; returns what to tell.

    Raises:
        StrangeFileError: another file of a name is there already, or as ``plain_tree``.
        BrokenEnvironmentError: git cannot do it; others who push meanwhile are waited for a few times.
    """
    found = plain_tree(folder, STORED)
    for last in (*[False] * PUSH_TRIES, True):
        base = _fetched(NIGHTS_BRANCH)
        there = _files(base) if base else {}
        if strange := sorted(name for name, blob in found.files.items() if there.get(name, blob) != blob):
            raise StrangeFileError(f"{NIGHTS_BRANCH}: another {strange[0]} is there; nothing is ever overwritten")
        new = {name: blob for name, blob in found.files.items() if name not in there}
        if not new:
            return f"{NIGHTS_BRANCH}: nothing new"
        commit = _commit(_with_files(base, new), base, f"history: {len(new)} files of {len(found.files)} collected")
        try:
            _git("push", "--quiet", "origin", f"{commit}:refs/heads/{NIGHTS_BRANCH}")
        except BrokenEnvironmentError:  # somebody else pushed
            if last:
                raise
        else:
            break
    return f"{NIGHTS_BRANCH}: {len(new)} new files"


def publish_site(folder: Path) -> str:
    """Make ``folder`` the branch of the site: one commit, without those before it.

    Raises:
        MissingDataError: there is none. Others as ``publish_nights``.
    """
    tree = plain_tree(folder, PAGE_FILE)
    if not tree.files:
        raise MissingDataError(f"{folder}: no site; the one that was published before stays")
    commit = _commit(tree.id, None, "the site")
    _git("push", "--quiet", "--force", "origin", f"{commit}:refs/heads/{SITE_BRANCH}")
    return f"{SITE_BRANCH}: {len(tree.files)} files"


def plain_tree(folder: Path, names: re.Pattern[str]) -> Tree:
    """The files below ``folder``, which git now has; none where there is no such folder.

    Raises:
        StrangeFileError: a link, a name that ``names`` does not fit, or too much.
    """
    with _index() as env:
        if folder.is_dir():
            _git("--work-tree", str(folder.absolute()), "add", "--all", "--force", ".", env=env)
        tree = _git("write-tree", env=env)
    files, total = {}, 0
    for line in _git("ls-tree", "-r", "-l", "-z", tree).split("\0")[:-1]:
        facts, name = line.split("\t", 1)
        mode, _, blob, size = facts.split()
        if mode != "100644" or not names.fullmatch(name):
            raise StrangeFileError(f"{folder}: {name!r}: expected a plain file of a plain name")
        if int(size) > MAX_FILE_BYTES:
            raise StrangeFileError(f"{folder}: {name}: {size} bytes, {MAX_FILE_BYTES} at most")
        files[name], total = blob, total + int(size)
    if len(files) > MAX_FILES or total > MAX_BYTES:
        raise StrangeFileError(f"{folder}: {len(files)} files of {total} bytes, {MAX_FILES} of {MAX_BYTES} at most")
    return Tree(tree, files)


def _files(treeish: str) -> dict[str, str]:
    lines = _git("ls-tree", "-r", "-z", treeish).split("\0")[:-1]
    return {name: facts.split()[2] for facts, name in (line.split("\t", 1) for line in lines)}


def _fetched(branch: str) -> str | None:
    """The newest commit of a branch on GitHub, which is now here; None where there is no such branch."""
    if not _git("ls-remote", "origin", f"refs/heads/{branch}"):
        return None
    _git("fetch", "--quiet", "--no-tags", "origin", f"refs/heads/{branch}")
    return _git("rev-parse", "FETCH_HEAD")


def _with_files(base: str | None, new: dict[str, str]) -> str:
    """The tree of ``base`` and these."""
    with _index() as env:
        if base:
            _git("read-tree", base, env=env)
        lines = "".join(f"100644 {blob}\t{name}\0" for name, blob in new.items())
        _git("update-index", "-z", "--index-info", env=env, stdin=lines)
        return _git("write-tree", env=env)


def _commit(tree: str, parent: str | None, message: str) -> str:
    return _git(*AUTHOR, "commit-tree", tree, *(("-p", parent) if parent else ()), "-m", message)


@contextmanager
def _index() -> Iterator[dict[str, str]]:
    """The environment of git commands that leave the checkout's own index as it is."""
    with tempfile.TemporaryDirectory() as folder:
        yield {**os.environ, "GIT_INDEX_FILE": str(Path(folder) / "index")}


def _git(*arguments: str, env: dict[str, str] | None = None, stdin: str | None = None) -> str:
    done = subprocess.run(
        ["git", *PLAIN, *arguments], env=env, input=stdin, capture_output=True, check=False, text=True, errors="replace"
    )
    if done.returncode != 0:
        raise BrokenEnvironmentError(f"git {' '.join(arguments[:3])}: {done.stderr.strip()}")
    return done.stdout.rstrip("\n")


def main() -> int:
    """Both branches, each whatever came of the other; the exit code that casts most doubt."""
    parser = argparse.ArgumentParser(description="Put new nights and the site onto their branches.")
    parser.add_argument("folder", type=Path, help=f"what was collected: {NEW}/ and {SITE}/")
    folder = parser.parse_args().folder
    codes = [Exit.PASS]
    for publish, name in ((publish_nights, NEW), (publish_site, SITE)):
        try:
            print(publish(folder / name))
        except CommandError as error:
            print(f"error: {error}", file=sys.stderr)
            codes.append(error.code)
    return int(min(codes, key=WORST_FIRST.index))


if __name__ == "__main__":
    sys.exit(main())
