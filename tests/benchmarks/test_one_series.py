from statistics import median

import pytest
import torch

from benchmarks import bench_cpu_reference, bench_graph_cold, bench_memory, one_series
from benchmarks.harness.errors import MeasurementError
from benchmarks.harness.measure import Samples
from benchmarks.one_series import CheckFailedError, OneSeries, UnavailableError, case_of, seconds

CASE = case_of(32, 8, "fp32")
SAMPLES = Samples((10.0, 12.0, 11.0), 4, "enough", (0.0, 0.1, 0.2))


def test_published_acceptance_is_the_case_of_the_nights():
    assert CASE.name == "kimi_k3_tp8_b32_t8_a3.84_fp32"
    assert case_of(1, 4, "bf16", "all").name == "kimi_k3_tp8_b1_t4_a4.00_bf16"


def test_an_unknown_acceptance_is_refused():
    with pytest.raises(ValueError, match="expected one of"):
        case_of(1, 4, "bf16", "most")


@pytest.mark.parametrize("suite", [bench_graph_cold, bench_cpu_reference, bench_memory])
def test_every_combination_of_asvs_parameters_is_a_case(suite):
    benchmarks = [one for one in vars(suite).values() if hasattr(one, "param_names")]

    assert benchmarks
    for benchmark in benchmarks:
        params = dict(zip(benchmark.param_names, benchmark.params, strict=True))
        for acceptance in params.get("acceptance", ["published"]):
            for spec_query_len in params["T"]:
                for state_dtype in params["dtype"]:
                    assert case_of(params["B"][0], spec_query_len, state_dtype, acceptance).stands_for


def test_asv_gets_seconds_per_call_and_the_calls_in_a_sample():
    assert seconds(SAMPLES) == {"samples": [value * 1e-6 for value in SAMPLES.values_us], "number": 4}


@pytest.mark.parametrize(("least_us", "refused"), [(None, False), (11.0, False), (11.5, True)])
def test_a_result_below_its_roofline_time_is_refused(least_us, refused):
    series = OneSeries("verify", "recoverssm", CASE, "graph-cold", (), least_us)

    if refused:
        with pytest.raises(MeasurementError, match=r"impossible: 11\.00 us, and its bytes take 11\.50 us"):
            series.refuse_impossible(SAMPLES)
    else:
        series.refuse_impossible(SAMPLES)


def test_device_time_restores_counts_kernels_and_judges_as_nights_do(monkeypatch):
    seen = {}
    monkeypatch.setattr(
        "benchmarks.harness.measure.measure_graph_cold", lambda launches, **options: seen.update(options) or SAMPLES
    )
    series = OneSeries("commit", "recoverssm", CASE, "graph-cold", (), None, restore := object(), 3)

    assert series.measure(card := object()) is SAMPLES
    assert (seen["restore"], seen["num_kernels"], seen["card"]) == (restore, 3, card)


def test_outputs_that_are_not_finite_after_timing_yield_no_number(monkeypatch):
    monkeypatch.setattr("benchmarks.harness.measure.measure_graph_cold", lambda *_, **__: SAMPLES)
    series = OneSeries("commit", "recoverssm", CASE, "graph-cold", (), num_non_finite=lambda: 7)

    with pytest.raises(CheckFailedError, match="7 elements not finite"):
        series.measure()


def test_without_a_gpu_there_is_no_device_series(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(UnavailableError, match="needs a CUDA device"):
        one_series.device_series("verify", "recoverssm", CASE)


def test_asv_is_told_to_skip_device_time_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    benchmark = bench_graph_cold.Verify()

    with pytest.raises(NotImplementedError):
        benchmark.setup("recoverssm", 1, 4, "fp32")
    benchmark.teardown("recoverssm", 1, 4, "fp32")


@pytest.mark.parametrize("op", ["verify", "commit", "conv", "step"])
def test_every_op_of_the_reference_can_be_timed_alone(op):
    series = one_series.reference_series(op, CASE)
    series.launches[0]()

    assert (series.contract, series.provider, len(series.launches)) == ("cpu-reference", "torch", 1)
    assert series.case.num_requests == 2


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("suite", "params"),
    [
        (bench_graph_cold.Verify, ("recoverssm", 1, 4, "fp32")),
        (bench_graph_cold.Verify, ("full_state", 1, 4, "bf16")),
        (bench_graph_cold.Step, ("full_state", 1, 4, "fp32", "published")),
        (bench_graph_cold.Commit, ("recoverssm", 1, 4, "bf16", "all")),
        (bench_graph_cold.Conv, ("recoverssm", 1, 4, "fp32", "all")),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(map(str, value)),
)
def test_the_device_suite_hands_asv_samples_on_a_gpu(suite, params):
    one = suite()
    try:
        one.setup(*params)
        found = one.track_seconds(*params)
    finally:
        one.teardown(*params)

    assert len(found["samples"]) >= 6
    assert found["number"] >= 1
    assert 1e-6 < median(found["samples"]) < 0.1
