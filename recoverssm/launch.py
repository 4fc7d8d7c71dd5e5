"""Which kernel an op launches, in tiles of which size: rows of data with provenance, no autotuning at call time.

An op may have several kernels, its *forms*, that take the same arguments: a portable one that any card runs, and others
for cards, Triton versions and shapes that they were written for. ``launch_table.toml`` has the rows; ``ci tune`` writes
them. Of the forms that fit a launch the first is taken, and of its rows the most special one.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from recoverssm.dispatch import TensorMeta
from recoverssm.errors import ConfigError
from recoverssm.triton_compat import KernelLaunch
from recoverssm.types import Device, PlannedDevice

TABLE = Path(__file__).with_name("launch_table.toml")

STATE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One configuration and where it comes from.

    Attributes:
        arch: compute capability, 90 for sm_90; 0 for any.
        form: which of the op's kernels.
        min_heads: the fewest request-heads (rows x heads) it is meant for.
        min_tokens: the shortest window (T) it is meant for.
        constants: compile-time parameters of the form and launch options such as num_warps; BV, the value rows of a
            program, is always among them.
        source: card, date and figure, or why there is none.
    """

    op: str
    arch: int
    state_dtype: torch.dtype
    form: str
    min_heads: int
    min_tokens: int
    constants: Mapping[str, Any]
    source: str


class Problem(NamedTuple):
    """What a launch is for.

    Attributes:
        arch: of the device; 0 on the CPU, where the interpreter runs.
        num_heads: request-heads, rows x heads.
        lower_bound: of the gate; None for the unbounded one.
        aligned: whether rows of states, activations and records all begin at multiples of 16 bytes.
    """

    op: str
    arch: int
    state_dtype: torch.dtype
    num_heads: int
    spec_query_len: int
    key_dim: int
    value_dim: int
    lower_bound: float | None
    aligned: bool


class Form(NamedTuple):
    """One kernel of an op, and which launches it is right for.

    Attributes:
        has_pdl: whether it takes the constant PDL, and with it may begin while the kernel before is still running.
    """

    kernel: Any
    fits: Callable[[Problem], bool] = lambda problem: True
    has_pdl: bool = False


@cache
def load_table(path: Path = TABLE) -> tuple[LaunchRow, ...]:
    """The rows of a launch table.

    Raises:
        ConfigError: a row lacks a field, has one too many, or names an unknown dtype.
    """
    rows = []
    for entry in tomllib.loads(path.read_text())["row"]:
        try:
            rows.append(LaunchRow(**{"min_heads": 0, "min_tokens": 1} | entry | _dtype(entry)))
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{path.name}: expected the fields of LaunchRow, got {entry}: {error}") from error
    return tuple(rows)


def _dtype(entry: Mapping[str, Any]) -> dict[str, torch.dtype]:
    return {"state_dtype": STATE_DTYPES[entry["state_dtype"]]}


def select(problem: Problem, forms: Mapping[str, Form], table: Sequence[LaunchRow] | None = None) -> LaunchRow:
    """The row for a launch: rows of its arch come before portable ones, then the forms in the order of ``forms``.

    Of the rows of one form, those for longer windows come first, then those for larger grids. Which form is taken thus
    does not depend on the grid, nor do a row's bits.

    Args:
        table: the library's own by default.
    Raises:
        ConfigError: no row fits.
    """
    rows = _rows_for(problem, forms, load_table() if table is None else table)
    if not rows:
        raise ConfigError(f"launch table: no row for {problem}")
    order = list(forms)
    return max(rows, key=lambda row: (row.arch, -order.index(row.form), row.min_tokens, row.min_heads))


def can_launch(problem: Problem, forms: Mapping[str, Form]) -> bool:
    """Whether the library's table has a row for a launch."""
    return bool(_rows_for(problem, forms, load_table()))


def _rows_for(problem: Problem, forms: Mapping[str, Form], table: Sequence[LaunchRow]) -> list[LaunchRow]:
    return [
        row
        for row in table
        if (row.op, row.state_dtype) == (problem.op, problem.state_dtype)
        and row.arch in (problem.arch, 0)
        and row.min_heads <= problem.num_heads
        and row.min_tokens <= problem.spec_query_len
        and row.form in forms
        and forms[row.form].fits(problem)
    ]


