"""The ops as ``torch.ops.recoverssm``: what ``torch.compile`` and ``torch.export`` put into their graphs.

A call of a public op that is traced becomes one of these; any other goes past them, as torch's dispatcher would cost it
more than the launch. They take tensors in the order of the kernels, say which of them they write, and return nothing.
What is wrong with the arguments is told when the graph runs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from recoverssm.dispatch import Prepared
from recoverssm.ops.align_plan import _align_plan
from recoverssm.ops.commit_plan import _commit_plan
from recoverssm.ops.commit_state import commit_state
from recoverssm.ops.conv import compact_conv
from recoverssm.ops.defer_plan import _defer_plan
from recoverssm.ops.full_state import _full_state_verify
from recoverssm.ops.verify import _verify, _verify_history
from recoverssm.types import Boundaries, CommitPlan, GateParams, LayerTable


def _register(name: str, schema: str, function: Callable[..., None]) -> None:
    """Define ``recoverssm::name``; traced with fake tensors it does nothing, as it has no results."""
    qualified = f"recoverssm::{name}"
    torch.library.define(qualified, f"({schema}) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(qualified, ("cpu", "cuda"), function)
    torch.library.register_fake(qualified, lambda *arguments: None)


def _register_prepared(op: Prepared, tensors: str, options: str) -> None:
    """Register an op under the names of its tensors: "!" behind those that it writes, "?" behind one that may lack."""
    names = tensors.split()

    def function(*arguments: Any) -> None:
        given = [tensor for tensor in arguments[: len(names)] if tensor is not None]
        op(given, *arguments[len(names) :])

    arguments = []
    for i, name in enumerate(names):
        kind = f"Tensor(a{i}!)" if "!" in name else "Tensor"
        arguments.append(f"{kind}? {name.rstrip('!?')}" if "?" in name else f"{kind} {name.rstrip('!')}")
    _register(op.name, ", ".join([*arguments, *([options] if options else [])]), function)


_LAYER = "q k v raw_gate raw_beta A_log dt_bias"
_ROWS = "num_sampled query_start_loc state_indices request_indices"
_PLAN = "commit_lens! source_slots! final_slots!"

_register_prepared(
    _verify,
    f"{_LAYER} checkpoint_state correction! key_gate! out! query_start_loc state_indices record_rows",
    "float? lower_bound, bool enable_pdl, bool key_gate_recorded, int history_len, bool by_slot, bool has_record_rows",
)
_register_prepared(
    _verify_history,
    f"{_LAYER} checkpoint_state correction! key_gate! out! query_start_loc state_indices record_rows history_lens",
    "float? lower_bound, bool enable_pdl, bool key_gate_recorded, int history_len",
)
_register_prepared(
    _full_state_verify,
    f"{_LAYER} state_pool! out! query_start_loc state_indices num_accepted",
    "float? lower_bound",
)
_register_prepared(_commit_plan, f"{_ROWS} {_PLAN}", "int spec_query_len, bool has_request_indices")
_register_prepared(
    _align_plan,
    f"{_ROWS} num_computed block_table {_PLAN} boundary_lens! boundary_slots! final_columns! running_columns!?",
    "int spec_query_len, int block_size, bool has_request_indices",
)
_register_prepared(
    _defer_plan,
    "commit_lens source_slots final_slots record_rows history_lens waiting_lens! lens_now! boundary_lens? "
    "boundary_lens_now!?",
    "int history_len, bool has_history",
)


def _commit_state(
    checkpoint_states: Sequence[Tensor],
    corrections: Sequence[Tensor],
    key_gates: Sequence[Tensor],
    commit_lens: Tensor,
    source_slots: Tensor,
    final_slots: Tensor,
    record_rows: Tensor | None,
    A_log: Tensor,
    dt_bias: Tensor,
    lower_bound: float | None,
    by_slot: bool,
    boundary_lens: Tensor | None,
    boundary_slots: Tensor | None,
) -> None:
    """Layers come as tensors, not as addresses: torch may have put others in their place."""
    commit_state(
        LayerTable.of("checkpoint_states", checkpoint_states),
        LayerTable.of("corrections", corrections),
        LayerTable.of("key_gates", key_gates),
        CommitPlan(commit_lens, source_slots, final_slots),
        GateParams(A_log, dt_bias, lower_bound),
        by_slot=by_slot,
        record_rows=record_rows,
        boundaries=_boundaries(boundary_lens, boundary_slots),
    )


def _compact_conv(
    conv_states: Sequence[Tensor],
    commit_lens: Tensor,
    source_slots: Tensor,
    final_slots: Tensor,
    conv_width: int,
    boundary_lens: Tensor | None,
    boundary_slots: Tensor | None,
) -> None:
    plan, boundaries = CommitPlan(commit_lens, source_slots, final_slots), _boundaries(boundary_lens, boundary_slots)
    compact_conv(LayerTable.of("conv_states", conv_states), plan, conv_width=conv_width, boundaries=boundaries)


def _boundaries(lens: Tensor | None, slots: Tensor | None) -> Boundaries | None:
    return None if lens is None or slots is None else Boundaries(lens, slots)


_register(
    "commit_state",
    "Tensor(a!)[] checkpoint_states, Tensor[] corrections, Tensor[] key_gates, Tensor commit_lens, "
    "Tensor source_slots, Tensor final_slots, Tensor? record_rows, Tensor A_log, Tensor dt_bias, float? lower_bound, "
    "bool by_slot, "
    "Tensor? boundary_lens, Tensor? boundary_slots",
    _commit_state,
)
_register(
    "compact_conv",
    "Tensor(a!)[] conv_states, Tensor commit_lens, Tensor source_slots, Tensor final_slots, int conv_width, "
    "Tensor? boundary_lens, Tensor? boundary_slots",
    _compact_conv,
)
