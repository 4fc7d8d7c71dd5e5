"""SGLang's kernels for KDA: verify with a ring of inputs and its fold over all layers, and verify with snapshots."""

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from ..cases import BenchCase
from .packages import Package, StandIns, as_ours, find
from .protocol import Op, Outputs
from .workload import Workload

_OPS = "sglang.kernels.ops"
_VERIFY = f"{_OPS}.attention.linear.fused_sigmoid_gating_recurrent"
_SOURCE = "PyPI package sglang, sglang/kernels/ops/attention/linear"


def _stand_ins() -> StandIns:
    has_cuda = torch.cuda.is_available()
    major, minor = torch.cuda.get_device_capability() if has_cuda else (0, 0)
    return {
        "sglang.kernels.jit.utils": {"is_arch_support_pdl": lambda: major >= 9},
        "sglang.srt.utils": {
            "get_device_sm": lambda: 10 * major + minor,
            "is_cuda": lambda: has_cuda,
            "is_gfx95_supported": lambda: False,
            "is_hip": lambda: False,
            "is_sm90_supported": lambda: major == 9,
        },
        "sglang.srt.utils.common": {"get_device_core_count": lambda device: 0},  # for kernels that are not used here
        "sglang.kernels.ops.memory.ptr_table": {"make_ptr_table": None},  # likewise
    }


PACKAGE = Package(
    distribution="sglang",
    module="sglang",
    files=(
        "sglang/kernels/ops/attention/linear/fused_sigmoid_gating_recurrent.py",
        "sglang/kernels/ops/attention/linear/kda_replayssm_spec_decode.py",
        "sglang/kernels/ops/mamba/mamba_state_scatter_triton.py",
    ),
    stand_ins=_stand_ins,
)


class SglangRing:
    """Verify that records a window's inputs in a ring by slot; a commit replays the accepted ones, in all layers."""

    name = "sglang_ring"
    title = "SGLang, ring and fold"
    licence = "Apache-2.0"
    source = f"{_SOURCE}/kda_replayssm_spec_decode.py; SGLang PR 32541"
    scheme = "recoverssm"
    ops: tuple[Op, ...] = ("verify", "commit", "commit_state", "conv")
    covers = (
        "verify with programmatic dependent launch, as SGLang does; ring of raw k and v, log gate and beta in fp32; "
        "commit: fold of the states, scatter of conv windows from a buffer of their own"
    )
    tolerance = as_ours()

    def __init__(self) -> None:
        found = find(PACKAGE)
        self._verify = found.load(_VERIFY)
        self._commit = found.load(f"{_OPS}.attention.linear.kda_replayssm_spec_decode")
        self._scatter = found.load(f"{_OPS}.mamba.mamba_state_scatter_triton")
        self.version = found.version

    def unsupported(self, case: BenchCase, device: torch.device) -> str | None:
        return None if device.type == "cuda" else "its conv scatter takes CUDA tensors alone"

    def prepare(self, workload: Workload) -> "PreparedRing":
        return PreparedRing(self._verify, self._commit, self._scatter, workload)


class PreparedRing:
    """The workload's states in place, each set as one tensor; rings by slot and conv windows of SGLang's layout."""

    def __init__(self, verify: ModuleType, commit: ModuleType, scatter: ModuleType, workload: Workload) -> None:
        self._verify, self._commit, self._scatter, self._workload = verify, commit, scatter, workload
        shape, device = workload.case.shape, workload.device
        states = stacked(workload.states)
        num_places, num_slots = states.shape[:2]

        def sets(tensor: Tensor) -> Tensor:
            return tensor.view(workload.num_sets, workload.num_layers, *tensor.shape[1:])

        def ring(*size: int, dtype: torch.dtype) -> Tensor:
            size = (num_places, num_slots, shape.num_heads, shape.spec_query_len, *size)
            return sets(torch.full(size, torch.nan, dtype=dtype, device=device))

        self._states = sets(states)
        activations = workload.step.v.dtype
        self._rings = (
            ring(shape.value_dim, dtype=activations),
            ring(shape.key_dim, dtype=activations),
            ring(shape.key_dim, dtype=torch.float32),
            ring(dtype=torch.float32),
        )
        self._out = torch.empty(0)

        # A slot's buffer of a window's conv inputs, of which the windows of all tokens are overlapping views.
        owned, width = workload.slots.long(), shape.conv_history_len
        inputs = torch.stack([conv[owned].transpose(1, 2) for conv in workload.conv_states])  # [places, N, 3HD, len]
        self._windows = sets(inputs.unfold(3, width, 1).permute(0, 1, 3, 2, 4))  # [..., N, T, 3HD, width]
        self._convs = sets(
            torch.zeros((num_places, num_slots, shape.conv_channels, width), dtype=inputs.dtype, device=device)
        )
        self._last_steps = workload.step.num_sampled - 1
        self._rows = torch.arange(workload.case.num_requests, dtype=torch.int32, device=device)

    def launch(self, op: Op, number: int) -> None:
        if op == "verify":
            number, layer = divmod(number, self._workload.num_layers)
            self._launch_verify(number, layer)
        if op in {"commit", "commit_state"}:
            self._fold(number)
        if op in {"commit", "conv"}:
            self._scatter.fused_conv_window_scatter_with_mask(
                self._convs[number], self._windows[number], self._workload.slots, self._last_steps, self._rows
            )

    def _launch_verify(self, number: int, layer: int) -> None:
        rawv, rawk, gate, beta = (ring[number, layer] for ring in self._rings)
        self._out = launch_verify(
            self._verify,
            self._workload,
            layer,
            self._states[number, layer],
            self._workload.slots,
            cache_ring=True,
            replayssm_rawv=rawv,
            replayssm_rawk=rawk,
            replayssm_g=gate,
            replayssm_beta=beta,
        )

    def _fold(self, number: int) -> None:
        shape = self._workload.case.shape
        self._commit.commit_kda_replayssm_spec_all_layers(
            self._states[number],
            *(ring[number] for ring in self._rings),
            self._workload.slots,
            self._workload.step.num_sampled,
            max_cache_len=shape.spec_query_len,
            num_k_heads=shape.num_heads,
        )

    def outputs(self, op: Op, place: int) -> Outputs:
        if op == "verify":
            return Outputs(out=self._out)
        where, owned = divmod(place, self._workload.num_layers), self._workload.slots.long()
        state = self._states[where][owned] if op != "conv" else None
        conv = self._convs[where][owned].transpose(1, 2) if op != "commit_state" else None
        return Outputs(state=state, conv=conv)

    def written(self, op: Op) -> Sequence[Tensor]:
        return [self._states] if op in {"commit", "commit_state"} else []


