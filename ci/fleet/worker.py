"""What a cluster runs on a node: one shard of a night, measured into a folder of that node, and a report at its end."""

import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.harness.records import repetitions
from benchmarks.harness.store import open_store
from ci.config import load_thresholds
from ci.exits import CommandError, Exit, InUseError
from ci.nightly import run_nightly
from ci.options import Options
from ci.processes import run_child
from ci.session import load
from ci.validity import tell_sound
from ci.whole_files import json_bytes, replace_file

CONTROL_CAP_S = 300
REPORT = "report.json"
STORE = "store"


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a shard ended on a node.

    Attributes:
        node_fails: why this node must not measure; empty where it may.
    """

    node: str
    code: int
    node_fails: list[str] = []
    messages: list[str] = []


@dataclass(frozen=True, slots=True)
class ShardJob:
    """One shard, to be called on a node. Called again on the same node, it goes on where it was cut short.

    Attributes:
        options: of the shard, but for the folders, which are the node's own below ``place``.
        control: a command that says by its exit code whether the node may measure at all.
    """

    options: Options
    place: Path
    control: tuple[str, ...] = ()

    def __call__(self) -> None:
        node = os.environ.get("SLURMD_NODENAME") or platform.node()
        folder = self.place / node
        folder.mkdir(parents=True, exist_ok=True)
        why = _fails_control(self.control)
        report = Report(node, Exit.BROKEN, [why]) if why else self._measure(node, folder)
        replace_file(folder / REPORT, json_bytes(report), "make room there")

    def checkpoint(self) -> object:
        """For submitit: what to run again after preemption or a time-out."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _measure(self, node: str, folder: Path) -> Report:
        state = load(folder)
        if state is not None and state.is_complete:  # only its report was lost
            return Report(node, Exit.PASS, _unsound(folder / STORE))
        options = replace(self.options, out=folder, store=str(folder / STORE), resume=state is not None, page=False)
        try:
            result = run_nightly(options, Console(stderr=True))
        except CommandError as error:
            broken = [str(error)] if error.code == Exit.BROKEN and not isinstance(error, InUseError) else []
            return Report(node, error.code, broken, [str(error)])
        if result.code == Exit.INTERRUPTED:
            raise RuntimeError(f"{node}: {'; '.join(result.messages)}")  # no report: the shard is not done
        return Report(node, result.code, _unsound(folder / STORE), result.messages)


def _fails_control(command: tuple[str, ...]) -> str | None:
    if not command:
        return None
    try:
        ended = run_child(command, env=os.environ, cwd=Path.cwd(), cap_s=CONTROL_CAP_S, on_line=lambda _: None)
    except OSError as error:
        return f"control {command[0]}: {error}"
    if ended.timed_out:
        return f"control {command[0]}: no end after {CONTROL_CAP_S} s"
    return f"control {command[0]}: {ended.describe(CONTROL_CAP_S)}" if ended.code else None


def _unsound(store: Path) -> list[str]:
    """Why this node's processes cannot be believed; empty where as many can as there are or as a night needs."""
    statistics = load_thresholds().statistics
    records = [record for record in open_store(str(store), writable=False).records() if not record.is_static]
    sound, reasons = tell_sound(records, statistics.drift_limit_pct)
    enough = min(repetitions(records), statistics.min_processes)
    return [] if repetitions(sound) >= enough else list(reasons.values())
