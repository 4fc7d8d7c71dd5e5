"""The form "async" of commit_state against float64: its kernel in the emulator on the CPU, compiled on a card."""

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from recoverssm import CommitPlan, GateParams, LayerTable, reference
from recoverssm.dispatch import Prepared
from recoverssm.kernels.commit_state_async import _commit_state_async_kernel
from recoverssm.launch import STATE_DTYPES, Problem, device_arch, load_table, select
from recoverssm.ops.commit_state import FORMS
from tests.forms import ASSEMBLY
from tests.gluon_interpreter import Emulated
from tests.test_commit_state import expect_commit, fill_records, run_commit
from tests.windows import Window, WindowCase, assert_gaps_untouched, assert_matches, int32, storage_bits

ROOT = Path(__file__).parents[1]
FP32_TOL = 5e-7  # strict: measures 0.5e-7 to 1.4e-7
BF16 = torch.bfloat16
OFF_BY_AN_ULP = 1e-3  # of the elements of a 16-bit state; measures 1e-4
BEYOND_ROUNDING = 2**-8  # of an ulp at the scale of the terms: where they cancel, no fp32 sum keeps the last ulp
GATES = {"mixed": (-8.0, 1.0), "slow": (-14.0, -8.0), "strong": (2.0, 12.0)}

SIZES = {"key_dim": 128, "value_dim": 128, "num_heads": 2}
RAGGED = WindowCase((8, 0, 3, 1, 2, 7), (2, 4, 6, 1, 5, 3), spec_query_len=8, **SIZES)


def module():
    return importlib.import_module("recoverssm.ops.commit_state")  # the package's attribute is the function


def problem(**changed):
    sizes = {"num_heads": 384, "spec_query_len": 8, "key_dim": 128, "value_dim": 128, "lower_bound": -5.0}
    return Problem("commit_state", **{"arch": 90, "state_dtype": torch.float32, "aligned": True} | sizes | changed)


def use_async(monkeypatch, device, states, records):
    """From here on the op takes the form "async" on these pools, wherever it runs."""
    if device == "cpu":
        tables = [t for r in records for t in (r.correction, r.key_gate)]
        emulated = Emulated(_commit_state_async_kernel, asm=ASSEMBLY, memory=[*states, *tables])
        monkeypatch.setitem(FORMS, "async", FORMS["async"]._replace(kernel=emulated))
        monkeypatch.setattr("recoverssm.launch.device_arch", lambda device: 90)
        monkeypatch.setattr(module(), "_commit_state", Prepared(module()._commit_state.prepare))
    else:
        asked = problem(arch=device_arch(torch.device(device, 0)), state_dtype=states[0].dtype)
        assert select(asked, FORMS).form == "async"


def commit(window, plan, monkeypatch, boundaries=None, record_rows=None):
    with monkeypatch.context() as patch:
        use_async(patch, window.device, window.checkpoint_states, window.records)
        run_commit(window, plan, boundaries, record_rows)


def make_window(case, device, gate="mixed", seed=0, std=1.0):
    """States of ``std``; channels whose decay per token is next to one, or next to none, or anything."""
    window = Window(case, device, seed)
    low, high = GATES[gate]
    generator = torch.Generator().manual_seed(seed)
    dt_bias = torch.rand(window.gate.dt_bias.shape, generator=generator) * (high - low) + low
    window.gate = GateParams(window.gate.A_log, dt_bias.to(device), window.gate.lower_bound)
    for pool in window.checkpoint_states:
        pool *= std
    fill_records(window)
    return window


def magnitudes(window, plan, boundaries=None):
    """|D S| + sum |u k|, float64: what the sum's terms would add up to if none cancelled another."""
    key_dim = window.case.key_dim
    states = [state.double().abs() for state in window.checkpoint_states]
    records = [
        replace(
            record,
            correction=record.correction.abs(),
            key_gate=torch.cat((record.key_gate[..., :key_dim].abs(), record.key_gate[..., key_dim:]), -1),
        )
        for record in window.records
    ]
    reference.commit_state(states, records, plan, window.gate, boundaries=boundaries)
    return states


def ulp(x):
    """Of bf16, at the magnitude of x: float64."""
    return torch.exp2(torch.floor(torch.log2(x.abs().clamp(min=2.0**-126))) - 7)


