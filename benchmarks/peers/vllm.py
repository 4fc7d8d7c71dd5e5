"""vLLM's kernels for Kimi-K3: RecoverSSM in Triton, its commit in CuTe, and full-state verify."""

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..cases import BenchCase
from ..inputs import build_records
from .packages import Package, StandIns, as_ours, find
from .protocol import Op, Outputs
from .workload import Workload

_MODEL = "vllm.models.kimi_k3.nvidia"
_SOURCE = "PyPI package vllm, vllm/models/kimi_k3/nvidia"


@triton.jit
def _exp(x):
    return tl.exp(x)  # by its module's name: Triton's interpreter replaces it there


@triton.jit
def _log(x):
    return tl.log(x)


def _stand_ins() -> StandIns:
    def is_arch_support_pdl() -> bool:
        return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)

    return {
        "vllm.triton_utils": {"triton": triton, "tl": tl},
        "vllm.third_party.flash_linear_attention.ops.op": {"exp": _exp, "log": _log},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_arch_support_pdl=is_arch_support_pdl)},
        "vllm.v1.attention.backends.utils": {"NULL_BLOCK_ID": 0},
        # Conv windows are token-major here, vLLM's default.
        "vllm.model_executor.layers.mamba.mamba_utils": {"is_conv_state_dim_first": lambda: False},
    }


PACKAGE = Package(
    distribution="vllm",
    module="vllm",
    files=(
        "vllm/models/kimi_k3/nvidia/ops/recoverssm.py",
        "vllm/models/kimi_k3/nvidia/ops/third_party/kda/fused_recurrent.py",
        "vllm/models/kimi_k3/nvidia/recoverssm/*.py",
        "vllm/models/kimi_k3/nvidia/specialized_decode/cutedsl/common/host.py",
        "vllm/models/kimi_k3/nvidia/specialized_decode/cutedsl/common/primitives.py",
        "vllm/models/kimi_k3/nvidia/ops/cute_dsl/latent_moe_tail/primitives.py",
        "vllm/utils/math_utils.py",
    ),
    stand_ins=_stand_ins,
)


class VllmRecoverSSM:
    """Verify, and the commit of plan, conv windows and states; records by row, as since 0.33."""

    name = "vllm_recoverssm"
    title = "vLLM, RecoverSSM (Triton)"
    licence = "Apache-2.0"
    source = f"{_SOURCE}/ops/recoverssm.py; vLLM PR 51855"
    scheme = "recoverssm"
    ops: tuple[Op, ...] = ("verify", "commit", "conv")
    covers = "commit: plan, conv windows, states, three launches; conv: plan and windows"
    tolerance = as_ours()

    def __init__(self) -> None:
        found = find(PACKAGE)
        self._module = found.load(f"{_MODEL}.ops.recoverssm")
        self.version = found.version

    def unsupported(self, case: BenchCase, device: torch.device) -> str | None:
        return None

    def prepare(self, workload: Workload) -> "PreparedRecoverSSM":
        return PreparedRecoverSSM(self._module, workload, "triton")


class PreparedRecoverSSM:
    """States and conv windows of the workload, in place; records of vLLM's own layout, which is ours."""

    def __init__(self, module: ModuleType, workload: Workload, backend: str) -> None:
        self._module, self._workload = module, workload
        step, case = workload.step, workload.case
        self._inputs = [x[None] for x in step.activations]
        self._out = torch.empty_like(self._inputs[2])
        self._records = [
            module.KDARecoverSSMRecords(records.correction, records.key_gate)
            for records in build_records(case.shape, len(workload.states), case.num_requests, workload.device)
        ]
        self._contexts = [
            module.KDARecoverSSMCommitContext.create(
                [self._layer(place) for place in workload.places(number)],
                spec_query_len=case.shape.spec_query_len,
                max_num_reqs=case.num_requests,
                backend=backend,
            )
            for number in range(workload.num_sets)
        ]

    def _layer(self, place: int) -> SimpleNamespace:
        """What a commit context asks of a model's layer."""
        gate, shape = self._workload.gate(place), self._workload.case.shape
        return SimpleNamespace(
            kv_cache=(self._workload.conv_states[place], self._workload.states[place]),
            recoverssm_records=self._records[place],
            A_log=gate.A_log,
            dt_bias=gate.dt_bias,
            gate_lower_bound=gate.lower_bound,
            local_num_heads=shape.num_heads,
            head_dim=shape.key_dim,
        )

    def launch(self, op: Op, number: int) -> None:
        if op == "verify":
            self.verify(number)
        elif op == "commit":
            self._commit(self._contexts[number])
        else:
            # With this backend a commit ends with a call of the CuTe kernel for states, after plan and windows.
            with patch.object(self._module, "cute_recoverssm_commit", _nothing):
                self._commit(replace(self._contexts[number], backend="cute"))

    def verify(self, place: int) -> None:
        workload, gate = self._workload, self._workload.gate(place)
        self._module.kda_recoverssm_verify(
            *self._inputs,
            gate.A_log,
            gate.dt_bias,
            gate.lower_bound,
            workload.states[place],
            self._records[place],
            workload.step.query_start_loc,
            workload.slots,
            workload.case.shape.spec_query_len,
            out=self._out,
        )

    def _commit(self, context: Any) -> None:
        workload = self._workload
        context.commit(workload.step.num_sampled, workload.slots, workload.step.query_start_loc)

    def outputs(self, op: Op, place: int) -> Outputs:
        workload = self._workload
        if op == "verify":
            return Outputs(out=self._out[0], correction=self._records[place].correction)
        owned, history = workload.slots.long(), workload.case.shape.conv_history_len
        conv = workload.conv_states[place][owned, :history]
        return Outputs(state=workload.states[place][owned] if op == "commit" else None, conv=conv)

    def written(self, op: Op) -> Sequence[Tensor]:
        workload = self._workload
        return {"commit": [*workload.states, *workload.conv_states], "conv": workload.conv_states}.get(op, ())


