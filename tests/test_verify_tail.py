"""Windows of 9 and 10 tokens on sm_90, whose last ones meet the state on fp32 units: emulated on the CPU."""

import pytest
import torch

from recoverssm import Records, verify
from tests.forms import use_form
from tests.test_verify import check_recorded, expect_verify, run_verify
from tests.test_verify_wgmma import CONSTANTS, U_TOL, check_verify, random_rows, wide
from tests.windows import Window, assert_matches, int32, tol


@pytest.mark.parametrize("dtype", U_TOL, ids=str)
@pytest.mark.parametrize("length", [9, 10])
def test_emulated_tails_match_reference(length, dtype, monkeypatch):
    """Rows with all of a tail, some of it, none, no slot, and no token."""
    use_form(monkeypatch, "verify", "wgmma", "cpu", **CONSTANTS)
    lens = (length, 9, 8, 3, 0, length)

    check_verify(wide(lens, (2, 1, 3, 4, 5, 0), length, num_heads=2, state_dtype=dtype), "cpu", scale=5.0)


@pytest.mark.parametrize("enable_pdl", [False, True])
@pytest.mark.parametrize(
    "changed", [{"BV": 64, "KC": 4}, {"STAGED": True}, {"KC": 1}, {"AHEAD": 2, "GATE_FIRST": True}]
)
@pytest.mark.parametrize("length", [9, 10])
def test_emulated_tails_of_every_tiling_match_reference(length, changed, enable_pdl, monkeypatch):
    use_form(monkeypatch, "verify", "wgmma", "cpu", **CONSTANTS | changed)

    check_verify(wide((length, 2), (2, 1), length), "cpu", enable_pdl=enable_pdl)


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("by_slot", [False, True])
def test_emulated_tails_may_stand_in_the_records(by_slot, staged, monkeypatch):
    use_form(monkeypatch, "verify", "wgmma", "cpu", **CONSTANTS | {"STAGED": staged})

    check_recorded(wide((2, 10, 9, 0), (2, 1, 4, 3), 10, by_slot=by_slot), "cpu")


@pytest.mark.parametrize("dtype", U_TOL, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_emulated_tails_behind_strong_decays_stay_exact(seed, dtype, monkeypatch):
    """Channels that hardly decay beside channels that vanish at once."""
    use_form(monkeypatch, "verify", "wgmma", "cpu", **CONSTANTS)
    window = Window(wide((10,), (1,), 10, state_dtype=dtype), "cpu", seed)
    window.gate.dt_bias[..., seed::4] = 30.0
    window.gate.dt_bias[..., seed + 1 :: 4] = -30.0
    expected, expected_out = expect_verify(window)

    out = run_verify(window)

    assert_matches("out", out, expected_out, tol(torch.bfloat16, "cpu"))
    assert_matches("correction", window.records[0].correction, expected.correction, U_TOL[dtype])


@pytest.mark.parametrize("dtype", U_TOL, ids=str)
@pytest.mark.parametrize("length", [9, 10])
def test_emulated_bits_of_a_row_depend_on_nothing_but_the_row(length, dtype, monkeypatch):
    """Alone or among others, with the tail or without it behind the tokens that are kept."""
    use_form(monkeypatch, "verify", "wgmma", "cpu", **CONSTANTS)
    activations, states, records, gate, starts, slots = random_rows([3, length, 9], length, 1, dtype, 0, "cpu")
    together = verify(*activations, states, records, gate, starts, slots)
    for kept in (5, 8, 9, length):
        own = [x[3 : 3 + kept].clone() for x in activations]
        alone = Records(*(torch.full_like(x[:1], float("nan")) for x in (records.correction, records.key_gate)))

        out = verify(*own, states, alone, gate, int32([0, kept], "cpu"), slots[1:2].clone())

        assert torch.equal(out, together[3 : 3 + kept])
        assert torch.equal(alone.correction[0, :, :kept], records.correction[1, :, :kept])