def assert_rounded(actual, expected, scale):
    """What bf16 makes of the float64 step, but for a few elements that lay next to the middle of two numbers."""
    owned = ~expected.isnan()
    assert not actual[owned].isnan().any()
    assert actual[~owned].isnan().all()
    actual, expected, scale = actual[owned], expected[owned], scale[owned]
    if not owned.any():
        return
    assert (actual != expected.float().to(BF16)).double().mean() <= OFF_BY_AN_ULP
    beyond = (actual.double() - expected).abs() - ulp(torch.maximum(actual.double().abs(), expected.abs())) / 2
    assert (beyond / ulp(scale)).max() <= BEYOND_ROUNDING


def check(window, plan, monkeypatch):
    before = [storage_bits(state) for state in window.checkpoint_states]
    expected, scale = expect_commit(window, plan), magnitudes(window, plan)

    commit(window, plan, monkeypatch)

    for layer, state in enumerate(window.checkpoint_states):
        if state.dtype == BF16:
            assert_rounded(state, expected[layer], scale[layer])
        else:
            assert_matches("state", state, expected[layer], FP32_TOL)
        assert_gaps_untouched("state", state, before[layer])


DTYPES = list(STATE_DTYPES.values())
BOUNDS = (None, -5.0, None)
WINDOWS = [(T, dtype, BOUNDS[i + T % 2]) for T in (*range(1, 17), 18, 32) for i, dtype in enumerate(DTYPES)]
ON_CARD = [pytest.param("cuda", *window, marks=pytest.mark.gpu) for window in WINDOWS if window[0] in {1, 5, 16, 32}]


