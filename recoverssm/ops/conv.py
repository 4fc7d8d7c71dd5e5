"""Conv compaction: moves each row's accepted conv history to the front of its slot, all layers in one launch."""

from collections.abc import Sequence

import torch
from torch.compiler import is_compiling

from recoverssm.checks import (
    ACTIVATION_DTYPES,
    check_boundaries,
    check_device,
    check_no_overlap,
    check_plan,
    check_tensor,
)
from recoverssm.dispatch import Prepared, TensorMeta
from recoverssm.errors import ShapeError
from recoverssm.kernels.conv import _compact_conv_kernel
from recoverssm.triton_compat import KernelLaunch
from recoverssm.types import Boundaries, CommitPlan, LayerTable

BLOCK_CHANNELS = 1024  # 4 warps x 32 lanes x 16 bytes of bf16


def compact_conv(
    conv_states: LayerTable, plan: CommitPlan, *, conv_width: int, boundaries: Boundaries | None = None
) -> None:
    """Copy window positions a - 1 .. a + width - 3 to positions 0 .. width - 2, a = commit_lens of the row, in place.

    The next step's convolution then starts at position 0 whatever was accepted. Positions behind the history keep
    what they held. Rows with ``commit_lens == 0`` are left bit for bit as they were, their boundaries too. All of a
    row's histories are read before any is written.

    Args:
        conv_states: per layer [P, conv_state_len, C] of raw projections, all strides free: channels are contiguous in
            the layout "SD"; of a pool [P, C, conv_state_len], layout "DS", it is ``pool.transpose(1, 2)``.
        plan: from ``commit_plan`` of the same step; commit_lens must not pass conv_state_len - conv_width + 2.
        conv_width: taps of the convolution.
        boundaries: from the same ``align_plan`` as ``plan``: each slot gets the history after so many of the tokens.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError: before any launch.
    Source: docs/algorithm.md sections 5 and 8.
    """
    rows = (plan.commit_lens, plan.source_slots, plan.final_slots)
    crossed = () if boundaries is None else (boundaries.lens, boundaries.slots)
    if is_compiling():
        torch.ops.recoverssm.compact_conv(conv_states.tensors, *rows, conv_width, *(crossed or (None, None)))
        return
    table = (conv_states.addresses, conv_states.slot_strides, conv_states.element_type)
    _compact_conv((*table, *rows, *crossed), conv_width, conv_states.num_layers, conv_states.aligned)


@Prepared
def _compact_conv(
    tensors: Sequence[TensorMeta], conv_width: int, num_layers: int, aligned: bool
) -> KernelLaunch | None:
    conv_state, plan, boundaries = tensors[2], tensors[3:6], tensors[6:]
    device = conv_state.device
    check_device("conv_states", device)
    check_tensor("conv_states", conv_state, "P S C", (None, None, None), ACTIVATION_DTYPES, device)
    check_no_overlap("conv_states", conv_state)
    _, window_len, num_channels = conv_state.shape
    if not 2 <= conv_width <= window_len + 1:
        raise ShapeError(f"conv_width: expected 2 to {window_len + 1} for a window of {window_len}, got {conv_width}")
    num_rows = check_plan(plan, None, device)
    num_boundaries = check_boundaries("boundaries", boundaries, num_rows, device) if boundaries else 0
    if num_rows == 0:
        return None
    history_len = conv_width - 1
    history = {"HISTORY": history_len, "BH": 1 << (history_len - 1).bit_length()}
    return KernelLaunch(
        _compact_conv_kernel,
        (num_rows, -(-num_channels // BLOCK_CHANNELS), num_layers),
        device,
        scalars=(*(() if boundaries else (None, None)), num_channels, *conv_state.strides[1:]),
        constants={**history, "BC": BLOCK_CHANNELS, "ALIGNED": aligned, "J": num_boundaries, "num_warps": 4},
    )
