"""Launch table: which tile and warps an op uses for a state dtype and grid size. Data with provenance, no autotuning.

A row applies from ``min_heads`` request-heads (rows x heads) up; the last row that applies wins.
"""

from dataclasses import dataclass
from functools import cache

import torch

from recoverssm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One configuration and where it comes from."""

    arch: int  # 90 for sm_90; 0 for any
    op: str
    state_dtype: torch.dtype
    min_heads: int
    block_v: int
    num_warps: int
    source: str


_GUESS = "portable default, not tuned"
LAUNCH_TABLE: tuple[LaunchRow, ...] = (
    LaunchRow(0, "verify", torch.float32, 0, 8, 1, _GUESS),
    LaunchRow(0, "verify", torch.bfloat16, 0, 8, 1, _GUESS),
    LaunchRow(0, "full_state_verify", torch.float32, 0, 8, 1, _GUESS),
    LaunchRow(0, "full_state_verify", torch.bfloat16, 0, 8, 1, _GUESS),
    LaunchRow(0, "commit_state", torch.float32, 0, 16, 1, _GUESS),
    LaunchRow(0, "commit_state", torch.bfloat16, 0, 16, 1, _GUESS),
)


@cache
def select(arch: int, op: str, state_dtype: torch.dtype, num_heads: int) -> LaunchRow:
    """The row for ``num_heads`` request-heads (rows x heads): rows of this arch come before portable ones.

    Raises:
        ConfigError: no row names this op and dtype.
    """
    rows = [
        row
        for row in LAUNCH_TABLE
        if row.arch in (arch, 0) and row.op == op and row.state_dtype == state_dtype and row.min_heads <= num_heads
    ]
    if not rows:
        raise ConfigError(f"launch table: no row for op {op!r} with state dtype {state_dtype}")
    return max(rows, key=lambda row: (row.arch, row.min_heads))


@cache
def device_arch(device: torch.device) -> int:
    """Compute capability as 90 for sm_90; 0 on the CPU, where the interpreter runs."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor
