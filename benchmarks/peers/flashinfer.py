"""FlashInfer's kernels for KDA in CuTe DSL: verify in WY form from a bf16 state, and the recurrence of sm_100."""

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from ..cases import BenchCase
from .packages import Package, find
from .protocol import NotInstalledError, Op, Outputs, Tolerance
from .workload import Workload

PACKAGE = Package(
    distribution="flashinfer-python",
    module="flashinfer",
    files=(  # enough for WY verify
        "flashinfer/kda_kernels/kda_decode_wy_output_only.py",
        "flashinfer/gdn_kernels/device_target.py",
        "flashinfer/gdn_kernels/dtype_compat.py",
        "flashinfer/gdn_kernels/gdn_decode_bf16_wy_output_only.py",
    ),
)


class FlashinferWy:
    """The drop-in for vLLM's RecoverSSM verify; records lie by slot, and the commit is vLLM's."""

    name = "flashinfer_wy"
    title = "FlashInfer, WY verify (CuTe)"
    licence = "Apache-2.0"
    source = "PyPI package flashinfer-python, flashinfer/kda_kernels/kda_decode_wy_output_only.py; FlashInfer PR 4709"
    scheme = "recoverssm"
    ops: tuple[Op, ...] = ("verify",)
    covers = "verify alone; states in bf16 alone; its operands are rounded to bf16, also those that records are made of"
    tolerance = Tolerance(
        out=1e-2, correction=1e-2, reason="keys, queries and decays are rounded to bf16, once each, before they meet"
    )

    def __init__(self) -> None:
        found = find(PACKAGE)
        self._module = found.load("flashinfer.kda_kernels.kda_decode_wy_output_only")
        self.version = found.version

    def unsupported(self, case: BenchCase, device: torch.device) -> str | None:
        if case.state_dtype != "bf16":
            return f"state dtype {case.state_dtype}: it reads bf16 states alone"
        if (case.shape.key_dim, case.shape.value_dim) != (128, 128):
            return "it takes K = V = 128 alone"
        return None if device.type == "cuda" else "it runs on a GPU alone"

    def prepare(self, workload: Workload) -> "PreparedWy":
        return PreparedWy(self._module, workload)


class PreparedWy:
    """The workload's states, in place; records of one entry per slot."""

    def __init__(self, module: ModuleType, workload: Workload) -> None:
        self._module, self._workload = module, workload
        step, shape = workload.step, workload.case.shape
        self._inputs = [x[None] for x in step.activations]
        self._out = torch.empty_like(self._inputs[2])
        size = (len(workload.states), workload.states[0].shape[0], shape.num_heads, shape.spec_query_len)
        self._corrections = torch.empty((*size, shape.value_dim), device=workload.device)
        self._key_gates = step.k.new_empty((*size, 2 * shape.key_dim))

    def launch(self, op: Op, number: int) -> None:
        workload, gate = self._workload, self._workload.gate(number)
        self._module.kda_recoverssm_verify(
            *self._inputs,
            gate.A_log,
            gate.dt_bias,
            gate.lower_bound,
            workload.states[number],
            self._corrections[number],
            self._key_gates[number],
            workload.step.query_start_loc,
            workload.slots,
            workload.case.shape.spec_query_len,
            out=self._out,
        )

    def outputs(self, op: Op, place: int) -> Outputs:
        return Outputs(out=self._out[0], correction=self._corrections[place][self._workload.slots.long()])

    def written(self, op: Op) -> Sequence[Tensor]:
        return ()


class FlashinferRecurrent:
    """Full-state verify by the recurrence, on sm_100 and its kin alone; from an installed package."""

    name = "flashinfer_recurrent"
    title = "FlashInfer, recurrent (CuTe)"
    licence = "Apache-2.0"
    source = "PyPI package flashinfer-python, flashinfer/kda_kernels/recurrent_kda.py; FlashInfer PR 4001"
    scheme = "full_state"
    ops: tuple[Op, ...] = ("verify",)
    covers = "the backend that its own dispatch chooses; states in bf16 alone"
    tolerance = Tolerance()

    def __init__(self) -> None:
        found = find(PACKAGE)
        if found.folder is not None:
            raise NotInstalledError(f"{found}: its recurrence needs the installed package, not files of its wheel")
        self._module = found.load("flashinfer")
        self.version = found.version

    def unsupported(self, case: BenchCase, device: torch.device) -> str | None:
        if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 10:
            return "it runs on sm_100 and its kin alone"
        if case.state_dtype != "bf16":
            return f"state dtype {case.state_dtype}: it takes bf16 states alone"
        return None if case.shape.spec_query_len > 1 else "it verifies windows of two tokens and more"

    def prepare(self, workload: Workload) -> "PreparedRecurrent":
        return PreparedRecurrent(self._module, workload)


class PreparedRecurrent:
    """The workload's states, in place."""

    def __init__(self, module: ModuleType, workload: Workload) -> None:
        self._module, self._workload = module, workload
        self._inputs = [x[None] for x in workload.step.activations]
        self._out = torch.empty_like(self._inputs[2])

    def launch(self, op: Op, number: int) -> None:
        workload, gate = self._workload, self._workload.gate(number)
        self._module.recurrent_kda(
            *self._inputs,
            A_log=gate.A_log,
            dt_bias=gate.dt_bias.flatten(),
            initial_state=workload.states[number],
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            lower_bound=gate.lower_bound,
            cu_seqlens=workload.step.query_start_loc,
            ssm_state_indices=workload.slots,
            num_spec_tokens=workload.case.shape.spec_query_len - 1,
            num_accepted_tokens=workload.step.num_sampled,
            output=self._out,
            beta_is_logit=True,
        )

    def outputs(self, op: Op, place: int) -> Outputs:
        return Outputs(out=self._out[0], states=self._workload.states[place][self._workload.slots.long()])

    def written(self, op: Op) -> Sequence[Tensor]:
        return self._workload.states
