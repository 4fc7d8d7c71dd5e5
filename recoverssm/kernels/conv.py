"""Conv compaction kernel: moves the history of the accepted position to the front of its slot, all layers at once."""

import triton
import triton.language as tl


@triton.jit
def _compact_conv_kernel(
    conv_addresses_ptr,
    conv_slot_strides_ptr,
    conv_type_ptr,
    commit_lens_ptr,
    source_slots_ptr,
    final_slots_ptr,
    num_channels,
    stride_conv_token,
    stride_conv_channel,
    HISTORY: tl.constexpr,
    BH: tl.constexpr,
    BC: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """One program handles BC channels of one speculative row of one layer."""
    row = tl.program_id(0)
    pid_c = tl.program_id(1)
    layer = tl.program_id(2)
    commit_len = tl.load(commit_lens_ptr + row)
    source_slot = tl.load(source_slots_ptr + row).to(tl.int64)
    final_slot = tl.load(final_slots_ptr + row).to(tl.int64)
    if (commit_len <= 0) | (source_slot <= 0) | (final_slot <= 0):
        return

    conv_ptr = tl.load(conv_addresses_ptr + layer).to(conv_type_ptr.dtype)
    slot_stride = tl.load(conv_slot_strides_ptr + layer)
    # A pool may lie [conv_state_len, P, C] or [C, P, conv_state_len] in memory.
    token_stride = tl.cast(stride_conv_token, tl.int64)
    channel_stride = tl.cast(stride_conv_channel, tl.int64)
    if ALIGNED:
        conv_ptr = tl.multiple_of(conv_ptr, 16)
        slot_stride = tl.multiple_of(slot_stride, 16)
    offs_t = tl.arange(0, BH).to(tl.int64)
    offs_c = pid_c * BC + tl.arange(0, BC)
    mask = (offs_t[:, None] < HISTORY) & (offs_c[None, :] < num_channels)

    # The verified window is [h1, h2, x_0, ...]: after commit_len tokens the history starts at commit_len - 1.
    window_ptrs = conv_ptr + source_slot * slot_stride + (commit_len - 1) * token_stride
    offs_c = offs_c * channel_stride
    history = tl.load(window_ptrs + offs_t[:, None] * token_stride + offs_c[None, :], mask=mask)  # [BH, BC]
    # Source and final may be one slot whose rows overlap: nobody stores before everybody has loaded.
    tl.debug_barrier()

    final_ptrs = conv_ptr + final_slot * slot_stride + offs_t[:, None] * token_stride + offs_c[None, :]
    tl.store(final_ptrs, history, mask=mask)
