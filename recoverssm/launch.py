"""Launch table: which tile and warps an op uses for a state dtype and grid size. Data with provenance, no autotuning.

A row applies from ``min_heads`` request-heads (rows x heads) up; the last row that applies wins.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from recoverssm.dispatch import TensorMeta
from recoverssm.errors import ConfigError
from recoverssm.triton_compat import KernelLaunch


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One configuration and where it comes from.

    Attributes:
        arch: compute capability, 90 for sm_90; 0 for any.
        min_heads: the fewest request-heads (rows x heads) it is meant for.
        block_v: value rows per program.
        inner_k: BK, channels of K that lie side by side in a tile (kernels/recurrence.py).
        num_stages: software pipeline depth of the token loop.
        source: card, date and figure, or why there is none.
    """

    arch: int
    op: str
    state_dtype: torch.dtype
    min_heads: int
    block_v: int
    inner_k: int
    num_warps: int
    num_stages: int
    source: str


FP32, BF16 = torch.float32, torch.bfloat16
_UNTUNED = "portable default, not tuned"


def _h200(figure: str) -> str:
    return f"NVIDIA H200, torch 2.11, Triton 3.6, 2026-11-29, H=12, T=8: {figure}"


LAUNCH_TABLE: tuple[LaunchRow, ...] = (
    LaunchRow(0, "verify", FP32, 0, 16, 32, 1, 3, _UNTUNED),
    LaunchRow(0, "verify", BF16, 0, 16, 32, 1, 3, _UNTUNED),
    LaunchRow(90, "verify", FP32, 0, 4, 32, 1, 3, _h200("7.5 us at B=1; BV=16 7.7")),
    LaunchRow(90, "verify", FP32, 96, 32, 32, 1, 3, _h200("11.1 us at B=8; BV=16 11.7")),
    LaunchRow(90, "verify", FP32, 384, 16, 32, 1, 3, _h200("28.5 us at B=32; [BV, K] tiles 36.7")),
    LaunchRow(90, "verify", FP32, 1536, 32, 32, 1, 3, _h200("94.5 us at B=128; BV=16 99.8")),
    LaunchRow(90, "verify", BF16, 0, 8, 32, 1, 3, _h200("7.0 us at B=1; BV=16 7.9")),
    LaunchRow(90, "verify", BF16, 96, 32, 32, 1, 3, _h200("10.3 / 28.0 / 88.2 us at B=8 / 32 / 128")),
    LaunchRow(0, "full_state_verify", FP32, 0, 16, 32, 1, 3, _UNTUNED),
    LaunchRow(0, "full_state_verify", BF16, 0, 16, 32, 1, 3, _UNTUNED),
    LaunchRow(90, "full_state_verify", FP32, 0, 4, 32, 1, 3, _h200("7.0 us at B=1; BV=16 8.9")),
    LaunchRow(90, "full_state_verify", FP32, 96, 8, 32, 1, 3, _h200("19.1 us at B=8; BV=16 19.4")),
    LaunchRow(90, "full_state_verify", FP32, 384, 16, 64, 1, 1, _h200("65.5 / 251 us at B=32 / 128; BK=32 67.9")),
    LaunchRow(90, "full_state_verify", BF16, 0, 4, 32, 1, 3, _h200("7.7 us at B=1; BV=8 8.0")),
    LaunchRow(90, "full_state_verify", BF16, 96, 16, 32, 1, 3, _h200("13.7 us at B=8; BV=32 14.0")),
    LaunchRow(90, "full_state_verify", BF16, 384, 32, 32, 1, 3, _h200("44.4 / 140 us at B=32 / 128; BV=16 45.1 / 167")),
    LaunchRow(0, "commit_state", FP32, 0, 16, 32, 1, 3, _UNTUNED),
    LaunchRow(0, "commit_state", BF16, 0, 16, 32, 1, 3, _UNTUNED),
    LaunchRow(
        90, "commit_state", FP32, 0, 16, 32, 1, 3, _h200("926 us per 69 layers at B=32, accept 4; not pipelined 1035")
    ),
    LaunchRow(
        90, "commit_state", BF16, 0, 16, 32, 1, 3, _h200("589 us per 69 layers at B=32, accept 4; not pipelined 829")
    ),
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


def tiled_launch(
    op: str,
    kernel: Any,
    state: TensorMeta,
    num_rows: int,
    spec_query_len: int,
    lower_bound: float | None,
    *scalars: float,
    num_layers: int = 1,
    **constants: Any,
) -> KernelLaunch:
    """The launch of a kernel whose programs handle tiles of states [P, H, V, K], as the launch table has it.

    Args:
        lower_bound: of the gate, the kernel's first scalar; None for the unbounded form. ``scalars`` follow.
        constants: what this kernel has beyond those that all such kernels have.
    """
    _, num_heads, value_dim, key_dim = state.shape
    row = select(device_arch(state.device), op, state.dtype, num_rows * num_heads)
    block_v = min(row.block_v, value_dim)
    return KernelLaunch(
        kernel,
        (num_rows * num_heads * (value_dim // block_v), num_layers),
        state.device,
        scalars=(lower_bound or 0.0, *scalars),
        constants={
            "H": num_heads,
            "T": spec_query_len,
            "K": key_dim,
            "V": value_dim,
            "BV": block_v,
            "BK": min(row.inner_k, key_dim),
            "BOUNDED": lower_bound is not None,
            "NUM_STAGES": row.num_stages,
            "num_warps": row.num_warps,
            "enable_fp_fusion": True,
            **constants,
        },
    )
