"""CommitContext: everything one commit over all layers needs, set up once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from recoverssm.errors import ShapeError
from recoverssm.ops import commit_plan, commit_state, compact_conv
from recoverssm.types import CommitPlan, GateParams, LayerTable, Records


class CommitContext:
    """Commits a verified window in all layers by three launches: plan, then state, then conv.

    A commit allocates nothing, does not wait for the device and may be captured in a CUDA graph.

    Holds raw addresses: the tensors must neither move nor be resized while the context lives.

    Args:
        checkpoint_states: per layer [P, H, V, K] fp32 or bf16.
        records: per layer, as ``verify`` writes them.
        conv_states: per layer [P, conv_state_len, 3HD] token-major; empty when the engine compacts elsewhere.
        gate: stacked over layers, A_log [L, H], dt_bias [L, H, K] fp32.
        max_num_rows: rows of the largest batch; sizes the plan.
        conv_width: taps of the short convolution.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError: layers that differ, or fewer than needed.
    """

    def __init__(
        self,
        checkpoint_states: Sequence[Tensor],
        records: Sequence[Records],
        conv_states: Sequence[Tensor],
        gate: GateParams,
        *,
        max_num_rows: int,
        conv_width: int = 4,
    ) -> None:
        if max_num_rows < 1:
            raise ShapeError(f"max_num_rows: expected at least 1, got {max_num_rows}")
        for name, layers in (("records", records), ("conv_states", conv_states)):
            if layers and len(layers) != len(checkpoint_states):
                raise ShapeError(f"{name}: expected {len(checkpoint_states)} layers, got {len(layers)}")
        self._states = LayerTable.of("checkpoint_states", checkpoint_states)
        self._corrections = LayerTable.of("records.correction", [r.correction for r in records])
        self._key_gates = LayerTable.of("records.key_gate", [r.key_gate for r in records])
        self._convs = LayerTable.of("conv_states", conv_states) if conv_states else None
        self._gate = gate
        self._conv_width = conv_width
        self._spec_query_len = records[0].correction.shape[2]
        device = checkpoint_states[0].device
        self._plan_buffer = torch.zeros((3, max_num_rows), dtype=torch.int32, device=device)

    def commit(
        self,
        num_sampled: Tensor,
        query_start_loc: Tensor,
        state_indices: Tensor,
        *,
        request_indices: Tensor | None = None,
    ) -> CommitPlan:
        """Commit the last verified window and return the plan, a view that the next commit overwrites.

        Arguments as in ``commit_plan``. Runs on the current stream; may be captured in a CUDA graph.

        Raises:
            ShapeError, DtypeError, StrideError, DeviceError: before any launch.
        """
        num_rows = state_indices.shape[0]
        if num_rows > self._plan_buffer.shape[1]:
            raise ShapeError(
                f"state_indices: expected at most max_num_rows={self._plan_buffer.shape[1]} rows, got {num_rows}"
            )
        plan = CommitPlan(*self._plan_buffer[:, :num_rows].unbind())
        commit_plan(
            num_sampled,
            query_start_loc,
            state_indices,
            plan,
            spec_query_len=self._spec_query_len,
            request_indices=request_indices,
        )
        commit_state(self._states, self._corrections, self._key_gates, plan, self._gate)
        if self._convs is not None:
            compact_conv(self._convs, plan, conv_width=self._conv_width)
        return plan
