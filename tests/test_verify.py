"""verify against the float64 reference."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from recoverssm import ConfigError, reference, verify
from tests.windows import (
    FP32_TOL,
    FULL,
    NULL_SLOTS,
    RAGGED,
    WINDOW_CASES,
    Window,
    assert_gaps_untouched,
    assert_matches,
    float64_records,
    float64_twin,
    storage_bits,
    tol,
)

PARTS = ("correction", "key_gate")


def run_verify(window, records=None, out=None, enable_pdl=False, key_gate_recorded=False, debug=False):
    q, k, v, raw_gate, raw_beta = window.activations
    return verify(
        q,
        None if key_gate_recorded else k,
        v,
        None if key_gate_recorded else raw_gate,
        raw_beta,
        window.checkpoint_states[0],
        window.records[0] if records is None else records,
        window.layer_gate(),
        window.query_start_loc,
        window.state_indices,
        out=window.out if out is None else out,
        enable_pdl=enable_pdl,
        key_gate_recorded=key_gate_recorded,
        debug=debug,
    )


def verified(case, device):
    """The window of this case after its verify."""
    window = Window(case, device)
    run_verify(window)
    return window


def check_recorded(case, device, enable_pdl=False, verified=verified):
    """Keys and gates that stand in the records already give the bits of those handed over, and are left alone."""
    given, recorded = verified(case, device), Window(case, device)
    recorded.records[0].key_gate.copy_(given.records[0].key_gate)
    states, key_gates = storage_bits(recorded.checkpoint_states[0]), storage_bits(recorded.records[0].key_gate)

    run_verify(recorded, enable_pdl=enable_pdl, key_gate_recorded=True)

    assert torch.equal(storage_bits(recorded.out), storage_bits(given.out))
    assert torch.equal(storage_bits(recorded.records[0].correction), storage_bits(given.records[0].correction))
    assert torch.equal(storage_bits(recorded.records[0].key_gate), key_gates)
    assert torch.equal(storage_bits(recorded.checkpoint_states[0]), states)


def expect_verify(window):
    """What verify should write, in float64; NaN where it should write nothing."""
    records, out = float64_records(window.records[0]), float64_twin(window.out)
    reference.verify(
        *window.activations,
        window.checkpoint_states[0],
        records,
        window.layer_gate(),
        window.query_start_loc,
        window.state_indices,
        out=out,
    )
    return records, out


verified_once = cache(verified)  # for tests of this module, which take the form that is chosen by itself and look only


@pytest.mark.parametrize("case", WINDOW_CASES, ids=str)
def test_verify_matches_reference(case, device):
    expected, expected_out = expect_verify(Window(case, device))

    window = verified_once(case, device)

    assert_matches("out", window.out, expected_out, tol(case.activation_dtype, device))
    assert_matches("correction", window.records[0].correction, expected.correction, FP32_TOL)
    assert_matches("key_gate", window.records[0].key_gate, expected.key_gate, 0.0)


@pytest.mark.parametrize("case", WINDOW_CASES, ids=str)
def test_keys_and_gates_may_stand_in_the_records(case, device):
    check_recorded(case, device, verified=verified_once)


@pytest.mark.parametrize("case", [RAGGED, NULL_SLOTS, replace(RAGGED, by_slot=True)], ids=str)
def test_reference_takes_recorded_keys_and_gates(case):
    window = Window(case, "cpu")
    expected, expected_out = expect_verify(window)
    records, out = float64_records(window.records[0]), float64_twin(window.out)
    records.key_gate.copy_(expected.key_gate)
    q, _, v, _, raw_beta = window.activations

    reference.verify(
        *(q, None, v, None, raw_beta, window.checkpoint_states[0], records, window.layer_gate()),
        *(window.query_start_loc, window.state_indices),
        out=out,
        key_gate_recorded=True,
    )

    for actual, wanted in ((out, expected_out), *((getattr(records, x), getattr(expected, x)) for x in PARTS)):
        assert torch.equal(actual.nan_to_num(nan=9.0), wanted.nan_to_num(nan=9.0))


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "given"])
def test_keys_come_from_one_place(recorded):
    """Both of k and raw_gate, or neither."""
    window = Window(FULL, "cpu")
    q, k, v, raw_gate, raw_beta = window.activations
    layer = (raw_beta, window.checkpoint_states[0], window.records[0], window.layer_gate())
    rows = (window.query_start_loc, window.state_indices)
    for key, gate in ((k, raw_gate) if recorded else (None, None), (k, None), (None, raw_gate)):
        with pytest.raises(ConfigError, match=r"k, raw_gate: expected .* with key_gate_recorded"):
            verify(q, key, v, gate, *layer, *rows, key_gate_recorded=recorded)


@pytest.mark.parametrize("case", [FULL, RAGGED, NULL_SLOTS], ids=str)
def test_verify_leaves_checkpoints_and_padding_bit_for_bit(case, device):
    window = Window(case, device)
    written = {"out": window.out, "correction": window.records[0].correction, "key_gate": window.records[0].key_gate}
    states = storage_bits(window.checkpoint_states[0])
    before = {name: storage_bits(tensor) for name, tensor in written.items()}

    run_verify(window)

    assert torch.equal(storage_bits(window.checkpoint_states[0]), states)
    for name, tensor in written.items():
        assert_gaps_untouched(name, tensor, before[name])


def test_out_may_be_v(device):
    window = Window(RAGGED, device)
    _, expected = expect_verify(window)

    run_verify(window, out=window.v)

    assert_matches("out", window.v, expected, tol(RAGGED.activation_dtype, device))


def test_verify_allocates_out_when_none_is_given(device):
    window = Window(FULL, device)
    expected = run_verify(window).clone()

    out = verify(
        *window.activations,
        window.checkpoint_states[0],
        window.records[0],
        window.layer_gate(),
        window.query_start_loc,
        window.state_indices,
    )

    assert out.shape == window.v.shape
    assert torch.equal(out, expected)


def test_verify_of_an_empty_batch_writes_nothing(device):
    window = Window(FULL, device)
    records = storage_bits(window.records[0].correction)

    out = verify(
        *(x[:0] for x in window.activations),
        window.checkpoint_states[0],
        window.records[0],
        window.layer_gate(),
        window.query_start_loc[:1],
        window.state_indices[:0],
    )

    assert out.shape[0] == 0
    assert torch.equal(storage_bits(window.records[0].correction), records)


def test_verify_uses_at_most_the_window_of_a_longer_row(device):
    """A row longer than the window is the caller's fault; the kernel must not write past its records."""
    window = Window(FULL, device)
    window.query_start_loc.copy_(torch.tensor([0, 12, 12, 12]))
    expected, expected_out = expect_verify(window)

    out = run_verify(window)

    assert_matches("out", out, expected_out, tol(torch.bfloat16, device))
    assert_matches("correction", window.records[0].correction, expected.correction, FP32_TOL)


