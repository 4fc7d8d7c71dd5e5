"""What the changelog gained between two commits, as git has it. No git, or no such commit: unknown, never empty."""

import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from benchmarks.harness.records import COMMIT_HASH

ROOT = Path(__file__).parent.parent
FILE = "CHANGELOG.md"
GIT_TIMEOUT_S = 20.0


def gained(before: str | None, after: str | None, words: Sequence[str], root: Path = ROOT) -> list[str] | None:
    """Entries with one of the words that the later commit has and the earlier has not, in their order, one line each.

    An entry that was reworded counts as gained. None where git does not have both commits.
    """
    old, new = (entries(commit, root) if commit else None for commit in (before, after))
    if old is None or new is None:
        return None
    return [entry for entry in new if entry not in old and any(word in entry for word in words)]


@cache
def entries(commit: str, root: Path = ROOT) -> tuple[str, ...] | None:
    """Every entry of the changelog at a commit; None where git does not say."""
    if not COMMIT_HASH.fullmatch(commit):
        return None
    command = ["git", "-C", str(root), "show", f"{commit}:{FILE}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return parse(done.stdout) if done.returncode == 0 else None


def parse(changelog: str) -> tuple[str, ...]:
    """The list's entries, each with its further lines joined."""
    found = re.findall(r"^- (.*(?:\n {2}.*)*)", changelog, flags=re.M)
    return tuple(re.sub(r"\s*\n\s*", " ", entry) for entry in found)
