"""Before anything is measured: each side is proven to be itself, compiled, and given a parent for its processes."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.harness.environment import source_hash
from benchmarks.journal import boot_id
from ci.config import Fork, NightlyConfig
from ci.exits import BrokenEnvironmentError, CommandError, Exit, UsageError
from ci.gpus import Gpu
from ci.processes import run_child
from ci.starting import FORK_SERVER, ForkServer, FreshStarter, Starter
from ci.static import compile_static
from ci.trees import clean_env, prove_import

from .listing import list_cases
from .plan import HEAD_OWN, Plan, State, save
from .result import Side

SIDES: tuple[Side, Side] = ("base", "head")
COMPILE_COMMAND = (*FORK_SERVER[:2], "benchmarks.compile_first")
MEASURE_COMMAND = (*FORK_SERVER[:2], "benchmarks.run")


def require_whole(folder: Path, plan: Plan) -> None:
    """Raises BrokenEnvironmentError where a tree is not what was prepared."""
    for side in SIDES:
        expected = plan.side(side)
        for name, wanted in (("recoverssm", expected.source_hash), ("benchmarks", expected.program_hash)):
            tree = folder / side / name
            if not tree.is_dir() or source_hash(tree) != wanted:
                raise BrokenEnvironmentError(f"{tree}: is not what was prepared", "copy the folder anew, all of it")


@dataclass(frozen=True, slots=True)
class Building:
    """Both sides on this machine. What goes wrong with one of them is in the state, to be judged."""

    folder: Path
    plan: Plan
    state: State
    gpu: Gpu
    config: NightlyConfig
    console: Console

    def env(self) -> Mapping[str, str]:
        return self.gpu.child_env(clean_env(os.environ))

    def prove(self) -> None:
        """Each side imports its own library, or says why not; then there is nothing to measure."""
        self.state.broken.clear()  # it may have been the machine
        for side in SIDES:
            why = prove_import(self.folder / side, self.env())
            if why is not None:
                self.state.broken[side] = self.placeless(why)
                self.say(f"{side}: {why}")
        save(self.folder, self.state)

    def list_cases(self) -> None:
        """Ask the head's own program, where it differs, which cases it has."""
        own = self.folder / (HEAD_OWN if self.plan.harness == "base" else "head")
        if not own.is_dir():
            return
        if self.plan.harness == "own" and self.state.head_cases is None:
            self.state.head_cases = list_cases(own, self.plan.case_set, self.plan.pattern)
        elif self.plan.harness == "base" and self.state.vanished is None:
            self.state.vanished = self._vanished(own)
        save(self.folder, self.state)

    def _vanished(self, own: Path) -> list[str]:
        try:
            kept = list_cases(own, self.plan.case_set, "*")
        except CommandError as error:
            self.say(f"head: {error}")
            return self.plan.cases  # the set itself is gone, or its program cannot say
        return [name for name in self.plan.cases if name not in kept]

    def compile_static(self, side: Side, program: Sequence[str]) -> None:
        """Static figures and fingerprints of one side; that there are none is told, and judged.

        Raises:
            UsageError: the base's program knows no such set, case or architecture, which is no commit's fault.
        """
        out = self.folder / "static" / side
        if (out / "report.json").exists():
            return
        out.mkdir(parents=True, exist_ok=True)
        try:
            code, report = compile_static(
                self.plan.case_set,
                [",".join(self.state.cases_of(side, self.plan))],
                ",".join(self.plan.archs),
                out,
                self.console,
                program,
                cap_s=self.config.static.cap_s,
                tree=self.folder / side,
                cache=self.folder / "cache",
            )
            if side == "base" and code == Exit.USAGE:
                (out / "report.json").unlink()
                raise UsageError("; ".join(report["problems"]), "prepare the gate anew with another --arch")
            self.state.not_compiled.pop(side, None)
        except CommandError as error:
            if side == "base" and isinstance(error, UsageError):
                raise
            self.state.not_compiled[side] = self.placeless(str(error))
        save(self.folder, self.state)

    def compile_first(self) -> None:
        """Kernels of both sides into Triton's cache, once for each start of the machine."""
        if self.state.built_in == boot_id() != "":
            return
        for side in SIDES:
            chosen = ["--set", self.plan.case_set, "--case", ",".join(self.state.cases_of(side, self.plan))]
            cap_s = self.config.precompile_cap_s
            ended = run_child(
                [*COMPILE_COMMAND, *chosen], env=self.env(), cwd=self.folder / side, cap_s=cap_s, on_line=self.say
            )
            if ended.code != Exit.PASS:
                self.say(f"{side}: not all was compiled ahead: {ended.describe(cap_s)}")
        self.state.built_in = boot_id()
        save(self.folder, self.state)

    def start(self, stack: ExitStack, fork: Fork) -> Mapping[Side, Starter] | None:
        """What starts each side's processes: a parent that forks them, or new interpreters.

        None where one side's program cannot run, which is noted.

        Raises:
            BrokenEnvironmentError: neither side's can: it is the machine.
        """
        if fork == "no":
            return {side: FreshStarter(MEASURE_COMMAND, self.env(), self.folder / side) for side in SIDES}
        servers: dict[Side, Starter] = {}
        for side in SIDES:
            try:
                servers[side] = stack.enter_context(ForkServer(self.env(), self.folder / side))
            except BrokenEnvironmentError as error:
                if self.state.broken:
                    raise
                self.state.broken[side] = self.placeless(str(error))
                self.say(f"{side}: {error}")
        save(self.folder, self.state)
        return None if self.state.broken else servers

    def placeless(self, text: str) -> str:
        """What is kept for a result, which people elsewhere read, without this machine's folder."""
        return text.replace(str(self.folder), "DIR")

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
