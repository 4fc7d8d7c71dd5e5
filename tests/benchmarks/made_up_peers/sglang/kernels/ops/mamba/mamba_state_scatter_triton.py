"""What the adapter calls of SGLang's module of this name."""

from sglang.kernels.ops.memory.ptr_table import make_ptr_table
from sglang.srt.utils.common import get_device_core_count

assert get_device_core_count(0) == 0
assert make_ptr_table is None


def fused_conv_window_scatter_with_mask(target, source, slots, steps, rows):
    for slot, step, row in zip(slots.tolist(), steps.tolist(), rows.tolist(), strict=True):
        target[:, slot] = source[:, row, step]
