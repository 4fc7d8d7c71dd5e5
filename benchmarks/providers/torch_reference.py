"""The float64 torch reference as a provider: timed on a CPU for scale, never checked against itself."""

from collections.abc import Iterable
from functools import partial

import torch

from recoverssm import reference
from recoverssm.types import CommitPlan

from .. import inputs
from ..cases import BenchCase
from ..inputs import NUM_UNOWNED_SLOTS
from .base import Call

NAME = "torch"


OPS = ("verify", "commit", "conv", "step")


def reference_calls(case: BenchCase, seed: int, ops: Iterable[str] = ("verify", "commit")) -> dict[str, Call]:
    """One call of each op on the CPU: ``verify`` of one layer, ``commit``, ``conv`` and ``step`` of all layers."""
    device = torch.device("cpu")
    generator = torch.Generator(device).manual_seed(seed)
    step = inputs.build_step(case, device, generator)
    layers = inputs.build_layer_set(case, device, generator)
    slots = inputs.shuffled_slots(case.num_requests + NUM_UNOWNED_SLOTS, case.num_requests, device, seed)
    plan = CommitPlan(*torch.zeros((3, case.num_requests), dtype=torch.int32).unbind())

    def verify(layer: int) -> None:
        reference.verify(
            step.q,
            step.k,
            step.v,
            step.raw_gate,
            step.raw_beta,
            layers.checkpoint_states[layer],
            layers.records[layer],
            step.layer_gates[layer],
            step.query_start_loc,
            slots,
        )

    def verify_all() -> None:
        for layer in range(case.num_layers):
            verify(layer)

    def fill_plan() -> None:
        reference.commit_plan(
            step.num_sampled, step.query_start_loc, slots, plan, spec_query_len=case.shape.spec_query_len
        )

    def conv() -> None:
        reference.compact_conv(layers.conv_states, plan, conv_width=case.shape.conv_width)

    def commit() -> None:
        fill_plan()
        reference.commit_state(layers.checkpoint_states, layers.records, plan, step.gate)
        conv()

    def whole_step() -> None:
        verify_all()
        commit()

    verify_all()  # commit needs records of every layer
    fill_plan()  # and conv needs the plan
    calls: dict[str, Call] = {"verify": partial(verify, 0), "commit": commit, "conv": conv, "step": whole_step}
    return {op: calls[op] for op in ops}