@cache
def device_arch(device: Device) -> int:
    """Compute capability as 90 for sm_90; 0 on the CPU, where the interpreter runs."""
    if isinstance(device, PlannedDevice):
        return device.arch
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


def tiled_launch(
    op: str,
    forms: Mapping[str, Form],
    state: TensorMeta,
    num_rows: int,
    spec_query_len: int,
    lower_bound: float | None,
    *scalars: float,
    aligned: bool,
    num_layers: int = 1,
    num_absent: int = 0,
    enable_pdl: bool = False,
    **constants: Any,
) -> KernelLaunch:
    """The launch of a kernel whose programs handle tiles of states [P, H, V, K], as the launch table has it.

    Every form takes the constants H, T, K, V and BOUNDED besides those of its row, and a grid of value tiles, heads and
    rows (first axis, value tiles fastest) by layers (second axis).

    Args:
        lower_bound: of the gate, the kernel's first scalar; None for the unbounded form. ``scalars`` follow.
        aligned: as in ``Problem``.
        num_absent: how many of the kernel's tensors, its last ones, this launch lacks.
        enable_pdl: begin while the kernel before is still running. The row is that of any other launch.
        constants: what this op's kernels have beyond those that all such kernels have.
    Raises:
        ConfigError: the form that fits cannot begin so early.
    """
    _, num_heads, value_dim, key_dim = state.shape
    arch, request_heads = device_arch(state.device), num_rows * num_heads
    sizes = (request_heads, spec_query_len, key_dim, value_dim)
    problem = Problem(op, arch, state.dtype, *sizes, lower_bound, aligned)
    row = select(problem, forms)
    if enable_pdl and not forms[row.form].has_pdl:
        able = " or ".join(name for name, form in forms.items() if form.has_pdl)
        raise ConfigError(f"enable_pdl: expected a launch of form {able}, got {row.form!r} for {problem}")
    tile = _fitted(row, value_dim, key_dim)
    shape = {"H": num_heads, "T": spec_query_len, "K": key_dim, "V": value_dim, "BOUNDED": lower_bound is not None}
    return KernelLaunch(
        forms[row.form].kernel,
        (request_heads * (value_dim // tile["BV"]), num_layers),
        state.device,
        scalars=(*(None,) * num_absent, lower_bound or 0.0, *scalars),
        constants=shape | tile | _overlap(forms[row.form], enable_pdl) | constants,
    )


def with_row(launch: KernelLaunch, forms: Mapping[str, Form], row: LaunchRow, device: torch.device) -> KernelLaunch:
    """What ``tiled_launch`` would have made of the same call had it chosen ``row``, for who compares rows.

    Args:
        launch: from ``tiled_launch``, which took a row of the library's own table; ``device`` is that of its tensors.
    """
    from_rows = {name for known in load_table() if known.op == row.op for name in known.constants}
    from_forms = {"PDL", "launch_pdl"}
    kept = {name: value for name, value in launch.constants.items() if name not in from_rows | from_forms}
    value_dim, key_dim = kept["V"], kept["K"]
    tile = _fitted(row, value_dim, key_dim)
    num_tiles, *rest = launch.grid
    request_heads = num_tiles // (value_dim // launch.constants["BV"])
    return KernelLaunch(
        forms[row.form].kernel,
        (request_heads * (value_dim // tile["BV"]), *rest),
        device,
        scalars=launch.scalars,
        constants=kept | tile | _overlap(forms[row.form], launch.constants.get("PDL", False)),
    )


def _overlap(form: Form, enable_pdl: bool) -> dict[str, bool]:
    """What a form's kernel and Triton's launcher have to know of programmatic dependent launch."""
    return {"PDL": enable_pdl, "launch_pdl": enable_pdl} if form.has_pdl else {}


def _fitted(row: LaunchRow, value_dim: int, key_dim: int) -> dict[str, Any]:
    """A row's constants, its tiles no larger than a state."""
    tile = dict(row.constants)
    for name, size in (("BV", value_dim), ("BK", key_dim)):
        if name in tile:
            tile[name] = min(tile[name], size)
    return tile


def rows_aligned(*tensors: TensorMeta) -> bool:
    """Whether every row along the first dimension begins at a multiple of 16 bytes."""
    return all(meta.aligned and meta.strides[0] * meta.dtype.itemsize % 16 == 0 for meta in tensors)
