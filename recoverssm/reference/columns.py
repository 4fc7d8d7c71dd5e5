"""The block table of a request: column c holds the state slot of tokens c * block_size to (c + 1) * block_size - 1.

Everything that turns a number of tokens into a column, or back, does it here, or on the device in kernels/columns.py.
With n tokens before a step, q in it and a of them accepted:

    column verify reads, and last one allocated    block_column(n + q)
    running column before the step, -1 for none    block_column(n)
    column of the state that commit leaves         block_column(n + a)
    first block that is not full before the step   block_column(n + 1)
"""

from typing import TypeVar

from torch import Tensor

Count = TypeVar("Count", int, Tensor)


def block_column(num_tokens: Count, block_size: int) -> Count:
    """Column whose slot holds the state after ``num_tokens`` >= 0 tokens; -1 before the first one.

    It is the block of the last token: a state exactly at a block's end lies in that block, as the next may not exist.

    Args:
        num_tokens: a number, or a tensor of them. block_size: tokens per block of this group's table, not another's.
    Source: docs/algorithm.md section 8.
    """
    return (num_tokens + block_size - 1) // block_size - 1


def block_end(column: Count, block_size: int) -> Count:
    """Tokens after which the block of ``column`` is full; its slot must then hold the state at that very point."""
    return (column + 1) * block_size
