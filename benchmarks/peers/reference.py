"""What a peer's ops must leave for a place, in float64, from the workload's own inputs."""

import torch
from torch import Tensor

from recoverssm import reference
from recoverssm.types import CommitPlan, GateParams, Records

from .protocol import Op
from .workload import Workload


def expected_outputs(workload: Workload, op: Op, place: int) -> dict[str, Tensor]:
    """By name as in ``Outputs``, float64, everything that ``op`` may be asked to show; conv windows keep their bits.

    States and windows are read as they are now: ask before the op is launched, for a peer may write them in place.
    """
    if op != "verify":
        return _committed(workload, place)
    if workload.scheme == "full_state":
        return _every_state(workload, place)
    out, records = _verified(workload, place)
    found = {"out": out, "correction": records.correction}
    if workload.scheme == "last_state":
        all_tokens = torch.full_like(workload.step.num_sampled, workload.case.shape.spec_query_len)
        found["state"] = _folded(workload, place, records, all_tokens)
    return found


def _verified(workload: Workload, place: int) -> tuple[Tensor, Records]:
    step, shape = workload.step, workload.case.shape
    rows = (workload.case.num_requests, shape.num_heads, shape.spec_query_len)
    records = Records(
        torch.zeros((*rows, shape.value_dim), dtype=torch.float64, device=workload.device),
        torch.zeros((*rows, 2 * shape.key_dim), dtype=torch.float64, device=workload.device),
    )
    out = reference.verify(
        *step.activations,
        workload.states[place],
        records,
        workload.gate(place),
        step.query_start_loc,
        workload.slots,
        out=torch.zeros_like(step.v, dtype=torch.float64),
    )
    return out, records


def _every_state(workload: Workload, place: int) -> dict[str, Tensor]:
    step, pool = workload.step, workload.states[place].double()
    out = reference.full_state_verify(
        *step.activations,
        pool,
        workload.gate(place),
        step.query_start_loc,
        workload.slots,
        step.num_sampled,
        out=torch.zeros_like(step.v, dtype=torch.float64),
    )
    return {"out": out, "states": pool[workload.slots.long()]}


def _committed(workload: Workload, place: int) -> dict[str, Tensor]:
    _, records = _verified(workload, place)
    accepted, slots = workload.step.num_sampled, workload.slots
    windows, conv_width = workload.conv_states[place].clone(), workload.case.shape.conv_width
    reference.compact_conv([windows], CommitPlan(accepted, slots, slots), conv_width=conv_width)
    conv = windows[slots.long(), : conv_width - 1]
    return {"state": _folded(workload, place, records, accepted), "conv": conv}


def _folded(workload: Workload, place: int, records: Records, accepted: Tensor) -> Tensor:
    gate, slots = workload.gate(place), workload.slots
    state = workload.states[place].double()
    stacked = GateParams(gate.A_log[None], gate.dt_bias[None], gate.lower_bound)
    reference.commit_state([state], [records], CommitPlan(accepted, slots, slots), stacked)
    return state[slots.long()]
