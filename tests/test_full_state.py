"""full_state_verify against the float64 reference."""

import pytest
import torch

from recoverssm import full_state_verify, reference
from tests.windows import (
    FP32_TOL,
    FULL,
    NULL_SLOTS,
    RAGGED,
    WINDOW_CASES,
    Window,
    assert_gaps_untouched,
    assert_matches,
    float64_twin,
    int32,
    padded,
    storage_bits,
    tol,
)


class FullStateWindow(Window):
    """A window whose rows own T slots each; row n starts from column ``num_accepted[n] - 1``."""

    def __init__(self, case, device):
        super().__init__(case, device)
        num_rows, spec_query_len = len(case.slots), case.spec_query_len
        num_slots = num_rows * spec_query_len + 2
        self.pool = padded((num_slots, case.num_heads, case.value_dim, case.key_dim), case.state_dtype, device)
        indices = torch.randperm(num_rows * spec_query_len, generator=torch.Generator().manual_seed(1)) + 1
        self.indices = int32(indices.tolist(), device).view(num_rows, spec_query_len)
        self.num_accepted = int32([1 + row % spec_query_len for row in range(num_rows)], device)
        for row, slot in enumerate(case.slots):
            column = int(self.num_accepted[row]) - 1
            if slot > 0:
                self.pool[self.indices[row, column]] = self.checkpoint_states[0][slot]
            else:
                self.indices[row, column] = slot

    def arguments(self):
        return self.layer_gate(), self.query_start_loc, self.indices, self.num_accepted


def expect_full_state(window):
    pool, out = float64_twin(window.pool), float64_twin(window.out)
    reference.full_state_verify(*window.activations, pool, *window.arguments(), out=out)
    return pool, out


@pytest.mark.parametrize("case", WINDOW_CASES, ids=str)
def test_full_state_verify_matches_reference(case, device):
    window = FullStateWindow(case, device)
    expected_pool, expected_out = expect_full_state(window)

    out = full_state_verify(*window.activations, window.pool, *window.arguments(), out=window.out)

    assert_matches("out", out, expected_out, tol(case.activation_dtype, device))
    assert_matches("state_pool", window.pool, expected_pool, tol(case.state_dtype, device))


@pytest.mark.parametrize("case", [FULL, RAGGED, NULL_SLOTS], ids=str)
def test_full_state_verify_leaves_padding_bit_for_bit(case, device):
    window = FullStateWindow(case, device)
    before = {"pool": storage_bits(window.pool), "out": storage_bits(window.out)}

    full_state_verify(*window.activations, window.pool, *window.arguments(), out=window.out)

    assert_gaps_untouched("pool", window.pool, before["pool"])
    assert_gaps_untouched("out", window.out, before["out"])


def test_out_may_be_v(device):
    window = FullStateWindow(RAGGED, device)
    _, expected = expect_full_state(window)

    full_state_verify(*window.activations, window.pool, *window.arguments(), out=window.v)

    assert_matches("out", window.v, expected, tol(RAGGED.activation_dtype, device))


def test_states_without_a_slot_are_not_stored(device):
    window = FullStateWindow(FULL, device)
    window.indices[1, 2:] = int32([0, -1], device)
    before = torch.full_like(window.pool[:1], float("nan"))
    window.pool = torch.cat((before, window.pool))[1:]  # what slot -1 would be is memory that we can look at
    expected_pool, expected_out = expect_full_state(window)

    out = full_state_verify(*window.activations, window.pool, *window.arguments(), out=window.out)

    assert_matches("out", out, expected_out, tol(torch.bfloat16, device))
    assert_matches("state_pool", window.pool, expected_pool, FP32_TOL)
    assert window.pool.as_strided(before.shape, before.stride(), storage_offset=0).isnan().all()


def test_accepted_counts_outside_the_window_are_taken_as_the_nearest(device):
    window = FullStateWindow(FULL, device)
    window.num_accepted.copy_(int32([0, 9, -3], device))
    for row, column in enumerate((0, 3, 0)):
        window.pool[window.indices[row, column]] = window.checkpoint_states[0][FULL.slots[row]]
    expected_pool, expected_out = expect_full_state(window)

    out = full_state_verify(*window.activations, window.pool, *window.arguments(), out=window.out)

    assert not expected_out.isnan().any()
    assert_matches("out", out, expected_out, tol(torch.bfloat16, device))
    assert_matches("state_pool", window.pool, expected_pool, FP32_TOL)


def test_a_row_longer_than_its_slots_uses_at_most_the_window(device):
    window = FullStateWindow(FULL, device)
    window.query_start_loc.copy_(int32([0, 12, 12, 12], device))
    expected_pool, expected_out = expect_full_state(window)

    out = full_state_verify(*window.activations, window.pool, *window.arguments(), out=window.out)

    assert_matches("out", out, expected_out, tol(torch.bfloat16, device))
    assert_matches("state_pool", window.pool, expected_pool, FP32_TOL)


def test_slot_table_may_be_a_slice_of_a_wider_one(device):
    window = FullStateWindow(FULL, device)
    expected_pool, expected_out = expect_full_state(window)
    window.indices = torch.cat((window.indices, window.indices + 1), dim=1)[:, :4]

    out = full_state_verify(*window.activations, window.pool, *window.arguments(), out=window.out)

    assert_matches("out", out, expected_out, tol(torch.bfloat16, device))
    assert_matches("state_pool", window.pool, expected_pool, FP32_TOL)
