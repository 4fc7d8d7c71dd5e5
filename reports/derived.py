"""Metrics that no record holds, for who asks for them by name (`ci history query`); formed inside each process."""

import re
from typing import Literal, NamedTuple

from reports.derive import (
    COMMIT,
    COMMIT_HOST,
    COMMIT_LAUNCH,
    COMMIT_STATE,
    FULL_STEP,
    FULL_VERIFY,
    STEP,
    VERIFY,
    VERIFY_HOST,
    VERIFY_LAUNCH,
    Series,
)


class Derived(NamedTuple):
    """A metric that no record holds, formed inside each process: ``series`` itself, or held against ``base``.

    Attributes:
        how: by how much of the base it lies above it, by how many µs, or how many times as long it takes.
        base_accepted: the base is of the case with so many accepted tokens; None: of the same case.
    """

    metric: str
    unit: str
    series: Series
    base: Series | None = None
    how: Literal["overhead", "difference", "ratio"] = "overhead"
    base_accepted: float | None = None

    def base_case(self, case: str) -> str:
        """The name of the case that the base is of."""
        if self.base_accepted is None:
            return case
        return re.sub(r"_a\d+\.\d\d_", f"_a{self.base_accepted:.2f}_", case)

    def form(self, value: float, base: float) -> float:
        """Of one process; an overhead as the ratio, from which ``shift`` is still to be taken."""
        return value - base if self.how == "difference" else value / base

    @property
    def shift(self) -> float:
        return 1.0 if self.base is not None and self.how == "overhead" else 0.0


DERIVED = (
    Derived("verify_overhead", "ratio", VERIFY, FULL_VERIFY),
    Derived("step_overhead", "ratio", STEP, FULL_STEP),
    Derived("commit_latency_us", "us", COMMIT),
    Derived("commit_host_us", "us", COMMIT_HOST),
    Derived("plan_and_conv_us", "us", COMMIT, COMMIT_STATE, "difference"),
    Derived("over_one_accepted", "ratio", COMMIT_STATE, COMMIT_STATE, "ratio", base_accepted=1.0),
    Derived("over_launch_us", "us", VERIFY_HOST, VERIFY_LAUNCH, "difference"),
    Derived("over_launch_us", "us", COMMIT_HOST, COMMIT_LAUNCH, "difference"),
)
