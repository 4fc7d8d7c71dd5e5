"""Comparisons with the float64 reference, and bit for bit with memory that an op must leave alone."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from .harness.records import Check


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest relative Frobenius errors that pass, against float64.

    Attributes:
        fp32: corrections and states kept in fp32. A plain fp32 recurrence over 16 tokens comes to 1e-7 to 2e-7 on
            states of unit variance; single-pass tf32 or bf16 operands cost at least 1e-5. The limit lies between.
        bf16_state, out: values rounded to bf16 once, when they are stored. Rounding to nearest moves an element by at
            most 2^-8 = 3.9e-3 of itself, 1.7e-3 over thousands; Triton's interpreter truncates, by less than 2^-7,
            3.4e-3 over thousands, and its twins have few enough elements to come to more.
    """

    fp32: float
    bf16_state: float
    out: float

    def state(self, state_dtype: str) -> float:
        """The limit for a state kept in "fp32" or "bf16"."""
        return self.fp32 if state_dtype == "fp32" else self.bf16_state


COMPILED = Limits(fp32=1e-6, bf16_state=2e-3, out=3e-3)
INTERPRETED = Limits(fp32=1e-6, bf16_state=2**-7, out=2**-7)

RAISED = "raised"
"""Metric of a check that ended in an exception."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def relative_error(actual: Tensor, expected: Tensor) -> float | None:
    """Relative Frobenius norm of the difference, in float64; None when any element is not finite.

    Against an expected zero it is the norm of ``actual`` itself.
    """
    expected = expected.double()
    error = torch.linalg.vector_norm(actual.double() - expected)
    scale = torch.linalg.vector_norm(expected)
    value = float(torch.where(scale > 0, error / scale, error))
    return value if math.isfinite(value) else None


def num_differing(actual: Tensor, expected: Tensor) -> int:
    """Elements whose bits differ; NaN equals NaN of the same bits, and 0.0 differs from -0.0."""
    return int((bits_of(actual.contiguous()) != bits_of(expected.to(actual.dtype).contiguous())).sum())


def bits_of(tensor: Tensor) -> Tensor:
    """The same memory as integers of the same size."""
    return tensor.view(_BITS[tensor.element_size()])


def num_non_finite(tensors: Iterable[Tensor]) -> int:
    """Elements that are NaN or infinite."""
    counts = [(~torch.isfinite(tensor)).sum() for tensor in tensors]
    return int(torch.stack(counts).sum()) if counts else 0


class Checklist:
    """The checks of one provider on one case: per op and metric the worst of all comparisons.

    Args:
        detail: ends the detail of each check.
    """

    def __init__(self, case: str, provider: str, limits: Limits, detail: str = "") -> None:
        self.limits = limits
        self._case = case
        self._provider = provider
        self._detail = detail
        self._found: dict[tuple[str, str], list[Check]] = {}

    @property
    def checks(self) -> list[Check]:
        """One check per op and metric; its detail says where the worst was, and of how many comparisons."""
        return [self._worst(found) for found in self._found.values()]

    def error(self, op: str, metric: str, actual: Tensor, expected: Tensor, limit: float, where: str) -> None:
        """Demand a relative Frobenius error of at most ``limit``."""
        self._add(op, metric, relative_error(actual, expected), limit, where)

    def equal(self, op: str, metric: str, actual: Tensor, expected: Tensor, where: str) -> None:
        """Demand equal bits."""
        self.count(op, metric, num_differing(actual, expected), where)

    def count(self, op: str, metric: str, value: int, where: str) -> None:
        """Demand that a count of wrong things is 0."""
        self._add(op, metric, float(value), 0.0, where)

    def raised(self, error: Exception) -> None:
        """Record that preparing, running or checking an op ended in an exception."""
        self._add("any", RAISED, None, 0.0, f"{type(error).__name__}: {first_line(error)}")

    def named(self, case: str) -> list[Check]:
        """The same checks under another case's name."""
        return [msgspec.structs.replace(check, case=case) for check in self.checks]

    def _add(self, op: str, metric: str, value: float | None, limit: float, where: str) -> None:
        check = Check(
            case=self._case,
            op=op,
            provider=self._provider,
            metric=metric,
            value=value,
            limit=limit,
            passed=value is not None and value <= limit,
            detail=where,
        )
        self._found.setdefault((op, metric), []).append(check)

    def _worst(self, found: Sequence[Check]) -> Check:
        worst = max(found, key=lambda check: math.inf if check.value is None else check.value)
        parts = [worst.detail, f"worst of {len(found)}" if len(found) > 1 else "", self._detail]
        return msgspec.structs.replace(worst, detail="; ".join(part for part in parts if part))


def failure_reason(checks: Iterable[Check]) -> str:
    """What the failed checks say, in one line; empty when all passed."""
    failed = [_failure(check) for check in checks if not check.passed]
    more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
    return "; ".join(failed[:3]) + more


def _failure(check: Check) -> str:
    if check.metric == RAISED:
        return check.detail
    value = "is not finite" if check.value is None else f"{check.value:.3g} is above {check.limit:g}"
    return f"{check.op} {check.metric} {value}"


def first_line(error: BaseException) -> str:
    """The start of an error's message, short enough for a record."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return printable(lines[0])[:300] if lines else "no message"


def printable(line: str) -> str:
    """With a question mark for each character that steers a terminal, or that no record can hold."""
    return "".join(character if character.isprintable() else "?" for character in line)
