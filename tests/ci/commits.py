"""A small repository whose library says how long it takes, and what measures it: fake_commit_run.py."""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.harness import record_files
from benchmarks.harness.samples import SCHEMA
from tests.ci.nights import exact, make_record, timed


class Commits:
    """``commit`` writes files and returns the commit; ``command`` starts the program that measures a tree."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root / "repository", root / "measuring"
        self.root.mkdir()
        self.folder.mkdir()
        self.git("init", "--quiet", "--initial-branch", "main")
        template = make_record([timed(100.0), exact(1000.0)])
        (self.folder / "template.json").write_bytes(record_files.encode(template))
        pq.write_table(SCHEMA.empty_table(), self.folder / "template.parquet")

    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-S", str(Path(__file__).with_name("fake_commit_run.py")), str(self.folder))

    @property
    def started(self) -> list[str]:
        """The commit of every process so far."""
        path = self.folder / "started.txt"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def git(self, *arguments: str) -> str:
        settings = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
        command = ["git", *settings, *arguments]
        return subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, message: str, library: str) -> str:
        """A commit with this text as its library."""
        for name, text in (("recoverssm/__init__.py", library), ("benchmarks/run.py", "")):
            path = self.root / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")
