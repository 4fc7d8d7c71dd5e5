"""Kernels of other projects, measured in the same process as ours. docs/peers.md shows how to add one with one file."""

from .protocol import NotInstalledError, Op, Outputs, Peer, PreparedPeer, Tolerance
from .workload import Scheme, Workload

__all__ = ["NotInstalledError", "Op", "Outputs", "Peer", "PreparedPeer", "Scheme", "Tolerance", "Workload"]