class VllmCuteCommit:
    """The commit with states folded by bulk copies: vLLM's choice on sm_100 alone, though it runs on sm_90 as well."""

    name = "vllm_cute_commit"
    title = "vLLM, RecoverSSM (CuTe commit)"
    licence = "Apache-2.0"
    source = f"{_SOURCE}/recoverssm/cutedsl/commit.py"
    scheme = "recoverssm"
    ops: tuple[Op, ...] = ("commit",)
    covers = "plan and conv windows in Triton, states in CuTe; of its records, which vLLM's Triton verify makes"
    tolerance = as_ours()

    def __init__(self) -> None:
        found = find(PACKAGE)
        found.load(f"{_MODEL}.recoverssm.cutedsl.commit")  # the context imports it when it is called
        self._module = found.load(f"{_MODEL}.ops.recoverssm")
        self.version = found.version

    def unsupported(self, case: BenchCase, device: torch.device) -> str | None:
        if case.state_dtype != "bf16":
            return f"state dtype {case.state_dtype}: it folds bf16 states alone"
        if case.shape.spec_query_len > 8:
            return f"{case.shape.spec_query_len} tokens a window: it takes up to 8"
        if case.lower_bound is None or (case.shape.key_dim, case.shape.value_dim) != (128, 128):
            return "it takes a bounded gate and K = V = 128"
        return None

    def prepare(self, workload: Workload) -> PreparedRecoverSSM:
        prepared = PreparedRecoverSSM(self._module, workload, "cute")
        for place in range(len(workload.states)):
            prepared.verify(place)
        return prepared


class VllmNative:
    """Full-state verify: a state after every token, each in a slot of its own."""

    name = "vllm_native"
    title = "vLLM, full state"
    licence = "Apache-2.0"
    source = f"{_SOURCE}/ops/third_party/kda/fused_recurrent.py, after flash-linear-attention (MIT)"
    scheme = "full_state"
    ops: tuple[Op, ...] = ("verify",)
    covers = "gate and norms in the kernel; launched with programmatic dependent launch, as vLLM does"
    tolerance = as_ours()

    def __init__(self) -> None:
        found = find(PACKAGE)
        self._module = found.load(f"{_MODEL}.ops.third_party.kda.fused_recurrent")
        self.version = found.version

    def unsupported(self, case: BenchCase, device: torch.device) -> str | None:
        shape = case.shape
        return None if shape.key_dim == shape.value_dim else f"K = {shape.key_dim}, V = {shape.value_dim}: unequal"

    def prepare(self, workload: Workload) -> "PreparedNative":
        return PreparedNative(self._module, workload)


class PreparedNative:
    """The workload's states, in place."""

    def __init__(self, module: ModuleType, workload: Workload) -> None:
        self._module, self._workload = module, workload
        self._inputs = [x[None] for x in workload.step.activations]
        self._out = torch.empty_like(self._inputs[2])

    def launch(self, op: Op, number: int) -> None:
        workload, gate = self._workload, self._workload.gate(number)
        self._module.fused_recurrent_kda(
            *self._inputs,
            gate.A_log,
            gate.dt_bias,
            gate.lower_bound,
            workload.states[number],
            workload.step.query_start_loc,
            workload.slots,
            num_accepted_tokens=workload.step.num_sampled,
            out=self._out,
        )

    def outputs(self, op: Op, place: int) -> Outputs:
        return Outputs(out=self._out[0], states=self._workload.states[place][self._workload.slots.long()])

    def written(self, op: Op) -> Sequence[Tensor]:
        return self._workload.states


def _nothing(*arguments: object, **options: object) -> None:
    """In the place of a launch that is not wanted."""
