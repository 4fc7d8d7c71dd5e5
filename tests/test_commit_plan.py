"""commit_plan against the reference and by hand."""

import pytest
import torch

from recoverssm import CommitPlan, commit_plan, reference
from tests.windows import int32


def plan_of(num_rows, device):
    return CommitPlan(*(torch.full((num_rows,), -7, dtype=torch.int32, device=device) for _ in range(3)))


def as_lists(plan):
    return plan.commit_lens.tolist(), plan.source_slots.tolist(), plan.final_slots.tolist()


@pytest.mark.parametrize("num_rows", [1, 5, 128, 129, 300])
@pytest.mark.parametrize("indexed", [False, True])
def test_commit_plan_matches_reference(num_rows, indexed, device):
    generator = torch.Generator().manual_seed(num_rows)

    def draw(low, high, count):
        return int32(torch.randint(low, high, (count,), generator=generator).tolist(), device)

    lens = draw(0, 5, num_rows)
    starts = torch.cat((int32([0], device), lens.cumsum(0, dtype=torch.int32)))
    request_indices = draw(-1, num_rows + 2, num_rows) if indexed else None
    arguments = (draw(-1, 7, num_rows), starts, draw(-1, 9, num_rows))
    expected, plan = plan_of(num_rows, "cpu"), plan_of(num_rows, device)
    reference.commit_plan(
        *(x.cpu() for x in arguments),
        expected,
        spec_query_len=4,
        request_indices=None if request_indices is None else request_indices.cpu(),
    )

    commit_plan(*arguments, plan, spec_query_len=4, request_indices=request_indices)

    assert as_lists(plan) == as_lists(expected)


def test_zero_samples_empty_rows_and_null_slots_commit_nothing(device):
    plan = plan_of(4, device)

    commit_plan(
        int32([0, 3, 3, 3], device),
        int32([0, 4, 8, 8, 12], device),
        int32([5, 0, 6, 7], device),
        plan,
        spec_query_len=4,
    )

    assert as_lists(plan) == ([0, 0, 0, 3], [0, 0, 0, 7], [0, 0, 0, 7])


def test_padding_rows_do_not_read_past_the_sampled_counts(device):
    plan = plan_of(3, device)

    commit_plan(int32([2], device), int32([0, 4, 4, 4], device), int32([3, 4, 5], device), plan, spec_query_len=4)

    assert as_lists(plan) == ([2, 0, 0], [3, 0, 0], [3, 0, 0])


def test_a_row_without_a_request_commits_nothing(device):
    """Request row -1 must not be read: the element before num_sampled belongs to somebody else."""
    plan, num_sampled = plan_of(2, device), int32([4, 2], device)[1:]

    commit_plan(
        num_sampled,
        int32([0, 4, 8], device),
        int32([3, 4], device),
        plan,
        spec_query_len=4,
        request_indices=int32([-1, 0], device),
    )

    assert as_lists(plan) == ([0, 2], [0, 4], [0, 4])


def test_a_row_longer_than_the_records_commits_at_most_the_window(device):
    plan = plan_of(1, device)

    commit_plan(int32([9], device), int32([0, 9], device), int32([3], device), plan, spec_query_len=4)

    assert as_lists(plan) == ([4], [3], [3])
