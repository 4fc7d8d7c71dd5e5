"""What the changelog gained between two commits, as git has it. No git, or no such commit: unknown, never empty."""

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.harness.ids import COMMIT_HASH

ROOT = Path(__file__).parent.parent
FILE = "CHANGELOG.md"
GIT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Changelog:
    """Entries by commit, of those that git has."""

    entries: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, commits: Iterable[str | None], root: Path = ROOT) -> Self:
        """The changelog at each of these commits, asked for in one go; what is no hash is never given to git."""
        wanted = list(dict.fromkeys(commit for commit in commits if commit and COMMIT_HASH.fullmatch(commit)))
        asked = "".join(f"{commit}:{FILE}\n" for commit in wanted)
        try:
            done = subprocess.run(
                ["git", "-C", str(root), "cat-file", "--batch"],
                input=asked.encode(),
                capture_output=True,
                timeout=GIT_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return cls({})
        return cls(dict(_answers(wanted, done.stdout)) if done.returncode == 0 else {})

    def gained(self, before: str | None, after: str | None, words: Sequence[str]) -> list[str] | None:
        """Entries with one of the words that the later commit has and the earlier has not, one line each, in order.

        An entry that was reworded counts as gained. None where git does not have both commits.
        """
        old, new = (self.entries.get(commit or "") for commit in (before, after))
        if old is None or new is None:
            return None
        return [entry for entry in new if entry not in old and any(word in entry for word in words)]


def _answers(wanted: Sequence[str], answers: bytes) -> Iterable[tuple[str, Sequence[str]]]:
    """Git answers in order: ``HASH blob SIZE``, the file and a newline; or one line without a size."""
    at = 0
    for commit in wanted:
        head, _, _ = answers[at:].partition(b"\n")
        at += len(head) + 1
        found = re.fullmatch(rb"[0-9a-f]+ blob (\d+)", head)
        if found:
            size = int(found[1])
            yield commit, parse(answers[at : at + size].decode("utf-8", errors="replace"))
            at += size + 1


def parse(changelog: str) -> list[str]:
    """The list's entries, each with its further lines joined."""
    found = re.findall(r"^- (.*(?:\n {2}.*)*)", changelog, flags=re.M)
    return [re.sub(r"\s*\n\s*", " ", entry) for entry in found]
