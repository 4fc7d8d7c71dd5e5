"""Errors of one step on small, usual and large states."""

import math
from types import SimpleNamespace

import pytest
import torch

from benchmarks import compile_first, gpu_process, state_sizes
from benchmarks.cases import SETS, BenchCase
from benchmarks.results import Results
from benchmarks.state_sizes import CASES, LIMITS, STDS, add_state_sizes, step_errors
from recoverssm import KDAShape

SHAPE = KDAShape(num_heads=2, spec_query_len=4, key_dim=16, value_dim=16)
CPU = torch.device("cpu")


def case_of(state_dtype):
    return BenchCase("tiny", "a test", SHAPE, 2, 2.5, state_dtype, num_layers=1)


def within_limits(errors, state_dtype):
    return all(value <= LIMITS[metric, state_dtype] for (_, metric), value in errors.items())


def test_an_fp32_step_is_within_its_limits_at_every_size(device):
    errors = step_errors(case_of("fp32"), torch.device(device))

    assert set(errors) == {(op, metric) for op in STDS for metric in ("u_error", "state_error")}
    assert all(value > 0 for value in errors.values())
    assert within_limits(errors, "fp32"), errors


def test_each_layer_has_states_of_its_size(monkeypatch):
    verify, found = state_sizes.verify, []

    def look(*args):
        found.append(args[5].std().item())
        verify(*args)

    monkeypatch.setattr(state_sizes, "verify", look)
    step_errors(case_of("fp32"), CPU)

    assert found == pytest.approx(list(STDS.values()), rel=0.1)


def test_of_a_bf16_state_the_elements_that_are_not_rounded_to_nearest_are_counted(device, monkeypatch):
    errors = step_errors(case_of("bf16"), torch.device(device))
    assert all(errors[op, "u_error"] <= LIMITS["u_error", "bf16"] for op in STDS), errors

    held_against = []
    monkeypatch.setattr(
        state_sizes, "num_differing", lambda state, expected: (held_against.append(expected), state.numel() // 4)[1]
    )
    assert step_errors(case_of("bf16"), torch.device(device))["std_5", "ulp_off_pct"] == 25.0
    assert {expected.dtype for expected in held_against} == {torch.float64}


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(CASES))
def test_the_cases_that_nights_follow_are_within_their_limits(name):
    (case,) = [case for case in SETS["roofline"] if case.name == name]

    errors = step_errors(case, torch.device("cuda", 0))

    assert within_limits(errors, case.state_dtype), errors


@pytest.mark.parametrize("name", ["kimi_k3_tp8_b32_t8_a4.00_fp32", "kimi_k3_tp8_b32_t8_a3.84_fp32"])
def test_a_process_measures_the_sizes_of_such_cases_alone_and_compiling_ahead_launches_them(name, monkeypatch):
    case = next(case for cases in SETS.values() for case in cases if case.name == name)
    done = []
    monkeypatch.setattr(gpu_process, "add_exact_figures", lambda *_: None)
    monkeypatch.setattr(state_sizes, "add_state_sizes", lambda case, *_: done.append(("measured", case.name)))
    process = SimpleNamespace(
        _results=Results(), _device=CPU, _followed=frozenset(), _case_seed=lambda _: 0, _providers=lambda _: []
    )
    gpu_process.GpuProcess.measure_case(process, case)

    monkeypatch.setenv(compile_first.PARENT_VARIABLE, "1")
    for of_card in ("is_available", "current_device", "empty_cache"):
        monkeypatch.setattr(torch.cuda, of_card, lambda: 1)
    for launched in ("launch_all", "_launch_streams", "end_with_parent"):
        monkeypatch.setattr(compile_first, launched, lambda *_: None)
    monkeypatch.setattr(compile_first, "step_errors", lambda case, _: done.append(("launched", case.name)))
    assert compile_first._work(1, 1, [case], frozenset(), list) == 0

    assert done == ([("measured", name), ("launched", name)] if name in CASES else [])


def test_a_night_holds_errors_and_checks_of_each_size(monkeypatch):
    found = {("std_1", "u_error"): 1.2345e-7, ("std_5", "u_error"): 9e-7, ("std_1", "state_error"): None}
    monkeypatch.setattr(state_sizes, "step_errors", lambda case, device: found)
    results = Results()

    add_state_sizes(case_of("fp32"), CPU, results)

    values = {(item.op, item.metric): (item.value, item.unit, item.contract) for item in results.measurements}
    assert values == {
        ("std_1", "u_error"): (1.23e-7, "relative", "exact"),
        ("std_5", "u_error"): (9e-7, "relative", "exact"),
    }
    assert [check.passed for check in results.checks] == [True, False, False]
    assert not math.isnan(results.checks[1].value)
