"""flash-linear-attention's KDA kernels: the recurrence with a state after every token, and the chunk form."""

import os
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from ..cases import BenchCase
from .packages import Found, Package, as_ours, find
from .protocol import Op, Outputs, Tolerance
from .workload import Workload

_SOURCE = "PyPI package fla-core, fla/ops/kda"

PACKAGE = Package(
    distribution="fla-core",
    module="fla",
    files=(  # without fla/ops/__init__.py and its like, which import every op and more packages
        "fla/__init__.py",
        "fla/backends.py",
        "fla/modules/norm/l2norm.py",
        "fla/ops/common/*.py",
        "fla/ops/cp/*.py",
        "fla/ops/gla/backends/*.py",
        "fla/ops/gla/chunk.py",
        "fla/ops/kda/*.py",
        "fla/ops/utils/*.py",
        "fla/utils/*.py",
    ),
)


def _find() -> Found:
    """The package, whose autotuner would keep on disk what it found while other processes compiled on the same GPU."""
    os.environ.setdefault("FLA_CACHE_RESULTS", "0")  # read when its first module is imported
    return find(PACKAGE)


class FlaRecurrent:
    """Full-state verify by the recurrence, states by slot."""

    name = "fla_recurrent"
    title = "flash-linear-attention, fused recurrent"
    licence = "MIT"
    source = f"{_SOURCE}/fused_recurrent.py"
    scheme = "full_state"
    ops: tuple[Op, ...] = ("verify",)
    covers = "gate, norms and beta in the kernel; states value-first"
    tolerance = as_ours()

    def __init__(self) -> None:
        found = _find()
        self._module = found.load("fla.ops.kda.fused_recurrent")
        self.version = found.version

    def unsupported(self, case: BenchCase, device: torch.device) -> str | None:
        return None

    def prepare(self, workload: Workload) -> "PreparedRecurrent":
        return PreparedRecurrent(self._module, workload)


class PreparedRecurrent:
    """The workload's states, in place."""

    def __init__(self, module: ModuleType, workload: Workload) -> None:
        self._module, self._workload = module, workload
        self._out = torch.empty_like(workload.step.v)

    def launch(self, op: Op, number: int) -> None:
        workload, step, gate = self._workload, self._workload.step, self._workload.gate(number)
        self._module.fused_recurrent_kda_fwd(
            q=step.q[None],
            k=step.k[None],
            v=step.v[None],
            g=step.raw_gate[None],
            beta=step.raw_beta[None],
            A_log=gate.A_log,
            dt_bias=gate.dt_bias,
            initial_state=workload.states[number],
            inplace_final_state=True,
            state_v_first=True,
            cu_seqlens=step.query_start_loc,
            ssm_state_indices=workload.slots,
            num_accepted_tokens=step.num_sampled,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            lower_bound=gate.lower_bound,
            out=self._out[None],
        )

    def outputs(self, op: Op, place: int) -> Outputs:
        return Outputs(out=self._out, states=self._workload.states[place][self._workload.slots.long()])

    def written(self, op: Op) -> Sequence[Tensor]:
        return self._workload.states


class FlaChunk:
    """The chunk form of prefills on one window: the state after its last token alone."""

    name = "fla_chunk"
    title = "flash-linear-attention, chunk"
    licence = "MIT"
    source = f"{_SOURCE}/chunk.py"
    scheme = "last_state"
    ops: tuple[Op, ...] = ("verify",)
    covers = "a chain of kernels; states by row, not by slot; tuned by its own autotuner, anew in each process"
    tolerance = Tolerance(
        out=2e-2,
        state_fp32=2e-2,
        reason="its operands are bf16, rounded anew between its kernels, and the products of fp32 ones are single tf32",
    )

    def __init__(self) -> None:
        found = _find()
        self._module = found.load("fla.ops.kda.chunk")
        self.version = found.version

    def unsupported(self, case: BenchCase, device: torch.device) -> str | None:
        if case.state_dtype != "fp32":
            return f"state dtype {case.state_dtype}: it takes fp32 alone"
        return None if device.type == "cuda" else "its autotuner measures on a GPU alone"

    def prepare(self, workload: Workload) -> "PreparedChunk":
        return PreparedChunk(self._module, workload)


class PreparedChunk:
    """First states of each row gathered out of the workload's pools once, as an engine does before its prefill."""

    def __init__(self, module: ModuleType, workload: Workload) -> None:
        self._module, self._workload = module, workload
        rows = (workload.case.num_requests, workload.case.shape.spec_query_len)
        self._inputs = [tensor.view(*rows, *tensor.shape[1:]) for tensor in workload.step.activations]
        self._states = [state[workload.slots.long()] for state in workload.states]
        self._out, self._state = workload.step.v, self._states[0]

    @torch.no_grad()
    def launch(self, op: Op, number: int) -> None:
        gate = self._workload.gate(number)
        out, self._state = self._module.chunk_kda(
            *self._inputs,
            initial_state=self._states[number],
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            safe_gate=gate.lower_bound is not None,
            lower_bound=gate.lower_bound,
            state_v_first=True,
            A_log=gate.A_log,
            dt_bias=gate.dt_bias,
        )
        self._out = out.flatten(0, 1)

    def outputs(self, op: Op, place: int) -> Outputs:
        return Outputs(out=self._out, state=self._state)

    def written(self, op: Op) -> Sequence[Tensor]:
        return ()
