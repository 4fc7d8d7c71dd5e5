import math

import pytest
import torch

from benchmarks.checks import COMPILED, INTERPRETED, Checklist, failure_reason, num_differing, relative_error


def test_relative_error_is_the_norm_of_the_difference_over_the_norm():
    assert relative_error(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.2)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_error_that_is_not_finite_has_no_value_and_fails(bad):
    checklist = Checklist("case", "recoverssm", COMPILED)
    checklist.error("verify", "out_error", torch.tensor([bad]), torch.ones(1), 1.0, "layer 0")

    (check,) = checklist.checks
    assert check.value is None
    assert not check.passed
    assert failure_reason([check]) == "verify out_error is not finite"


def test_bits_are_compared_and_not_values():
    nan, zero = torch.tensor([math.nan]), torch.tensor([0.0])

    assert num_differing(nan, nan.clone()) == 0
    assert num_differing(zero, -zero) == 1
    assert num_differing(zero.bfloat16(), torch.tensor([1.0]).bfloat16()) == 1


def test_the_worst_of_several_comparisons_is_kept_with_its_place():
    checklist = Checklist("case", "recoverssm", COMPILED, "tiny")
    for layer, value in enumerate((1.0, 1.5, 1.1)):
        checklist.error("verify", "u_error", torch.tensor([value]), torch.ones(1), 0.2, f"layer {layer}")

    (check,) = checklist.checks
    assert check.value == pytest.approx(0.5)
    assert not check.passed
    assert check.detail == "layer 1; worst of 3; tiny"


def test_an_exception_is_a_failed_check():
    checklist = Checklist("case", "recoverssm", COMPILED)
    checklist.raised(RuntimeError("out of registers\nmore"))

    assert failure_reason(checklist.checks) == "RuntimeError: out of registers"


def test_a_reason_names_three_failures_and_counts_the_rest():
    checklist = Checklist("case", "recoverssm", COMPILED)
    for op in "abcde":
        checklist.count(op, "untouched", 2, "")

    assert failure_reason(checklist.checks).endswith("c untouched 2 is above 0 and 2 more")


def test_rounding_to_nearest_passes_the_compiled_limit_and_truncating_only_the_interpreted_one():
    exact = torch.randn(10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    truncated = (exact.float().view(torch.int32) & ~0xFFFF).view(torch.float32)

    assert relative_error(exact.bfloat16(), exact) < COMPILED.bf16_state
    assert COMPILED.out < relative_error(truncated, exact) < INTERPRETED.out


def test_whatever_the_values_truncating_passes_the_interpreted_limit():
    exact = 2.0 ** torch.arange(-8.0, 8.0, dtype=torch.float64) * (1 + 2**-7 - 2**-20)  # of each step the most is lost
    truncated = (exact.float().view(torch.int32) & ~0xFFFF).view(torch.float32)

    assert 0.99 * 2**-7 < relative_error(truncated, exact) < INTERPRETED.out == INTERPRETED.bf16_state
