"""Errors of one step on states of three sizes against float64: records of verify, and states after the commit.

A layer for each size, so that one commit serves all. Seeds are fixed: processes of one night agree to the last digit.
"""

from dataclasses import replace

import torch
from torch import Tensor

from recoverssm import CommitContext, GateParams, reference, verify
from recoverssm.types import NULL_SLOT, CommitPlan, Records

from .cases import BenchCase
from .checks import num_differing, relative_error
from .harness.records import Check
from .inputs import STATE_DTYPES, build_records, build_step, seeded_generator
from .results import Results

CASES = frozenset({"kimi_k3_tp8_b32_t8_a4.00_fp32", "kimi_k3_tp8_b32_t8_a4.00_bf16"})
"""Of the set ``roofline``."""

STDS = {"std_0.1": 0.1, "std_1": 1.0, "std_5": 5.0}
"""Standard deviation of the states, by op."""

LIMITS = {
    ("u_error", "fp32"): 5e-7,
    ("u_error", "bf16"): 2e-6,
    ("state_error", "fp32"): 5e-7,
    ("state_error", "bf16"): 2e-3,
    ("ulp_off_pct", "bf16"): 0.1,
}
"""Relative Frobenius norms, and percent of elements that are not the float64 state rounded to nearest."""

Errors = dict[tuple[str, str], float | None]


def add_state_sizes(case: BenchCase, device: torch.device, results: Results) -> None:
    """Checks and exact series, op by op of STDS."""
    for (op, metric), value in step_errors(case, device).items():
        limit = LIMITS[metric, case.state_dtype]
        results.checks.append(
            Check(
                case=case.name,
                op=op,
                provider="recoverssm",
                metric=metric,
                value=value,
                limit=limit,
                passed=value is not None and value <= limit,
                detail="one step",
            )
        )
        if value is not None:
            results.add_exact(metric, op, "recoverssm", case.name, float(f"{value:.2e}"))


def step_errors(case: BenchCase, device: torch.device) -> Errors:
    """By op and metric, of one verify and one commit of full windows; None where a value is not finite."""
    case = replace(case, num_layers=len(STDS))
    generator = seeded_generator(device, 0)
    step, rows, shape = build_step(case, device, generator), case.num_requests, case.shape
    slots = torch.arange(NULL_SLOT + 1, NULL_SLOT + 1 + rows, dtype=torch.int32, device=device)
    size = (NULL_SLOT + 1 + rows, shape.num_heads, shape.value_dim, shape.key_dim)
    states = [
        (std * torch.randn(size, generator=generator, device=device)).to(STATE_DTYPES[case.state_dtype])
        for std in STDS.values()
    ]
    records = build_records(shape, len(STDS), rows, device)
    expected_states = [state.double() for state in states]
    expected_records = [Records(one.correction.double(), one.key_gate.clone()) for one in records]
    where = (step.query_start_loc, slots)
    for state, mine, theirs, gate in zip(states, records, expected_records, step.layer_gates, strict=True):
        verify(*step.activations, state, mine, gate, *where)
        reference.verify(*step.activations, state, theirs, gate, *where)
    _commit_by_reference(expected_states, expected_records, step.num_sampled, *where, step.gate)
    CommitContext(states, records, [], step.gate, max_num_rows=rows).commit(step.num_sampled, *where)

    found: Errors = {}
    owned = slots.long()
    for layer, op in enumerate(STDS):
        state, expected = states[layer][owned], expected_states[layer][owned]
        found[op, "u_error"] = relative_error(records[layer].correction, expected_records[layer].correction)
        found[op, "state_error"] = relative_error(state, expected)
        if case.state_dtype != "fp32":
            found[op, "ulp_off_pct"] = 100 * num_differing(state, expected) / state.numel()
    return found


def _commit_by_reference(
    states: list[Tensor], records: list[Records], num_sampled: Tensor, starts: Tensor, slots: Tensor, gate: GateParams
) -> None:
    plan = CommitPlan(*(torch.full_like(slots, -1) for _ in range(3)))
    reference.commit_plan(num_sampled, starts, slots, plan, spec_query_len=records[0].correction.shape[2])
    reference.commit_state(states, records, plan, gate)