@pytest.mark.parametrize(
    ("device", "spec_query_len", "state_dtype", "lower_bound"),
    [("cpu", *window) for window in WINDOWS] + ON_CARD,
)
def test_every_number_of_positions_matches_reference(device, spec_query_len, state_dtype, lower_bound, monkeypatch):
    lens = (spec_query_len, (spec_query_len + 1) // 2, 1)
    case = WindowCase(lens, (3, 1, 2), spec_query_len, **SIZES, state_dtype=state_dtype, lower_bound=lower_bound)
    window = make_window(case, device)

    check(window, window.plan([lens[0], (lens[1] + 1) // 2, 1]), monkeypatch)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("state_dtype", DTYPES)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("std", [0.1, 5.0])
def test_slow_and_strong_channels_match_reference(device, state_dtype, gate, std, monkeypatch):
    window = make_window(replace(RAGGED, state_dtype=state_dtype), device, gate, std=std)

    check(window, window.plan([8, 0, 2, 1, 2, 5]), monkeypatch)


@pytest.mark.parametrize("lower_bound", [-5.0, None])
@pytest.mark.parametrize("activation_dtype", [torch.float32, torch.float16])
def test_records_of_other_activations_match_reference(lower_bound, activation_dtype, monkeypatch):
    window = make_window(replace(RAGGED, activation_dtype=activation_dtype, lower_bound=lower_bound), "cpu", "strong")

    check(window, window.plan([8, 0, 3, 1, 1, 7]), monkeypatch)


def test_layers_null_rows_and_other_final_slots(device, monkeypatch):
    case = WindowCase((4, 2, 4, 4), (3, 0, 1, -1), spec_query_len=4, num_layers=2, **SIZES)
    window = make_window(case, device)
    plan = CommitPlan(
        int32([3, 2, 9, 1], device), int32([3, 0, 1, -1], device), int32([2, 2, 1, -1], device)
    )  # 9 is past the window, which a hand-made plan may say
    sources = window.checkpoint_states[0][3].clone()

    check(window, plan, monkeypatch)

    assert torch.equal(window.checkpoint_states[0][3], sources)


def test_rejected_window_leaves_every_state_untouched(device, monkeypatch):
    window = make_window(RAGGED, device)
    before = storage_bits(window.checkpoint_states[0])

    commit(window, window.plan([0] * 6), monkeypatch)

    assert torch.equal(storage_bits(window.checkpoint_states[0]), before)


@pytest.mark.parametrize("state_dtype", DTYPES)
def test_a_rows_bits_depend_on_nothing_but_its_accepted_tokens(state_dtype, device, monkeypatch):
    case = replace(RAGGED, state_dtype=state_dtype)
    accepted = [8, 0, 2, 1, 2, 5]
    states = []
    for rejected in (None, float("nan"), 3.0):
        window = make_window(case, device)
        if rejected is not None:
            for row, n in enumerate(accepted):
                window.records[0].correction[row, :, n:] = rejected
                window.records[0].key_gate[row, :, n:] = rejected
        commit(window, window.plan(accepted), monkeypatch)
        states.append(storage_bits(window.checkpoint_states[0]))
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])

    alone = make_window(case, device)
    for row in range(len(accepted)):
        commit(alone, alone.plan([n if row == i else 0 for i, n in enumerate(accepted)]), monkeypatch)
    assert torch.equal(states[0], storage_bits(alone.checkpoint_states[0]))


@pytest.mark.parametrize("state_dtype", DTYPES)
def test_bits_do_not_depend_on_the_launch_row(state_dtype, device, monkeypatch):
    row = select(problem(state_dtype=state_dtype), FORMS)
    other = {"BV": 64, "CHUNK": 32, "num_warps": 2}
    rows = [replace(row, arch=0, min_heads=0, constants=dict(row.constants) | {"KEEP": True} | x) for x in ({}, other)]
    states = []
    for table in (load_table(), *((row,) for row in rows)):
        window = make_window(replace(RAGGED, state_dtype=state_dtype), device)
        with monkeypatch.context() as patch:
            patch.setattr("recoverssm.launch.load_table", partial(tuple, table))
            patch.setattr(module(), "_commit_state", Prepared(module()._commit_state.prepare))
            commit(window, window.plan([8, 0, 2, 1, 2, 5]), patch)
        states.append(storage_bits(window.checkpoint_states[0]))

    assert all(torch.equal(states[0], other) for other in states[1:])


def test_lines_are_let_go_of_where_a_pool_begins_inside_one(device, monkeypatch):
    window = make_window(RAGGED, device)
    shape, dtype = window.checkpoint_states[0].shape, window.checkpoint_states[0].dtype
    storage = torch.full((shape.numel() + 4,), float("nan"), device=device, dtype=dtype)
    window.checkpoint_states[0] = storage[4:].view(shape).copy_(window.checkpoint_states[0])
    assert window.checkpoint_states[0].data_ptr() % 128
    plan = window.plan([8, 0, 2, 1, 2, 5])
    expected = expect_commit(window, plan)
    row = select(problem(), FORMS)
    kept = replace(row, arch=0, min_heads=0, constants=dict(row.constants) | {"KEEP": True})
    monkeypatch.setattr("recoverssm.launch.load_table", partial(tuple, (kept,)))
    monkeypatch.setattr(module(), "_commit_state", Prepared(module()._commit_state.prepare))

    commit(window, plan, monkeypatch)

    assert_matches("state", window.checkpoint_states[0], expected[0], FP32_TOL)


@pytest.mark.parametrize(
    "changed",
    [{"aligned": False}, {"arch": 75}, {"arch": 0}, {"key_dim": 64}, {"value_dim": 64}],
    ids=str,
)
def test_launches_it_is_not_for_are_left_to_the_recurrence(changed):
    assert select(problem(), FORMS).form == "async"
    assert select(problem(**changed), FORMS).form == "recurrence"


def test_other_triton_versions_take_the_recurrence(monkeypatch):
    monkeypatch.setattr("recoverssm.triton_compat.IS_TESTED", False)

    assert select(problem(), FORMS).form == "recurrence"


def test_misaligned_pools_of_its_size_match_reference(device):
    window = make_window(RAGGED, device)
    shape = window.checkpoint_states[0].shape
    storage = torch.full((shape.numel() + 1,), float("nan"), device=device)
    window.checkpoint_states[0] = storage[1:].view(shape).copy_(window.checkpoint_states[0])
    assert not LayerTable.of("checkpoint_states", window.checkpoint_states).aligned
    plan = window.plan([8, 0, 2, 1, 2, 5])
    expected = expect_commit(window, plan)

    run_commit(window, plan)

    assert_matches("state", window.checkpoint_states[0], expected[0], FP32_TOL)


def test_it_compiles_for_every_card_with_loads_and_stores_of_16_bytes():
    """Without a GPU; pointers out of a table lose their alignment easily, and half the bandwidth with it."""
    launches = [
        (row.arch or 103, str(row.state_dtype).removeprefix("torch."), num_boundaries, dict(row.constants))
        for op, num_boundaries in (("commit_state", 0), ("commit_boundaries", 1), ("commit_deferred", 0))
        for row in load_table()
        if (row.op, row.form) == (op, "async")
    ]
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-m", "tests.compiled_commit", json.dumps(launches)]
    done = subprocess.run(program, cwd=ROOT, env=env, check=True, text=True, capture_output=True)

    for (_, dtype, num_boundaries, tile), found in zip(launches, json.loads(done.stdout), strict=True):
        num_bytes = tile["BV"] * 128 * getattr(torch, dtype).itemsize
        num_loads = num_bytes // 16 // (32 * tile["num_warps"])
        loads, stores = found
        assert loads == num_loads
        # A row that crosses nothing has code of its own, whose last stores a compiler may share.
        assert num_loads * (1 + num_boundaries) <= stores <= num_loads * (1 + 2 * num_boundaries)
