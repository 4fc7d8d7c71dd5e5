import math
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

import recoverssm
from benchmarks.cases import SETS
from benchmarks.checks import INTERPRETED, Checklist
from benchmarks.cpu_process import shrunken
from benchmarks.inputs import NUM_UNOWNED_SLOTS
from benchmarks.providers import (
    PROVIDERS,
    base,
)
from benchmarks.providers.bare import launches_of, num_programs
from benchmarks.providers.full_state import num_state_pools
from benchmarks.providers.plan_places import NUM_PLACES, PAGE_BYTES
from benchmarks.providers.recoverssm_calls import count_sets
from recoverssm import triton_compat
from recoverssm.triton_compat import KernelLaunch

L2_BYTES = 60 * 2**20
CPU = torch.device("cpu")
RECOVERSSM, FULL_STATE = PROVIDERS


def tiny(name, num_requests=1):
    case = shrunken(next(case for case in SETS["nightly"] if case.name == name))
    return replace(case, num_requests=num_requests, num_layers=1, shape=replace(case.shape, num_heads=1))


@pytest.mark.parametrize("case", SETS["nightly"], ids=str)
def test_rotated_memory_is_at_least_twice_the_l2(case):
    sizes = base.layer_sizes(case)
    num_sets, num_conv_sets = count_sets(case, L2_BYTES)
    rows = case.num_requests * case.num_layers

    assert num_sets * rows * sizes.state_bytes >= 2 * L2_BYTES
    assert num_conv_sets * rows * sizes.conv_history_bytes >= 2 * L2_BYTES
    pool_bytes = case.num_requests * case.shape.spec_query_len * sizes.state_bytes
    assert num_state_pools(case, L2_BYTES) * pool_bytes >= 2 * L2_BYTES


@pytest.mark.parametrize("case", SETS["nightly"], ids=str)
def test_steps_of_full_state_follow_each_other_in_the_cycle_of_pools(case):
    num_pools = num_state_pools(case, L2_BYTES)

    assert num_pools % case.num_layers == 0 or case.num_layers % num_pools == 0


@pytest.mark.parametrize("case", SETS["nightly"], ids=str)
def test_every_nightly_case_fits_a_card_of_80_gb(case):
    for provider in PROVIDERS:
        assert 0 < provider.needed_bytes(case, L2_BYTES) < 70e9


def test_cache_bytes_are_those_of_the_published_example():
    (case,) = (case for case in SETS["nightly"] if case.name == "kimi_k3_tp1_b4_t8_a3.84_fp32")
    records = 4 * 69 * 96 * 8 * 1024
    saved = FULL_STATE.cache_bytes(case) - RECOVERSSM.cache_bytes(case) + records

    assert saved == 12_155_092_992  # 4 sequences, 7 drafts: "12 GB wasted" (vLLM PR 51855)


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_needed_bytes_cover_what_is_prepared(provider):
    case = tiny("kimi_k3_tp8_b32_t3_a2.73_fp32")
    scheme_bytes = provider._bytes(case, *([1] if provider is FULL_STATE else []), num_unowned_slots=NUM_UNOWNED_SLOTS)

    assert provider.needed_bytes(case, 0) > scheme_bytes.total


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_prepared_series_are_those_the_provider_names(provider):
    prepared = provider.prepare(tiny("kimi_k3_tp8_b32_t3_a2.73_fp32"), CPU, 0, 0)

    assert tuple((series.op, series.contract) for series in prepared.series()) == provider.series_names


