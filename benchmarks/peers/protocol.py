"""What a kernel of another project says and does to be measured beside ours.

A peer is a class. Making one object of it, without arguments, loads the kernel; that object is then asked, case by
case, whether it can do the case (``unsupported``) and to set itself up on the inputs that ours gets (``prepare``).
What comes back launches ops, any number of times and inside CUDA graphs, and shows what a launch left behind.

Everything else is the harness's: it allocates states of as many layers as outrun the L2 and calls the peer on one after
the other, compares outputs with the float64 reference (a red check yields no number), gives written memory its values
back before each timed window, and times with the same contract, in the same process and order as our own kernels. A
step is made of the peer's own ops: the verifies of all layers, then its commit.

So a peer does not measure, check, loop over layers or draw numbers. It must not leave work to other streams, wait for
the device or decide anything by values on the device; it may allocate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, Protocol

import torch
from torch import Tensor

from ..cases import BenchCase
from .workload import Scheme, Workload

Op = Literal["verify", "commit", "commit_state", "conv"]
"""``verify``: a window of one layer. The others of all layers of a set, after verify: ``commit_state`` the states,
``conv`` the short convolution's windows, ``commit`` both and whatever plan they need."""

OPS: tuple[Op, ...] = ("verify", "commit", "commit_state", "conv")


MAX_LENGTH = 500


class NotInstalledError(Exception):
    """A peer's constructor raises it where the kernel's package is not there; the message says what to install."""


def require_line(value: object, what: str, *, may_be_empty: bool = False, also: str = "") -> str:
    """The value, if records and tables can hold it; else TypeError that names ``what``, and what may ``also`` come."""
    if isinstance(value, str) and len(value) <= MAX_LENGTH and value.isprintable() and (value.strip() or may_be_empty):
        return str(value)
    raise TypeError(f"{what}: expected {also}a line of at most {MAX_LENGTH} printable characters, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Largest relative Frobenius errors against float64 that this kernel is meant to keep; ``reason`` says why these.

    Zeros have an error of 1, so each limit lies below it.

    Attributes:
        out: outputs of verify, bf16: rounding them once costs 1.7e-3.
        correction: the recorded u, where the peer shows one.
        state_fp32, state_bf16: states that verify or commit leave, by state dtype.
    """

    out: float = 3e-3
    correction: float = 1e-6
    state_fp32: float = 1e-6
    state_bf16: float = 2e-3
    reason: str = "as for our own kernels: fp32 sums, each result rounded once (benchmarks/checks.py)"

    def __post_init__(self) -> None:
        require_line(self.reason, "Tolerance.reason")
        for limit in ("out", "correction", "state_fp32", "state_bf16"):
            value = getattr(self, limit)
            if not isinstance(value, float) or not 0.0 < value < 1.0:
                raise ValueError(f"Tolerance.{limit}: expected above 0.0 and below 1.0, got {value!r}")


@dataclass(frozen=True, slots=True)
class Outputs:
    """What the last launch of an op left for one place; any dtype, views into the peer's memory where that is enough.

    Attributes:
        out: [M, H, V] of verify, tokens as in ``workload.step.q``.
        correction: [N, H, T, V] of verify, u after decay and beta; only where the peer records it.
        states: [N, T, H, V, K] of verify in scheme ``full_state``, the state after each token.
        state: [N, H, V, K] after ``commit`` or ``commit_state``, and after verify in scheme ``last_state``.
        conv: [N, conv_width - 1, 3HD] after ``commit`` or ``conv``, each request's history, oldest first.
    """

    out: Tensor | None = None
    correction: Tensor | None = None
    states: Tensor | None = None
    state: Tensor | None = None
    conv: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Those that there are, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: tensor for name, tensor in found.items() if tensor is not None}


REQUIRED: dict[tuple[Scheme, Op], tuple[str, ...]] = {
    ("recoverssm", "verify"): ("out",),
    ("recoverssm", "commit"): ("state", "conv"),
    ("recoverssm", "commit_state"): ("state",),
    ("recoverssm", "conv"): ("conv",),
    ("full_state", "verify"): ("out", "states"),
    ("last_state", "verify"): ("out", "state"),
}
"""Outputs that must be there to be checked, by scheme and op; no other pair of both exists."""


class PreparedPeer(Protocol):
    """A peer on the inputs of one case, with memory of its own where it wants another layout."""

    def launch(self, op: Op, number: int) -> None:
        """One call of an op on the current stream: of verify for place ``number`` of ``workload.states``, of the
        others for all layers of set ``number`` (places ``workload.places(number)``).

        Every place has been verified before another op is called: records may be kept by place.
        """

    def outputs(self, op: Op, place: int) -> Outputs:
        """What the last launch of ``op`` left for a place; of ops of all layers too."""

    def written(self, op: Op) -> Sequence[Tensor]:
        """Tensors that launches of ``op`` write and that later launches read as inputs: states, conv windows.

        The harness gives them back their values before each timed window; outputs and records need not be here.
        """


class Peer(Protocol):
    """One implementation. Attributes belong to the class, but ``version`` to the object: only the package knows it.

    Texts are lines of at most 500 printable characters; only ``covers`` may be empty.

    Attributes:
        name: as in series keys: lower-case letters, digits and underscores; no other provider has it.
        title: for people, without the version: "vLLM, RecoverSSM (Triton)".
        licence: SPDX name of the kernel's licence.
        source: where the kernel is from: a package, a pull request, an address.
        scheme: what it keeps of a window. ``recoverssm``: one state per request and records, until a commit.
            ``full_state``: a state after every token. ``last_state``: the state after the last one alone, so that no
            token can be taken back; for scale.
        ops: that it has, of those the scheme allows (``REQUIRED``).
        covers: what readers should know of its numbers: what a commit leaves out, in what precision it works.
        tolerance: see there.
        version: of the package that was loaded.
    """

    name: str
    title: str
    licence: str
    source: str
    scheme: Scheme
    ops: tuple[Op, ...]
    covers: str
    tolerance: Tolerance
    version: str

    def unsupported(self, case: BenchCase, device: torch.device) -> str | None:
        """Why this kernel cannot do the case there ("state dtype fp32: bf16 alone"); None where it can."""

    def prepare(self, workload: Workload) -> PreparedPeer:
        """Set up for one case: best documented configuration, compilation included if it can be."""
