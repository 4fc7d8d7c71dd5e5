import random
import statistics
from dataclasses import replace

import pytest
import torch

from benchmarks import inputs
from benchmarks.cases import SETS, kimi_k3
from recoverssm.reference.recurrence import kda_log_decay

CPU = torch.device("cpu")


def small(state_dtype="fp32", num_requests=3):
    case = kimi_k3(8, 32, 8, 3.84, state_dtype)
    return replace(case, num_requests=num_requests, num_layers=2, shape=replace(case.shape, num_heads=2, value_dim=16))


def test_minimum_variance_acceptance_takes_the_fraction_by_chance():
    counts = inputs.accepted_minimum_variance(3.84, 20_000, random.Random(0))

    assert set(counts) == {3, 4}
    assert statistics.fmean(counts) == pytest.approx(3.84, abs=0.01)


def test_minimum_variance_acceptance_of_a_whole_number_has_no_variance():
    assert inputs.accepted_minimum_variance(8.0, 100, random.Random(0)) == [8] * 100


@pytest.mark.parametrize(("mean", "window"), [(3.84, 8), (2.73, 3), (4.0, 9)])
def test_geometric_acceptance_has_the_mean_and_every_length(mean, window):
    counts = inputs.accepted_geometric(mean, 20_000, window, random.Random(0))

    assert set(counts) == set(range(1, window + 1))
    assert statistics.fmean(counts) == pytest.approx(mean, abs=0.08)


@pytest.mark.parametrize(("mean", "expected"), [(1.0, 0.0), (8.0, 1.0)])
def test_geometric_acceptance_reaches_both_ends(mean, expected):
    assert inputs.draft_probability(mean, 8) == pytest.approx(expected, abs=1e-6)


def test_accepted_counts_belong_to_the_case_and_not_to_the_process():
    fp32, bf16 = kimi_k3(8, 32, 8, 3.84, "fp32"), kimi_k3(16, 32, 8, 3.84, "bf16")

    assert inputs.accepted_counts(fp32) == inputs.accepted_counts(bf16)


@pytest.mark.parametrize("case", SETS["nightly"], ids=str)
def test_accepted_counts_lie_in_the_window_and_near_the_mean(case):
    counts = inputs.accepted_counts(case)

    assert len(counts) == case.num_requests
    assert 1 <= min(counts) <= max(counts) <= case.shape.spec_query_len
    assert abs(statistics.fmean(counts) - case.mean_accepted) < 3 * 0.5 / case.num_requests**0.5


def test_slots_are_distinct_and_leave_the_null_slot_and_a_spare_one():
    slots = inputs.shuffled_slots(34, 32, CPU, seed=1).tolist()

    assert len(set(slots)) == 32
    assert set(slots) < set(range(1, 34))


def test_one_seed_gives_one_input_and_another_seed_another():
    first, again, other = (inputs.build_step(small(), CPU, torch.Generator().manual_seed(s)) for s in (1, 1, 2))

    assert torch.equal(first.q, again.q)
    assert not torch.equal(first.q, other.q)


def test_decays_spread_from_nearly_none_to_strong():
    step = inputs.build_step(small(num_requests=16), CPU, torch.Generator().manual_seed(0))
    log_decay = kda_log_decay(step.raw_gate, step.layer_gates[0])

    assert log_decay.max() > -0.01
    assert log_decay.min() < -3


def test_a_layer_set_has_the_dtypes_and_shapes_the_ops_want():
    case = small("bf16")
    layers = inputs.build_layer_set(case, CPU, torch.Generator().manual_seed(0))

    assert layers.checkpoint_states[1].shape == (5, 2, 16, 128)
    assert layers.checkpoint_states[1].dtype == torch.bfloat16
    assert layers.records[0].correction.isnan().all()
    assert layers.records[0].key_gate.shape == (3, 2, 8, 256)
    assert layers.conv_states[0].shape == (5, 10, 2 * (128 + 128 + 16))
