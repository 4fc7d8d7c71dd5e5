"""verify's form for tensor cores without wgmma: emulated on the CPU, compiled on any card from sm_80 on."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from recoverssm import verify
from recoverssm.launch import STATE_DTYPES, device_arch, select
from recoverssm.ops.verify import FORMS
from tests.compile_forms import compile_ahead
from tests.forms import skip_unless_runs, use_form
from tests.test_launch import problem
from tests.test_verify import expect_verify, run_verify
from tests.test_verify_wgmma import check_verify, ragged, random_rows, wide
from tests.windows import Window, assert_matches, int32, storage_bits, tol

ROOT = Path(__file__).parents[1]
DTYPES = (torch.float32, torch.bfloat16)
CONSTANTS = {"BV": 128, "CAUSAL_BLOCKS": False, "SLICE": 32, "AHEAD": 2, "EVICT": False}


def use_mma(monkeypatch, device, bound, **changed):
    blocks = bound is None or bound < -5.0
    constants = CONSTANTS | {"CAUSAL_BLOCKS": blocks} | changed
    use_form(monkeypatch, "verify", "mma_blocks" if blocks else "mma", device, **constants)


EMULATED = [
    *(
        wide((length, max(length - 2, 0), 1), (2, 1, 0), length, state_dtype=dtype, lower_bound=bound)
        for length in (1, 3, 8, 9, 16)
        for dtype in DTYPES
        for bound in (-5.0, None)
    ),
    wide((3, 8), (2, 1), 8, num_heads=2, activation_dtype=torch.float32),
    wide((8,), (1,), 8, activation_dtype=torch.float16),
    wide((5, 16), (2, 1), 16, lower_bound=-20.0),
]


@pytest.mark.parametrize("case", EMULATED, ids=str)
def test_emulated_form_matches_reference(case, monkeypatch):
    use_mma(monkeypatch, "cpu", case.lower_bound)

    check_verify(case, "cpu", scale=5.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_emulated_tilings_give_the_same_bits(dtype, monkeypatch):
    case, bits = wide((9,), (1,), 9, state_dtype=dtype), []
    tilings = [{"BV": 32, "AHEAD": 1}, {"BV": 64}, {"AHEAD": 4, "EVICT": True}, {}]
    for changed in tilings:
        use_mma(monkeypatch, "cpu", -5.0, **changed)
        window = Window(case, "cpu")
        run_verify(window)
        bits.append((storage_bits(window.records[0].correction), storage_bits(window.out)))

    assert all(torch.equal(one, first) for other in bits for one, first in zip(other, bits[0], strict=True))


def _without_tail(launch, products):
    """Less a ninth and tenth token's: 64 in eight sums for each of their probes and slices of 64 value rows."""
    _, form, _, spec_query_len, constants = launch
    num_probes = 2 * (spec_query_len - 8) if form == "wgmma" and spec_query_len in (9, 10) else 0
    fused, alone = products
    sums = 8 * num_probes * constants["BV"] // 64
    return fused - 7 * sums, alone - sums


@pytest.mark.parametrize(("arch", "spec_query_len"), [(103, 9), (90, 8), (90, 9), (90, 10), (90, 16)])
def test_compilers_fuse_the_same_products_in_every_tiling(arch, spec_query_len):
    """The emulator fuses none; where a tiling had other ones fused, a row's bits would depend on the batch."""
    launches = []
    for dtype in STATE_DTYPES.values():
        asked = [problem("verify", arch, dtype, heads, spec_query_len=spec_query_len) for heads in (1, 96, 384, 1536)]
        rows = [select(each, FORMS) for each in asked]
        for number, row in enumerate(row for i, row in enumerate(rows) if row not in rows[:i]):
            # Every other one begins early, where the form can: that must not change what is fused either.
            early = {"PDL": number % 2 == 1} if FORMS[row.form].has_pdl else {}
            name = str(dtype).removeprefix("torch.")
            launches.append((arch, row.form, name, spec_query_len, {**row.constants, **early}))
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-m", "tests.compiled_verify", json.dumps(launches)]
    done = subprocess.run(program, cwd=ROOT, env=env, check=True, text=True, capture_output=True)
    found = json.loads(done.stdout)

    for dtype in ("float32", "bfloat16"):
        of_dtype = [
            _without_tail(launch, products)
            for products, launch in zip(found, launches, strict=True)
            if launch[2] == dtype
        ]
        assert len(of_dtype) > 1
        assert all(products == of_dtype[0] for products in of_dtype)


@pytest.mark.parametrize("seed", range(3))
def test_emulated_decays_as_strong_as_the_bound_allows_and_stronger_stay_finite(seed, monkeypatch):
    """Channels that hardly decay beside channels that vanish at once."""
    for bound, size in ((-5.0, 30.0), (None, 1e4)):
        use_mma(monkeypatch, "cpu", bound)
        window = Window(wide((16,), (1,), 16, lower_bound=bound), "cpu", seed)
        window.gate.dt_bias[..., seed::4] = size
        window.gate.dt_bias[..., seed + 1 :: 4] = -30.0
        expected, expected_out = expect_verify(window)

        out = run_verify(window)

        assert_matches("out", out, expected_out, tol(torch.bfloat16, "cpu"))
        assert_matches("correction", window.records[0].correction, expected.correction, 5e-7)


COMBINATIONS = [
    (1, 6, torch.float32, -5.0),
    (3, 12, torch.bfloat16, None),
    (8, 1, torch.float32, -5.0),
    (8, 96, torch.bfloat16, -5.0),
    (9, 6, torch.float32, None),
    (16, 12, torch.bfloat16, -5.0),
]


def gpu_calls(device: str) -> Iterator[Callable[[], object]]:
    """What the tests below launch."""

    def verify_window(combination):
        with pytest.MonkeyPatch.context() as monkeypatch:
            use_mma(monkeypatch, "cuda", combination[-1])
            run_verify(Window(ragged(*combination), device))

    yield from (partial(verify_window, combination) for combination in reversed(COMBINATIONS))


@pytest.fixture(scope="module")
def compiled():
    skip_unless_runs(80)
    compile_ahead("tests.test_verify_mma", device_arch(torch.device("cuda", 0)))


@pytest.mark.gpu
@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_windows_match_reference(combination, monkeypatch, compiled):
    use_mma(monkeypatch, "cuda", combination[-1])

    for scale in (0.1, 1.0, 5.0):
        check_verify(ragged(*combination), "cuda", scale)


@pytest.mark.gpu
def test_bits_of_a_row_depend_neither_on_its_neighbours_nor_on_the_tiling(monkeypatch, compiled):
    activations, states, records, gate, starts, slots = random_rows([8, 3, 8, 1], 8, 12, torch.float32, 0)
    bits = []
    for changed in ({}, {"BV": 32, "AHEAD": 1}):
        use_mma(monkeypatch, "cuda", -5.0, **changed)
        together = verify(*activations, states, records, gate, starts, slots)
        bits.append((together[11:19], records.correction[2].clone()))
        own = [x[11:19].clone() for x in activations]
        bits.append(
            (
                verify(*own, states, records, gate, int32([0, 8], "cuda"), slots[2:3].clone()),
                records.correction[0].clone(),
            )
        )

    assert all(torch.equal(one, first) for other in bits for one, first in zip(other, bits[0], strict=True))