@pytest.mark.parametrize("scale", [0.1, 5.0])
def test_correction_error_does_not_depend_on_the_size_of_the_state(scale, device):
    window = Window(FULL, device)
    window.checkpoint_states[0].mul_(scale)
    expected, _ = expect_verify(window)

    run_verify(window)

    assert_matches("correction", window.records[0].correction, expected.correction, FP32_TOL)


def test_channels_that_hardly_decay_and_channels_that_vanish_stay_exact(device):
    window = Window(RAGGED, device)
    window.gate.dt_bias[..., ::2] = -30.0  # decay is 1 to the last bit
    window.gate.dt_bias[..., 1::2] = 30.0  # decay is e^-5 a token
    expected, expected_out = expect_verify(window)

    out = run_verify(window)

    assert_matches("out", out, expected_out, tol(torch.bfloat16, device))
    assert_matches("correction", window.records[0].correction, expected.correction, FP32_TOL)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # numpy says so of exp(x) = inf
@pytest.mark.parametrize("lower_bound", [-5.0, None], ids=["bounded", "unbounded"])
def test_gates_of_any_size_match_reference(lower_bound, device):
    """Both branches of softplus and their seam at 20, sigmoids that saturate, exponentials that overflow."""
    window = Window(replace(FULL, lower_bound=lower_bound), device)
    raw_gates = torch.tensor([-1e4, -90.0, -9.0, 0.0, 6.0, 19.5, 20.5, 40.0, 90.0, 1e4])
    window.raw_gate.copy_(raw_gates.repeat(window.raw_gate.numel())[: window.raw_gate.numel()].view_as(window.raw_gate))
    window.gate.dt_bias.zero_()
    window.gate.A_log.fill_(-4.0)  # so that a gate of 40 still leaves half of a channel
    expected, expected_out = expect_verify(window)

    out = run_verify(window)

    assert_matches("out", out, expected_out, tol(torch.bfloat16, device))
    assert_matches("correction", window.records[0].correction, expected.correction, FP32_TOL)


def set_small_gates(window):
    """Unbounded gates as trained models have them: A of 15 times a softplus of about 0.02."""
    window.gate.A_log.fill_(2.7)
    window.gate.dt_bias.sub_(4.0)
    window.raw_gate.mul_(0.3)
    window.checkpoint_states[0].mul_(5.0)


def test_softplus_is_exact_where_it_is_small_and_much_enlarged(device):
    window = Window(replace(FULL, lower_bound=None), device)
    set_small_gates(window)
    expected, _ = expect_verify(window)

    run_verify(window)

    assert_matches("correction", window.records[0].correction, expected.correction, 5e-7)


def test_keys_and_queries_of_zero_or_near_it_are_normalised_with_the_eps(device):
    window = Window(FULL, device)
    for vectors in (window.k, window.q):
        vectors.mul_(1e-4)  # sum of squares below the eps of 1e-6
        vectors[1] = 0.0
    expected, expected_out = expect_verify(window)

    out = run_verify(window)

    assert not out[1].any()
    assert_matches("out", out, expected_out, tol(torch.bfloat16, device))
    assert_matches("correction", window.records[0].correction, expected.correction, FP32_TOL)
