"""Long runs, scaled down: the float64 witness, and errors that see what a chain of steps does."""

import pytest
import torch

from benchmarks import long_runs
from benchmarks.cases import SETS, BenchCase
from benchmarks.float64_chain import advance_states
from benchmarks.harness.clock import CudaEventTimer
from benchmarks.long_runs import CASES, LIMITS, Chain, add_long_runs, launch_once
from benchmarks.results import Results
from recoverssm import GateParams, KDAShape
from recoverssm.reference.recurrence import delta_step, kda_log_decay, scaled_query, unit_key
from tests.windows import int32, relative_error

CPU = torch.device("cpu")
SHAPE = KDAShape(num_heads=2, spec_query_len=4, key_dim=16, value_dim=16)


def case_of(state_dtype, num_requests=2):
    return BenchCase("tiny", "a test", SHAPE, num_requests, 2.5, state_dtype, num_layers=1)


def at_once(launches, rounds):
    """In place of a timer's capture: the launches as they are."""
    (launch,) = launches
    launch()
    return launch


@pytest.mark.parametrize("lower_bound", [-5.0, None], ids=["bounded", "unbounded"])
def test_the_float64_chain_is_the_reference_over_the_accepted_tokens(lower_bound, device):
    S, N, T, H, K, V = 3, 2, 4, 2, 16, 32
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator).to(device)  # noqa: E731
    k, raw_gate, v, raw_beta = (draw(S, N * T, H, *size).bfloat16() for size in ((K,), (K,), (V,), ()))
    gate = GateParams(draw(H), torch.linspace(-12, 1, K, device=device).repeat(H, 1), lower_bound)
    accepted = int32([[1, 4], [3, 1], [2, 2]], device)
    state = draw(N, H, V, K).double()
    expected = state.clone()
    for step in range(S):
        for row in range(N):
            for token in range(row * T, row * T + int(accepted[step, row])):
                key, value, beta = unit_key(k[step, token]), v[step, token].double(), raw_beta[step, token].double()
                decay = kda_log_decay(raw_gate[step, token], gate)
                expected[row] = delta_step(expected[row], decay, key, scaled_query(key), value, beta.sigmoid())[0]

    advance_states(state, k, v, raw_gate, raw_beta, gate, accepted)

    assert relative_error(state, expected) <= 1e-13


@pytest.mark.parametrize("lower_bound", [-5.0, None], ids=["bounded", "unbounded"])
def test_fp32_states_stay_with_the_float64_ones_under_both_schemes(lower_bound, device):
    chain = Chain(case_of("fp32"), lower_bound, torch.device(device), num_steps=4, chunk_steps=2)

    early, final = chain.run(at_once)

    assert set(final) == {(m, p) for m in ("state_error", "slow_state_error") for p in ("recoverssm", "full_state")}
    for errors in (early, final):
        assert all(0 < error <= 1e-6 for error in errors.values()), errors


def test_the_errors_of_bf16_states_are_those_of_rounding_them(device):
    chain = Chain(case_of("bf16"), -5.0, torch.device(device), num_steps=4, chunk_steps=2)

    _, final = chain.run(at_once)

    assert all(1e-3 <= error <= 4e-2 for error in final.values()), final


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(CASES["nightly"]))
@pytest.mark.parametrize("lower_bound", [-5.0, None], ids=["bounded", "unbounded"])
def test_steps_in_a_graph_leave_what_single_steps_leave_and_stay_within_limits(name, lower_bound):
    (case,) = [case for case in SETS["nightly"] if case.name == name]
    device = torch.device("cuda", 0)
    captures = (at_once, CudaEventTimer(device).capture)

    runs = [Chain(case, lower_bound, device, num_steps=40, chunk_steps=20).run(capture) for capture in captures]

    assert runs[0] == runs[1]
    _, final = runs[0]
    assert all(error <= LIMITS[metric, case.state_dtype] for (metric, _), error in final.items()), final


def test_a_token_too_many_in_one_commit_shows(device, monkeypatch):
    chain = Chain(case_of("fp32"), -5.0, torch.device(device), num_steps=4, chunk_steps=2)
    advance = long_runs.advance_states

    def forget_one(state, *tokens_and_gate):
        *tokens, accepted = tokens_and_gate
        advance(state, *tokens, (accepted - (accepted > 1).int()))

    monkeypatch.setattr(long_runs, "advance_states", forget_one)

    _, final = chain.run(at_once)

    assert all(error > 1e-3 for error in final.values()), final


def test_a_night_holds_errors_growth_and_checks_of_both_schemes_and_gate_forms(monkeypatch):
    monkeypatch.setattr(long_runs, "Chain", FakeChain)
    results = Results()

    add_long_runs(case_of("fp32"), CPU, at_once, results)

    values = {(item.op, item.provider, item.metric): item.value for item in results.measurements}
    assert len(values) == 16
    assert values["chain", "recoverssm", "state_error"] == 2e-7
    assert values["chain", "recoverssm", "state_error_growth"] == 2.0
    assert values["chain_unbounded", "full_state", "slow_state_error_growth"] == 2.0
    assert {item.contract for item in results.measurements} == {"exact"}
    assert len(results.checks) == 8
    assert all(check.passed for check in results.checks)


def test_a_state_that_is_not_finite_has_no_number_and_fails_its_check(monkeypatch):
    monkeypatch.setattr(long_runs, "Chain", FakeChain)
    monkeypatch.setattr(FakeChain, "final", None)
    results = Results()

    add_long_runs(case_of("fp32"), CPU, at_once, results)

    assert not results.measurements
    assert not any(check.passed for check in results.checks)


class FakeChain:
    final: float | None = 2e-7

    def __init__(self, case, lower_bound, device):
        pass

    def run(self, capture):
        keys = [(m, p) for m in ("state_error", "slow_state_error") for p in ("recoverssm", "full_state")]
        return dict.fromkeys(keys, 1e-7), dict.fromkeys(keys, self.final)


def test_compiling_ahead_launches_what_a_long_run_launches(device):
    launch_once(case_of("bf16", num_requests=1), torch.device(device))


def test_cases_of_long_runs_are_in_their_sets():
    for case_set, names in CASES.items():
        assert names <= {case.name for case in SETS[case_set]}
