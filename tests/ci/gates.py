"""Gates between commits of small repositories, whose libraries say themselves how long their ops take.

Everything but the card and the measuring program is real: git, trees, fork servers, environment, state, judge.
"""

import io
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from ci.exits import Exit
from ci.gate import running
from ci.gate.judge import judge
from ci.gate.plan import Plan
from ci.gate.prepare import Request, prepare
from ci.gate.result import GateResult, GateVerdict
from ci.gpus import Gpu
from ci.trees import Repository

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("gate_program")
POLICY = ("thresholds.toml", "known-regressions.toml", "aliases.toml", "nightly.toml", "gate/plan.py")
CARD, OTHER_CARD = Gpu("GPU-1", "A card"), Gpu("GPU-2", "Another card")

LIBRARY = {
    "TIMES_US": {"verify": 100.0, "commit": 400.0},
    "NOISE": 0.003,
    "SLOW_MODE": 0.0,  # share of processes that take 12 % longer
    "CACHE_BYTES": 1000,
    "READ_BYTES": 500,
    "LAUNCHES": 1,
    "FINGERPRINT": "as it was",
    "GPU": CARD.uuid,
    "DRIVER": "580",
    "CRASHES": (),
    "WRONG": (),
    "DRIFTS": (),
    "LEAVES_NO_RECORD": (),
}


def library(**changes: object) -> str:
    """Source of a library; a fingerprint that is not given is that of its times."""
    facts = {**LIBRARY, **changes}
    facts["FINGERPRINT"] = changes.get("FINGERPRINT", str(facts["TIMES_US"]))
    return "".join(f"{name} = {value!r}\n" for name, value in facts.items())


def slower(percent: float) -> str:
    """A library whose verify takes so much longer."""
    return library(TIMES_US={"verify": 100.0 * (1 + percent / 100), "commit": 400.0})


@dataclass
class FakeGate:
    """A repository and gates in it: ``commit`` libraries, then ``gate`` between two of them."""

    tmp: Path
    root: Path = field(init=False)
    said: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self.root = self.tmp / "repository"
        self.root.mkdir()
        self.git("init", "--quiet", "--initial-branch", "main")
        program = self.root / "benchmarks"
        shutil.copytree(PROGRAM, program, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(
            ROOT / "benchmarks" / "harness", program / "harness", ignore=shutil.ignore_patterns("__pycache__")
        )
        (program / "__init__.py").touch()
        for name in POLICY:
            self.write(f"ci/{name}", (ROOT / "ci" / name).read_text())

    def git(self, *arguments: str) -> str:
        settings = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *settings, *arguments], cwd=self.root, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self, source: str, **others: str) -> str:
        """A commit of this library; ``others`` are further files, by name with __ for a slash."""
        self.write("recoverssm/__init__.py", source)
        for name, text in others.items():
            self.write(name.replace("__", "/").replace("_DOT_", "."), text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "a change")
        return self.git("rev-parse", "HEAD")

    def prepare(self, base: str, head: str, name: str = "gate", **changes: object) -> Path:
        """A prepared folder."""
        folder = self.tmp / name
        self.plan: Plan = prepare(Request(base, head, **{"seed": 7, **changes}), folder, Repository(self.root))
        return folder

    def run(self, folder: Path, **options: object) -> Exit:
        return running.run(folder, running.Options(**options), Console(file=self.said, width=200))

    def gate(self, base: str, head: str, **changes: object) -> GateResult:
        """All of it."""
        folder = self.prepare(base, head, **changes)
        assert self.run(folder) == Exit.PASS
        return judge(folder)


def verdict_of(result: GateResult, op: str, metric: str = "device_us", case: str = "one") -> GateVerdict:
    """The one verdict on that series."""
    (found,) = (v for v in result.verdicts if (v.op, v.metric, v.case) == (op, metric, case))
    return found


def kinds(result: GateResult) -> set[str]:
    """Of findings that are no notes."""
    return {finding.kind for finding in result.findings} - {"note"}
