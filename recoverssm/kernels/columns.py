"""Device functions of the block table: which column holds the state after so many tokens (reference/columns.py)."""

import triton
import triton.language as tl


@triton.jit
def block_column(num_tokens, BLOCK_SIZE: tl.constexpr):
    """Column whose slot holds the state after ``num_tokens`` >= 0 tokens; -1 before the first one."""
    # Division truncates here: num_tokens - 1 must not be divided.
    return (num_tokens + (BLOCK_SIZE - 1)) // BLOCK_SIZE - 1


@triton.jit
def block_end(column, BLOCK_SIZE: tl.constexpr):
    """Tokens after which the block of ``column`` is full."""
    return (column + 1) * BLOCK_SIZE