class SglangSnapshots:
    """Verify that leaves a state after every token in a buffer of the step."""

    name = "sglang_snapshots"
    title = "SGLang, snapshots"
    licence = "Apache-2.0"
    source = f"{_SOURCE}/fused_sigmoid_gating_recurrent.py, after flash-linear-attention (MIT)"
    scheme = "full_state"
    ops: tuple[Op, ...] = ("verify",)
    covers = (
        "verify with programmatic dependent launch, as SGLang does; without the copy of the accepted snapshot into the "
        "state pool, which SGLang does after sampling"
    )
    tolerance = as_ours()

    def __init__(self) -> None:
        found = find(PACKAGE)
        self._module = found.load(_VERIFY)
        self.version = found.version

    def unsupported(self, case: BenchCase, device: torch.device) -> str | None:
        return None

    def prepare(self, workload: Workload) -> "PreparedSnapshots":
        return PreparedSnapshots(self._module, workload)


class PreparedSnapshots:
    """Windows start from the workload's states, which stay; snapshots lie by row and token in memory of their own."""

    def __init__(self, module: ModuleType, workload: Workload) -> None:
        self._module, self._workload = module, workload
        accepted = workload.step.num_sampled.long()[:, None] - 1
        self._sources = workload.slots.gather(1, accepted).flatten()
        self._rows = torch.arange(workload.case.num_requests, dtype=torch.int32, device=workload.device)
        self._snapshots = [state.new_empty((*workload.slots.shape, *state.shape[1:])) for state in workload.states]
        self._out = torch.empty(0)

    def launch(self, op: Op, number: int) -> None:
        workload = self._workload
        self._out = launch_verify(
            self._module,
            workload,
            workload.layer(number),
            workload.states[number],
            self._sources,
            intermediate_states_buffer=self._snapshots[number],
            intermediate_state_indices=self._rows,
        )

    def outputs(self, op: Op, place: int) -> Outputs:
        return Outputs(out=self._out, states=self._snapshots[place])

    def written(self, op: Op) -> Sequence[Tensor]:
        return ()


def launch_verify(
    module: ModuleType, workload: Workload, layer: int, states: Tensor, slots: Tensor, **recording: object
) -> Tensor:
    """Verify from ``states`` [P, H, V, K] at ``slots`` [N] and record as asked; returns its new output [M, H, V]."""
    step, gate = workload.step, workload.gate(layer)
    out: Tensor = module.fused_sigmoid_gating_delta_rule_update(
        A_log=gate.A_log,
        a=step.raw_gate[None],
        dt_bias=gate.dt_bias,
        softplus_beta=1.0,
        softplus_threshold=20.0,
        q=step.q[None],
        k=step.k[None],
        v=step.v[None],
        b=step.raw_beta[None],
        initial_state_source=states,
        initial_state_indices=slots,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=step.query_start_loc,
        is_kda=True,
        lower_bound=gate.lower_bound,
        disable_state_update=True,
        cache_steps=workload.case.shape.spec_query_len,
        **recording,
    )
    return out[0]


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Equal tensors that lie one after the other in one memory as one view of it; others as a copy."""
    first = tensors[0]
    step = tensors[1].storage_offset() - first.storage_offset() if len(tensors) > 1 else first.numel()
    offsets = [first.storage_offset() + number * step for number in range(len(tensors))]
    storages = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    if len(storages) > 1 or step <= 0 or [tensor.storage_offset() for tensor in tensors] != offsets:
        return torch.stack(tuple(tensors))
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()), first.storage_offset())
