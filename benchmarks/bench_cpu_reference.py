"""asv suite, wall time of the float64 reference on the CPU, on shrunken twins: the whole path where there is no GPU.

These times say nothing about kernels. They are a contract of their own and never stand beside device times.
"""

from typing import Any

from . import one_series
from .harness import HARNESS_VERSION

REQUESTS, WINDOWS, DTYPES = [2], [4, 8], ["fp32", "bf16"]


class _CpuReference:
    unit = "seconds"
    version = HARNESS_VERSION
    timeout = 120
    op = ""

    def setup(self, B: int, T: int, dtype: str, acceptance: str = "published") -> None:
        import torch

        torch.set_num_threads(1)  # tiny tensors: more threads only get in each other's way
        self.series = one_series.reference_series(self.op, one_series.case_of(B, T, dtype, acceptance))

    def _samples(self) -> dict[str, Any]:
        return one_series.seconds(self.series.measure())


class Verify(_CpuReference):
    """One layer's verify; it does the same work whatever is accepted afterwards."""

    op = "verify"
    params = (REQUESTS, WINDOWS, DTYPES)
    param_names = ("B", "T", "dtype")

    def track_seconds(self, *_params: object) -> dict[str, Any]:
        return self._samples()


class Step(_CpuReference):
    """All layers' verifies and the commit."""

    op = "step"
    params = (REQUESTS, WINDOWS, DTYPES, list(one_series.ACCEPTANCES))
    param_names = ("B", "T", "dtype", "acceptance")

    def track_seconds(self, *_params: object) -> dict[str, Any]:
        return self._samples()


class Commit(_CpuReference):
    """Plan, states and conv windows of all layers."""

    op = "commit"
    params = (REQUESTS, WINDOWS, DTYPES, list(one_series.ACCEPTANCES))
    param_names = ("B", "T", "dtype", "acceptance")

    def track_seconds(self, *_params: object) -> dict[str, Any]:
        return self._samples()


class Conv(_CpuReference):
    """Conv windows of all layers alone."""

    op = "conv"
    params = (REQUESTS, WINDOWS, DTYPES, list(one_series.ACCEPTANCES))
    param_names = ("B", "T", "dtype", "acceptance")

    def track_seconds(self, *_params: object) -> dict[str, Any]:
        return self._samples()
