"""Kernels of the harness: control streams, an arithmetic loop, a restoring copy, a stamp, a wait."""
# Kernel bodies are Triton's language in Python's syntax: parameters are pointers and compile-time constants.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

UNROLL = 4
"""Loads in flight per thread before the first one is used."""


@triton.jit
def _mix_kernel(
    src_ptr,
    dst_ptr,
    READS: tl.constexpr,
    WRITES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program handles READS adjacent blocks of the source and WRITES adjacent blocks of the destination."""
    pid = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    total = tl.load(src_ptr + pid * READS * BLOCK + offs)  # [BLOCK]
    for i in tl.static_range(1, READS):
        total += tl.load(src_ptr + (pid * READS + i) * BLOCK + offs)
    for i in tl.static_range(WRITES):
        tl.store(dst_ptr + (pid * WRITES + i) * BLOCK + offs, total)
    if WRITES == 0:
        # Hardly ever true of sums of random numbers; without it the compiler would drop the loads.
        tl.store(dst_ptr + offs, total, mask=total == 1.0)


@triton.jit(do_not_specialize=["read_trips", "write_trips"])
def _stream_kernel(
    src_ptr,
    dst_ptr,
    num_read,
    num_write,
    read_share,
    write_share,
    read_trips,
    write_trips,
    UNROLL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program handles one contiguous share of the reads, then one contiguous share of the writes."""
    pid = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    read_end = tl.minimum((pid + 1) * read_share, num_read)
    write_end = tl.minimum((pid + 1) * write_share, num_write)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for trip in range(read_trips):
        for i in tl.static_range(UNROLL):
            at = pid * read_share + (trip * UNROLL + i) * BLOCK + offs
            total += tl.load(src_ptr + at, mask=at < read_end, other=0.0)
    for trip in range(write_trips):
        for i in tl.static_range(UNROLL):
            at = pid * write_share + (trip * UNROLL + i) * BLOCK + offs
            tl.store(dst_ptr + at, total, mask=at < write_end)
    # Hardly ever true of sums of random numbers; without it the compiler would drop a stream that only reads.
    tl.store(dst_ptr + offs, total, mask=total == 1.0)


@triton.jit
def _fma_kernel(
    dst_ptr,
    num_trips,
    UNROLL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program handles BLOCK chains of dependent fused multiply-adds and stores where they end."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = (offs % 97).to(tl.float32)
    for _ in range(num_trips):
        for _ in tl.static_range(UNROLL):
            value = value * 0.9921875 + 1.0  # towards 128 from anywhere: never denormal, never infinite
    tl.store(dst_ptr + offs, value)


@triton.jit
def _restore_kernel(
    saved_ptr,
    dst_ptr,
    num_elements,
    BLOCK: tl.constexpr,
):
    """One program handles one block of a copy; what it reads leaves the L2 first, so that what it wrote stays."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < num_elements
    saved = tl.load(saved_ptr + offs, mask=mask, eviction_policy="evict_first")
    tl.store(dst_ptr + offs, saved, mask=mask)


@triton.jit
def _sm_cycles():
    """The cycle counter of the SM that this runs on."""
    return tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def _stamp_kernel(stamps_ptr, ROWS: tl.constexpr):
    """One program handles the line of the SM it runs on: that SM's cycle counter and the device's nanoseconds."""
    sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    cycles = _sm_cycles()
    ns = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    tl.store(stamps_ptr + 2 * sm, cycles, mask=sm < ROWS)
    tl.store(stamps_ptr + 2 * sm + 1, ns, mask=sm < ROWS)


@triton.jit
def _wait_kernel(cycles_ptr):
    """One program handles the wait: until its SM has counted as many cycles as it finds, and stores how many it was."""
    begun = _sm_cycles()
    cycles = tl.load(cycles_ptr)
    passed = _sm_cycles() - begun
    while passed < cycles:
        passed = _sm_cycles() - begun
    tl.store(cycles_ptr + 1, passed)
