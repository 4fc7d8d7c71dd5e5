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
    boundary_lens_ptr,
    boundary_slots_ptr,
    num_channels,
    stride_conv_token,
    stride_conv_channel,
    HISTORY: tl.constexpr,
    BH: tl.constexpr,
    BC: tl.constexpr,
    ALIGNED: tl.constexpr,
    J: tl.constexpr,
):
    """One program handles BC channels of one speculative row of one layer. With J = 0 boundaries are None."""
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
    if J > 0:
        slots, crossed, histories = (), (), ()
        for j in tl.static_range(J):
            length = tl.minimum(tl.load(boundary_lens_ptr + row * J + j), commit_len)
            slot = tl.load(boundary_slots_ptr + row * J + j).to(tl.int64)
            is_crossed = (length > 0) & (slot > 0) & (slot != final_slot)
            window_ptrs = conv_ptr + source_slot * slot_stride + (length - 1) * token_stride
            window_ptrs += offs_t[:, None] * token_stride + offs_c[None, :]
            slots += (slot,)
            crossed += (is_crossed,)
            histories += (tl.load(window_ptrs, mask=mask & is_crossed),)
    # Source and final may be one slot whose rows overlap: nobody stores before everybody has loaded.
    tl.debug_barrier()

    final_ptrs = conv_ptr + final_slot * slot_stride + offs_t[:, None] * token_stride + offs_c[None, :]
    tl.store(final_ptrs, history, mask=mask)
    if J > 0:
        for j in tl.static_range(J):
            boundary_ptrs = conv_ptr + slots[j] * slot_stride + offs_t[:, None] * token_stride + offs_c[None, :]
            tl.store(boundary_ptrs, histories[j], mask=mask & crossed[j])