def test_calls_rotate_over_every_set_and_every_set_is_fit_for_timing():
    case = tiny("kimi_k3_tp8_b32_t3_a2.73_fp32")
    sizes = base.layer_sizes(case)
    l2_bytes = sizes.state_bytes  # twice that is two sets of one request and layer
    prepared = RECOVERSSM.prepare(case, CPU, 0, l2_bytes)
    checklist = Checklist("case", "recoverssm", INTERPRETED)
    prepared.check(checklist)
    num_calls = {series.op: len(series.calls) for series in prepared.series() if series.contract == "graph-cold"}

    assert all(check.passed for check in checklist.checks)
    assert prepared.num_non_finite() == 0
    assert num_calls["verify"] == num_calls["commit_state"] == num_calls["commit"] == num_calls["step"] == 2
    assert num_calls["conv"] == -(-2 * l2_bytes // sizes.conv_history_bytes)


def test_a_plan_is_timed_at_places_that_share_no_page():
    case = tiny("kimi_k3_tp8_b32_t3_a2.73_fp32", num_requests=2)
    prepared = RECOVERSSM.prepare(case, CPU, 0, base.layer_sizes(case).state_bytes)
    (series,) = (one for one in prepared.series() if one.op == "commit_plan")
    pages = [{t.data_ptr() // PAGE_BYTES for t in (*call.args[:3], call.args[3].commit_lens)} for call in series.calls]

    assert len(pages) == NUM_PLACES
    assert len(set().union(*pages)) == 4 * NUM_PLACES


def test_a_plan_that_is_wrong_at_one_place_fails_its_check():
    case = tiny("kimi_k3_tp8_b32_t3_a2.73_fp32", num_requests=2)
    prepared = RECOVERSSM.prepare(case, CPU, 0, base.layer_sizes(case).state_bytes)
    prepared._placed.calls = (*prepared._placed.calls[:-1], lambda: None)  # never filled
    checklist = Checklist("case", "recoverssm", INTERPRETED)
    prepared.check(checklist)

    assert {(check.op, check.metric) for check in checklist.checks if not check.passed} == {
        ("commit_plan", "differing")
    }


def test_costs_of_the_parts_add_up_to_the_step():
    prepared = RECOVERSSM.prepare(tiny("kimi_k3_tp8_b32_t3_a2.73_fp32"), CPU, 0, 0)
    costs = {series.op: series.cost for series in prepared.series()}

    assert costs["commit"] == costs["commit_plan"] + costs["commit_state"] + costs["conv"]
    assert costs["step"] == costs["verify"] + costs["commit"]  # one layer


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_correct_kernels_pass_and_stay_finite_when_called_again(provider):
    prepared = provider.prepare(tiny("kimi_k3_tp8_b32_t3_a2.73_bf16"), CPU, 7, 0)
    checklist = Checklist("case", provider.name, INTERPRETED)
    prepared.check(checklist)
    for series in prepared.series():
        series.calls[0]()

    assert [check for check in checklist.checks if not check.passed] == []
    assert prepared.num_non_finite() == 0


def break_verify(monkeypatch, spoil):
    verify = recoverssm.verify

    def spoiled(*args, **kwargs):
        out = verify(*args, **kwargs)
        spoil(out=out, checkpoint_state=args[5], records=args[6])
        return out

    monkeypatch.setattr(recoverssm, "verify", spoiled)


SPOILERS = {
    "an output off by 1e-3": (("verify", "out_error"), lambda out, **_: out.add_(1e-3)),
    "a checkpoint that was touched": (
        ("verify", "untouched"),
        lambda checkpoint_state, **_: checkpoint_state[0].add_(1),
    ),
    "a correction off by 1e-5": (("verify", "u_error"), lambda records, **_: records.correction.mul_(1 + 1e-5)),
    "a record past the window": (
        ("verify", "untouched"),
        lambda records, **_: records.key_gate[-1, :, -1].nan_to_num_(nan=0.0),
    ),
    "a key that was normalised": (("verify", "differing"), lambda records, **_: records.key_gate.mul_(0.5)),
}


@pytest.mark.parametrize("spoiled", SPOILERS)
def test_a_wrong_verify_fails_its_check(spoiled, monkeypatch):
    (op, metric), spoil = SPOILERS[spoiled]
    break_verify(monkeypatch, spoil)
    checklist = Checklist("case", "recoverssm", INTERPRETED)
    RECOVERSSM.prepare(tiny("kimi_k3_tp8_b32_t3_a2.73_fp32"), CPU, 0, 0).check(checklist)

    assert (op, metric) in {(check.op, check.metric) for check in checklist.checks if not check.passed}


def test_a_commit_that_forgets_the_conv_window_fails_its_check(monkeypatch):
    monkeypatch.setattr("recoverssm.committer.compact_conv", lambda *args, **kwargs: None)
    checklist = Checklist("case", "recoverssm", INTERPRETED)
    RECOVERSSM.prepare(tiny("kimi_k3_tp8_b32_t3_a2.73_fp32", num_requests=2), CPU, 0, 0).check(checklist)

    assert [(check.op, check.metric) for check in checklist.checks if not check.passed] == [("conv", "differing")]


def state_bits(prepared):
    """Every byte that ops may write and read again."""
    kept = prepared._pools if hasattr(prepared, "_pools") else [t for one in prepared._sets for t in one.tensors]
    kept = [*kept, *(window for windows in getattr(prepared, "_conv_sets", []) for window in windows)]
    records = [
        r for one in getattr(prepared, "_sets", []) for pair in one.records for r in (pair.correction, pair.key_gate)
    ]
    skipped = {tensor.data_ptr() for tensor in records}
    return [tensor.clone() for tensor in kept if tensor.data_ptr() not in skipped]


def differing(prepared, before):
    return sum(not torch.equal(now, then) for now, then in zip(state_bits(prepared), before, strict=True))


MUTATING = {("recoverssm", "commit_state"), ("recoverssm", "conv"), ("recoverssm", "commit"), ("recoverssm", "step")}
MUTATING |= {("full_state", "verify"), ("full_state", "step")}


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_whatever_calls_write_is_restored_bit_for_bit(provider):
    case = tiny("kimi_k3_tp8_b32_t3_a2.73_fp32", num_requests=2)
    prepared = provider.prepare(case, CPU, 3, base.layer_sizes(case).state_bytes)
    prepared.check(Checklist("case", provider.name, INTERPRETED))
    device_series = [series for series in prepared.series() if series.contract == "graph-cold"]
    before = state_bits(prepared)

    changed = set()
    for series in device_series:
        for call in series.calls:
            call()
        if differing(prepared, before):
            changed.add((provider.name, series.op))
            series.restore()
            assert differing(prepared, before) == 0
    assert changed == {key for key in MUTATING if key[0] == provider.name}


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_calls_for_host_time_change_no_state(provider):
    prepared = provider.prepare(tiny("kimi_k3_tp8_b32_t3_a2.73_fp32", num_requests=2), CPU, 3, 0)
    before = state_bits(prepared)
    host_series = [series for series in prepared.series() if series.contract == "host-dispatch"]
    for series in host_series:
        series.calls[0]()

    assert host_series
    assert differing(prepared, before) == 0


@pytest.mark.parametrize(
    ("provider", "op"),
    [(RECOVERSSM, "verify"), (RECOVERSSM, "commit_state"), (FULL_STATE, "verify")],
    ids=lambda value: getattr(value, "name", value),
)
def test_controls_get_the_grid_of_the_launch(provider, op):
    case = replace(tiny("kimi_k3_tp8_b32_t3_a2.73_fp32", num_requests=2), num_layers=2)
    series = {one.op: one for one in provider.prepare(case, CPU, 0, 0).series() if one.contract == "graph-cold"}[op]

    assert [math.prod(launch.grid) for launch, _ in launches_of(series.calls[0])] == [series.num_programs]


def test_programs_are_counted_whatever_a_kernel_is_called():
    class Kernel:
        def __getitem__(self, grid):
            return lambda *_, **__: None

    launches = [KernelLaunch(Kernel(), grid, CPU, constants={}) for grid in [(3,), (4, 5)]]

    def call():
        for launch in launches:
            launch((), ())

    assert [num_programs(call), num_programs(call, 1)] == [3, 20]


def test_a_launch_on_a_device_that_is_not_the_current_one_counts_once(monkeypatch):
    current = [0]

    @contextmanager
    def on_device(index):
        current[0], before = index, current[0]
        yield
        current[0] = before

    monkeypatch.setattr("torch.cuda.device", on_device)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    driver = SimpleNamespace(active=SimpleNamespace(get_current_device=lambda: current[0]))
    monkeypatch.setattr(triton_compat, "driver", driver)
    made = []
    monkeypatch.setattr(KernelLaunch, "through_triton", lambda self, tensors: made.append(tensors))
    launch = KernelLaunch(None, (3, 2), torch.device("cuda", 1), constants={})
    tensors = (torch.zeros(1),)

    def call():
        launch(tensors, (0,))
        launch((torch.zeros(1),), (0,))

    assert [given is tensors for _, given in launches_of(call)] == [True, False]
    assert len(made) == 2
    assert num_programs(call, 1) == 6


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_every_checked_call_has_its_bare_launches_beside_it(provider, monkeypatch):
    case = tiny("kimi_k3_tp8_b32_t3_a2.73_fp32", num_requests=2)
    series = {one.op: one for one in provider.prepare(case, CPU, 0, 0).series() if one.contract == "host-dispatch"}
    ops = [op for op in series if not op.endswith("_launch")]
    launched = []

    def run(self, *arguments, grid, **constants):
        values = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in arguments]
        launched.append((self, grid, values, constants))

    monkeypatch.setattr(InterpretedFunction, "run", run)

    assert sorted(series) == sorted([*ops, *(f"{op}_launch" for op in ops)])
    for op in ops:
        series[op].calls[0]()
        checked = list(launched)
        launched.clear()
        with monkeypatch.context() as patch:
            patch.setattr(KernelLaunch, "__call__", None)  # nothing is looked up or checked
            series[f"{op}_launch"].calls[0]()
        assert checked
        assert launched == checked
        launched.clear()
