"""reference.commit_plan: lengths and slots, row by row."""

import pytest
import torch

from recoverssm import reference
from recoverssm.types import CommitPlan


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def plan_of(num_sampled, query_lens, slots, *, spec_query_len=8, request_indices=None):
    """The three columns of a plan that started as -7."""
    plan = CommitPlan(*(torch.full((len(slots),), -7, dtype=torch.int32) for _ in range(3)))
    starts = int32([0, *query_lens]).cumsum(0).to(torch.int32)
    reference.commit_plan(
        int32(num_sampled),
        starts,
        int32(slots),
        plan,
        spec_query_len=spec_query_len,
        request_indices=None if request_indices is None else int32(request_indices),
    )
    return plan.commit_lens.tolist(), plan.source_slots.tolist(), plan.final_slots.tolist()


def test_a_row_keeps_what_was_sampled_in_its_own_slot():
    assert plan_of([3, 8, 1], [8, 8, 8], [4, 9, 2]) == ([3, 8, 1], [4, 9, 2], [4, 9, 2])


def test_a_row_keeps_no_more_than_its_tokens_nor_than_the_window():
    lens, _, _ = plan_of([5, 9, 9], [2, 8, 12], [1, 2, 3])

    assert lens == [2, 8, 8]


@pytest.mark.parametrize("num_sampled", [0, -1])
def test_a_row_that_sampled_nothing_gets_zeros(num_sampled):
    assert plan_of([num_sampled, 2], [8, 8], [4, 5]) == ([0, 2], [0, 5], [0, 5])


@pytest.mark.parametrize("slot", [0, -1, -9])
def test_a_row_without_a_slot_gets_zeros(slot):
    assert plan_of([3, 2], [8, 8], [slot, 5]) == ([0, 2], [0, 5], [0, 5])


def test_a_row_without_tokens_gets_zeros():
    assert plan_of([3, 2], [0, 8], [4, 5]) == ([0, 2], [0, 5], [0, 5])


def test_request_indices_choose_whose_count_a_row_uses():
    lens, slots, _ = plan_of([7, 2, 7, 8], [8, 8], [5, 6], request_indices=[1, 3])

    assert lens == [2, 8]
    assert slots == [5, 6]


@pytest.mark.parametrize("request_row", [-1, 4])
def test_a_row_whose_request_does_not_exist_gets_zeros(request_row):
    assert plan_of([7, 2, 7, 8], [8, 8], [5, 6], request_indices=[request_row, 3]) == ([0, 8], [0, 6], [0, 6])


def test_padding_rows_may_outnumber_the_sampled_requests():
    assert plan_of([3], [8, 0, 0], [4, 0, 0]) == ([3, 0, 0], [4, 0, 0], [4, 0, 0])


def test_an_empty_batch_is_planned():
    assert plan_of([3], [], []) == ([], [], [])
