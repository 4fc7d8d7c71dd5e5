"""Cold caches by rotation: enough buffer sets that a set has left the L2 before it is used again."""

L2_MULTIPLE = 2
"""Rotated bytes over L2 bytes: at 1 a replacement policy that is not strictly LRU keeps part of a set."""


def num_rotations(bytes_per_set: int, l2_bytes: int) -> int:
    """Buffer sets that together cover at least twice the L2; at least 1.

    Args:
        bytes_per_set: bytes that one op call reads and writes in its own set; bytes that all sets share do not count.
        l2_bytes: of this device, as the driver reports it.
    Raises:
        ValueError: either is missing or not positive. A guessed L2 would turn cold numbers warm without a trace.
    """
    if not l2_bytes or l2_bytes < 0:
        raise ValueError(f"l2_bytes: expected the device's L2 size in bytes, got {l2_bytes}; cold contracts need it")
    if bytes_per_set <= 0:
        raise ValueError(f"bytes_per_set: expected at least 1, got {bytes_per_set}")
    return -(-L2_MULTIPLE * l2_bytes // bytes_per_set)
