"""full_state_verify's form that stages vectors against float64: emulated on the CPU, compiled where there is a card."""

import pytest
import torch

from recoverssm import full_state_verify
from recoverssm.launch import load_table, select
from recoverssm.ops.full_state import FORMS
from tests.forms import skip_unless_runs, use_form
from tests.test_full_state import FullStateWindow, expect_full_state
from tests.test_launch import problem
from tests.windows import WindowCase, assert_gaps_untouched, assert_matches, int32, storage_bits, tol

STATE_TOL = {torch.float32: 5e-7, torch.bfloat16: 2e-3}  # one rounding to bf16 measures 1.7e-3
BY_LOOP = {"BV": 16, "LANES": 16, "ROWS": 4, "UNROLLED": False, "MASKED": False, "EVICT": False}
TILINGS = [
    BY_LOOP,
    BY_LOOP | {"BV": 32, "EVICT": True},
    BY_LOOP | {"LANES": 8, "ROWS": 1, "UNROLLED": True},
    BY_LOOP | {"LANES": 8, "ROWS": 1, "UNROLLED": True, "MASKED": True},
]
ROWS = [row for row in load_table() if row.form == "staged"]


def wide(query_lens, slots, spec_query_len, **changed):
    return WindowCase(query_lens, slots, spec_query_len, **{"num_heads": 1, "key_dim": 128, "value_dim": 128} | changed)


def run_full_state(window):
    return full_state_verify(*window.activations, window.pool, *window.arguments(), out=window.out)


def check_full_state(window):
    """One call: outputs and states against the reference, and nothing else written."""
    before = {"pool": storage_bits(window.pool), "out": storage_bits(window.out)}
    expected_pool, expected_out = expect_full_state(window)

    out = run_full_state(window)

    assert_matches("out", out, expected_out, tol(window.case.activation_dtype, window.device))
    assert_matches("state_pool", window.pool, expected_pool, STATE_TOL[window.case.state_dtype])
    assert_gaps_untouched("pool", window.pool, before["pool"])
    assert_gaps_untouched("out", window.out, before["out"])


EMULATED = [
    *(
        wide((length, max(length - 2, 0), 1), (2, 1, 0), length, state_dtype=dtype, lower_bound=bound)
        for length, dtype, bound in [
            (1, torch.float32, -5.0),
            (2, torch.bfloat16, None),
            (3, torch.float32, None),
            (8, torch.float32, -5.0),
            (8, torch.bfloat16, None),
            (9, torch.bfloat16, -5.0),
            (16, torch.float32, None),
        ]
    ),
    wide((3, 8), (2, -1), 8, num_heads=2, activation_dtype=torch.float32),
    wide((8, 0), (1, 2), 8, activation_dtype=torch.float16, lower_bound=-50.0),
]


@pytest.mark.parametrize("case", EMULATED, ids=str)
@pytest.mark.parametrize("constants", TILINGS, ids=str)
def test_emulated_form_matches_reference(constants, case, monkeypatch):
    use_form(monkeypatch, "full_state_verify", "staged", "cpu", **constants)

    check_full_state(FullStateWindow(case, "cpu"))


@pytest.mark.parametrize("constants", TILINGS, ids=str)
def test_emulated_states_without_a_slot_are_not_stored(constants, monkeypatch):
    use_form(monkeypatch, "full_state_verify", "staged", "cpu", **constants)
    window = FullStateWindow(wide((8, 5), (2, 1), 8), "cpu")
    window.indices[1, 2:4] = int32([0, -1], "cpu")
    window.num_accepted.copy_(int32([0, 9], "cpu"))  # taken as 1 and 8
    for row, column in enumerate((0, 7)):
        window.pool[window.indices[row, column]] = window.checkpoint_states[0][window.case.slots[row]]

    check_full_state(window)


def test_emulated_tilings_with_the_same_lanes_give_the_same_bits(monkeypatch):
    for tilings in (TILINGS[:2], TILINGS[2:]):
        bits = []
        for constants in tilings:
            use_form(monkeypatch, "full_state_verify", "staged", "cpu", **constants)
            window = FullStateWindow(wide((8,), (1,), 8), "cpu")
            run_full_state(window)
            bits.append((storage_bits(window.pool), storage_bits(window.out)))
        assert all(torch.equal(one, first) for one, first in zip(bits[1], bits[0], strict=True))


@pytest.mark.parametrize("num_heads", [1, 12, 96, 384, 1536])
@pytest.mark.parametrize(
    ("changed", "form"),
    [
        ({}, "staged"),
        ({"state_dtype": torch.bfloat16, "lower_bound": None}, "staged"),
        ({"spec_query_len": 16}, "staged"),
        ({"arch": 103}, "recurrence"),
        ({"arch": 0}, "recurrence"),
        ({"aligned": False}, "recurrence"),
        ({"key_dim": 64}, "recurrence"),
        ({"spec_query_len": 17}, "recurrence"),
    ],
)
def test_the_form_depends_on_the_card_and_the_layer_not_on_the_batch(changed, form, num_heads):
    assert select(problem("full_state_verify", num_heads=num_heads, **changed), FORMS).form == form


def test_a_triton_that_nobody_tried_takes_the_portable_form(monkeypatch):
    monkeypatch.setattr("recoverssm.triton_compat.IS_TESTED", False)

    assert select(problem("full_state_verify"), FORMS).form == "recurrence"


ON_CARDS = [(row, 8) for row in ROWS] + list(zip(ROWS, (1, 2, 5, 9, 13, 16), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize(("row", "length"), ON_CARDS, ids=lambda x: getattr(x, "source", str(x)))
def test_rows_of_the_table_match_reference(row, length, monkeypatch):
    skip_unless_runs(90, exactly=True)
    use_form(monkeypatch, "full_state_verify", "staged", "cuda", **row.constants)
    lens, slots, bound = (length, max(length - 2, 0), length, 1), (2, 1, 0, 4), -5.0 if length % 8 == 0 else None

    check_full_state(
        FullStateWindow(wide(lens, slots, length, num_heads=12, state_dtype=row.state_dtype, lower_bound=bound), "cuda")
    )


@pytest.mark.gpu
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.source)
def test_bits_of_a_row_depend_on_nothing_but_the_row_and_the_tiling(row, monkeypatch):
    skip_unless_runs(90, exactly=True)
    use_form(monkeypatch, "full_state_verify", "staged", "cuda", **row.constants)
    case = wide((8,) * 40, tuple(range(1, 41)), 8, num_heads=12, state_dtype=row.state_dtype)
    together, alone = FullStateWindow(case, "cuda"), FullStateWindow(case, "cuda")
    alone.indices[:23] = 0
    alone.indices[24:] = 0
    alone.query_start_loc[24:] -= 3  # the row's last three tokens are gone, and rows after it are null

    run_full_state(together)
    run_full_state(alone)

    kept, tokens = together.indices[23, :5].long(), slice(23 * 8, 23 * 8 + 5)
    assert torch.equal(alone.pool[kept], together.pool[kept])
    assert torch.equal(alone.out[tokens], together.out[tokens])
