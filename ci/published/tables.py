"""``ci reproduce pr51855|pr52993|pr56082``: published tables beside what is recorded on one GPU model."""

from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

from rich.console import Console

from ci.commits.reproduce import Reproduction, Step
from reports.sources import History

from . import pr51855, pr52993, pr56082
from .recorded import Recorded, choose_gpu
from .rows import Row

TABLES: dict[str, ModuleType] = {"pr51855": pr51855, "pr52993": pr52993, "pr56082": pr56082}
PROVIDERS = "vllm_recoverssm,vllm_native"
HEADS = ("what", "published", "source", "theirs on this card", "ours on this card", "verdict", "nights")


@dataclass(frozen=True, slots=True)
class Table:
    """One published table; ``again`` are the commands that measure this card's side of it."""

    name: str
    gpu_model: str
    rows: tuple[Row, ...]
    again: Reproduction


def table(history: History, name: str, gpu_model: str = "*") -> Table:
    """Raises MissingDataError where no GPU model, or more than one, fits the glob."""
    model = choose_gpu(history, gpu_model)
    found: list[Row] = list(TABLES[name].rows(Recorded(history, model)))
    return Table(name, model, tuple(found), again(name))


def again(name: str) -> Reproduction:
    """What measures all that the table needs, in one night."""
    cases = ",".join(case.name for case in TABLES[name].cases())
    command = ["python", "-m", "ci", "nightly", "--set", "published", "--case", cases, "--providers", PROVIDERS]
    return Reproduction(f"published table {name}", "this card's side of it", [Step(command)])


def as_json(found: Table) -> dict[str, Any]:
    rows = [asdict(row) for row in found.rows]
    steps = [list(step.argv) for step in found.again.steps]
    return {"exit_code": 0, "table": found.name, "gpu_model": found.gpu_model, "rows": rows, "steps": steps}


def show(found: Table, console: Console) -> None:
    """A Markdown table, then the command that measures it again."""
    lines = [HEADS, ("---",) * len(HEADS), *(tuple(asdict(row).values()) for row in found.rows)]
    for line in lines:
        console.print(f"| {' | '.join(line)} |", markup=False, highlight=False, soft_wrap=True)
    console.print(f"\nmeasure it again: {found.again.steps[0]}", markup=False, highlight=False, soft_wrap=True)
