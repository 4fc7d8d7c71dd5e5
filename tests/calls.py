"""A good call of every op, as keyword arguments, and what tests change in it."""

from contextlib import contextmanager

import pytest
import torch

from recoverssm import (
    AlignInputs,
    AlignPlan,
    Boundaries,
    CommitPlan,
    LayerTable,
    RecordRows,
)
from recoverssm.ops import align_plan, commit_plan, commit_state, compact_conv, defer_plan, full_state_verify, verify
from recoverssm.triton_compat import KernelLaunch
from tests.windows import FULL, Window, int32


@contextmanager
def noted_launches():
    """Kernel, grid, scalars and constants of what would be launched."""
    launches = []

    def note(launch, tensors, addresses):
        assert addresses == tuple(tensor.data_ptr() for tensor in tensors)
        launches.append((launch.kernel, launch.grid, launch.scalars, launch.constants))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KernelLaunch, "__call__", note)
        yield launches


def verify_arguments(window):
    names = ("q", "k", "v", "raw_gate", "raw_beta")
    return dict(
        zip(names, window.activations, strict=True),
        checkpoint_state=window.checkpoint_states[0],
        records=window.records[0],
        gate=window.layer_gate(),
        query_start_loc=window.query_start_loc,
        state_indices=window.state_indices,
        out=window.out,
    )


def verify_call():
    return verify_arguments(Window(FULL, "cpu"))


def full_state_call():
    call = verify_call()
    del call["records"]
    call["state_pool"] = call.pop("checkpoint_state")
    return call | {
        "state_indices": int32([[3, 0, 0, 2], [1, 4, 0, 0], [5, 0, 6, 0]], "cpu"),
        "num_accepted": int32([1, 1, 1], "cpu"),
    }


def commit_plan_call():
    rows = int32([1, 2, 3], "cpu")
    plan = CommitPlan(*(int32([9, 9, 9], "cpu") for _ in range(3)))
    starts = int32([0, 4, 8, 12], "cpu")
    return {
        "num_sampled": rows,
        "query_start_loc": starts,
        "state_indices": rows.clone(),
        "plan": plan,
        "spec_query_len": 4,
        "request_indices": rows.clone(),
    }


def align_plan_call():
    call = commit_plan_call()
    tables = int32([[1, 2, 3]] * 3, "cpu")
    plan = AlignPlan.zeros(3, spec_query_len=4, block_size=4)
    return call | {"align": AlignInputs(int32([3, 4, 5], "cpu"), tables, 4, int32([0, 1, 1], "cpu")), "plan": plan}


def defer_plan_call():
    plan = CommitPlan(int32([2, 3, 1], "cpu"), int32([1, 2, 3], "cpu"), int32([1, 5, 3], "cpu"))
    return {
        "plan": plan,
        "record_rows": RecordRows(int32([4, 0, 2], "cpu"), int32([1, 2, 3], "cpu")),
        "waiting_lens": int32([9] * 6, "cpu"),
        "lens_now": int32([9, 9, 9], "cpu"),
        "history_len": 4,
        "boundary_lens": int32([[0], [0], [1]], "cpu"),
        "boundary_lens_now": int32([[9], [9], [9]], "cpu"),
    }


def commit_state_call():
    window = Window(FULL, "cpu")
    return {
        "checkpoint_states": LayerTable.of("states", window.checkpoint_states),
        "corrections": LayerTable.of("corrections", [records.correction for records in window.records]),
        "key_gates": LayerTable.of("key_gates", [records.key_gate for records in window.records]),
        "plan": window.plan([1, 1, 1]),
        "gate": window.gate,
        "boundaries": boundaries_of([2, 4, 6]),
    }


def boundaries_of(slots):
    """One for each row, after its first token."""
    return Boundaries(int32([[1] for _ in slots], "cpu"), int32([[slot] for slot in slots], "cpu"))


def conv_call():
    plan = CommitPlan(int32([2, 3], "cpu"), *(int32([1, 2], "cpu") for _ in range(2)))
    windows = LayerTable.of("conv", [torch.arange(5.0 * 6 * 24).view(5, 6, 24)])
    return {"conv_states": windows, "plan": plan, "conv_width": 4, "boundaries": boundaries_of([3, 4])}


OPS = {
    verify: verify_call,
    full_state_verify: full_state_call,
    commit_plan: commit_plan_call,
    align_plan: align_plan_call,
    commit_state: commit_state_call,
    defer_plan: defer_plan_call,
    compact_conv: conv_call,
}


def shifted(tensor):
    """The same values one element on, so that the address is no multiple of 16."""
    room = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    return room[1:].view(tensor.shape).copy_(tensor)


def parts_of(value, path=()):
    """Every tensor in the arguments, by the path that leads to it."""
    if isinstance(value, torch.Tensor):
        yield path
    elif isinstance(value, LayerTable):
        yield (*path, "tensors")
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from parts_of(inner, (*path, name))
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from parts_of(getattr(value, name), (*path, name))


def changed(value, path, change):
    if not path:
        return change(value)
    name, *rest = path
    if name == "tensors":
        return LayerTable.of("table", [change(tensor) for tensor in value.tensors])
    if isinstance(value, dict):
        return value | {name: changed(value[name], rest, change)}
    fields = {each: getattr(value, each) for each in value.__dataclass_fields__}
    return type(value)(**fields | {name: changed(fields[name], rest, change)})
