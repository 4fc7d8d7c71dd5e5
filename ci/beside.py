"""What measuring several GPUs of a host at once does to them, seen in their controls: alone, and beside the others."""

import os
import statistics
from collections.abc import Sequence

import msgspec

from benchmarks.harness.records import Control, Record

from .exits import Exit
from .gpus import Gpu
from .measuring import ROOT, Measuring
from .processes import run_child

CAP_S = 180


def read_alone(gpu: Gpu, measuring: Measuring, command: Sequence[str]) -> None:
    """Measure this GPU's controls while its neighbours are idle. Where that fails, people are told."""
    path = measuring.out / "controls-alone.json"
    path.unlink(missing_ok=True)

    def say(line: str) -> None:
        measuring.console.print(f"[{gpu.uuid[:12]}] {line}", markup=False, highlight=False, soft_wrap=True)

    ended = run_child(
        [*command, "--out", str(path.resolve())], env=gpu.child_env(os.environ), cwd=ROOT, cap_s=CAP_S, on_line=say
    )
    if ended.code == Exit.PASS:
        measuring.controls_alone[gpu.uuid] = msgspec.json.decode(path.read_bytes(), type=list[Control])
        path.unlink()
    else:
        say(f"controls were not measured alone: {ended.describe(CAP_S)}")


def changes_pct(records: Sequence[Record]) -> dict[tuple[str, str], tuple[float, int]]:
    """By GPU and control: its time beside others over that alone, in percent, and how many processes say so.

    The median over the processes that had neighbours; alone it was measured once, so differences of half a percent, as
    between two processes, mean nothing.
    """
    beside: dict[tuple[str, str], list[float]] = {}
    for record in records:
        alone = {control.name: control.median_us for control in record.controls_alone}
        for control in record.controls if record.neighbours else ():
            if control.when == "start" and alone.get(control.name):
                key = (record.silicon.gpu_uuid or "unknown", control.name)
                beside.setdefault(key, []).append(100 * (control.median_us / alone[control.name] - 1))
    return {key: (statistics.median(values), len(values)) for key, values in sorted(beside.items())}


def describe(records: Sequence[Record], limit_pct: float) -> list[str]:
    """For the notes of a night: a line for each GPU, and what to do where a control moved by more than the limit."""
    found = changes_pct(records)
    notes = []
    for number, gpu in enumerate(dict.fromkeys(gpu for gpu, _ in found), start=1):
        own = {name: change for (uuid, name), (change, _) in found.items() if uuid == gpu}
        shown = ", ".join(f"{name} {change:+.1f} %" for name, change in own.items())
        worst = max(abs(change) for change in own.values())
        advice = f": above {limit_pct:g} %, measure with --exclusive" if worst >= limit_pct else ""
        notes.append(f"controls of GPU {number} beside others against alone: {shown}{advice}")
    return notes
