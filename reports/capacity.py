"""What a budget holds over context lengths, windows and ranks: the figures of benchmarks/capacity_grid.py."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reports import text
from reports.document import Cell, Section, Table, cells, heads
from reports.drawing import Chart, Line, Point

CAPACITY_FILE = Path(__file__).with_name("capacity.json")


def capacity_section() -> Section:
    """By T and by tensor parallel size, for both dtypes of states."""
    grid = json.loads(CAPACITY_FILE.read_bytes())
    setting = grid["published"]
    lead = (
        f"How many more tokens of full-length requests one rank's cache holds: {grid['model']}, "
        f"{text.size(grid['budget_bytes'])}, records in pages. T is drafts + 1; the published setting is "
        f"T = {setting['spec_query_len']}, TP {setting['tensor_parallel']}, {setting['context_len']:,} tokens. The "
        "longer the context, the more of the cache is attention's, and the less the states weigh. Other settings: "
        "python -m recoverssm capacity --help."
    )
    charts, tables = [], []
    for dtype in dict.fromkeys(point["state_dtype"] for point in grid["points"]):
        for axis, held, label in (
            ("spec_query_len", "tensor_parallel", "T"),
            ("tensor_parallel", "spec_query_len", "TP"),
        ):
            points = [one for one in grid["points"] if one["state_dtype"] == dtype and one[held] == setting[held]]
            points.sort(key=lambda one: one[axis])
            fixed = f"{'TP' if label == 'T' else 'T ='} {setting[held]}"
            title = f"Capacity gain by context length and {label}, {fixed}, {dtype} states"
            charts.append(
                _gain_chart(f"capacity-{label.lower()}-{dtype}", title, grid["context_lens"], points, axis, label)
            )
            tables.append(_gain_table(title, grid["context_lens"], points, axis, label))
    link = Cell("capacity.json", "files/capacity.json")
    return Section("capacity", "Capacity of a budget", (lead,), tuple(charts), tuple(tables), (link,))


def _gain_chart(key: str, title: str, lengths: Sequence[int], points: Sequence[Any], axis: str, label: str) -> Chart:
    lines = tuple(
        Line(
            f"{label} = {one[axis]}",
            tuple(
                Point(length / 1024, gain, f"{length:,} tokens, {gain:+.2f} %")
                for length, gain in zip(lengths, one["capacity_gain_pct"], strict=True)
            ),
        )
        for one in points
    )
    return Chart(
        key,
        title,
        "context length, Ki tokens (log scale)",
        "more tokens than full state, % (higher is better)",
        lines,
        x_log=True,
    )


def _gain_table(title: str, lengths: Sequence[int], points: Sequence[Any], axis: str, label: str) -> Table:
    columns = heads(
        label, "#full state, one request", "#RecoverSSM, one request", *(f"#{length:,}, tokens" for length in lengths)
    )
    rows = [
        cells(
            f"{label} = {one[axis]}",
            text.size(one["full_state_bytes"]),
            text.size(one["recoverssm_bytes"]),
            *(text.percent(gain, signed=True) for gain in one["capacity_gain_pct"]),
        )
        for one in points
    ]
    return Table(title, columns, tuple(rows), folded=True)
