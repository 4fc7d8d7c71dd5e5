"""asv suite, device time: CUDA graphs over cold buffers. Without a GPU every entry is skipped, not measured otherwise.

Each benchmark returns samples and the number of op calls in one, which asv keeps as it keeps its own timings.
"""

from typing import Any

from . import one_series
from .harness import HARNESS_VERSION

REQUESTS, WINDOWS, DTYPES = [1, 32, 128], [4, 8], ["fp32", "bf16"]
PROVIDERS = ["recoverssm", "full_state"]


class _GraphCold:
    unit = "seconds"
    version = HARNESS_VERSION
    timeout = 300  # the first process of a new Triton cache compiles every kernel of the case
    op = ""

    def setup(self, provider: str, B: int, T: int, dtype: str, acceptance: str = "published") -> None:
        from .harness.environment import gpu_uuid
        from .harness.lock import GpuLock

        uuid = gpu_uuid()
        if uuid is None:
            raise NotImplementedError("graph-cold needs a CUDA device")  # asv's word for "skip"
        self.uuid, self.lock = uuid, GpuLock(uuid)
        self.lock.__enter__()
        try:
            case = one_series.case_of(B, T, dtype, acceptance)
            self.series = one_series.device_series(self.op, provider, case)
        except one_series.UnavailableError as error:
            raise NotImplementedError(str(error)) from error

    def teardown(self, *_params: object) -> None:
        if hasattr(self, "lock"):
            self.lock.__exit__(None, None, None)

    def _samples(self) -> dict[str, Any]:
        from .harness.gpu_monitor import GpuMonitor
        from .harness.quiet import QuietCard

        with GpuMonitor(self.uuid) as monitor:
            return one_series.seconds(self.series.measure(QuietCard(monitor.throttle_us)))


class Verify(_GraphCold):
    """One layer's verify; it does the same work whatever is accepted afterwards."""

    op = "verify"
    params = (PROVIDERS, REQUESTS, WINDOWS, DTYPES)
    param_names = ("provider", "B", "T", "dtype")

    def track_seconds(self, *_params: object) -> dict[str, Any]:
        return self._samples()


class Step(_GraphCold):
    """All layers' verifies and, where there is one, the commit, as one graph."""

    op = "step"
    params = (PROVIDERS, REQUESTS, WINDOWS, DTYPES, list(one_series.ACCEPTANCES))
    param_names = ("provider", "B", "T", "dtype", "acceptance")

    def track_seconds(self, *_params: object) -> dict[str, Any]:
        return self._samples()


class Commit(_GraphCold):
    """Plan, states and conv windows of all layers."""

    op = "commit"
    params = (["recoverssm"], REQUESTS, WINDOWS, DTYPES, list(one_series.ACCEPTANCES))
    param_names = ("provider", "B", "T", "dtype", "acceptance")

    def track_seconds(self, *_params: object) -> dict[str, Any]:
        return self._samples()


class Conv(_GraphCold):
    """Conv windows of all layers alone."""

    op = "conv"
    params = (["recoverssm"], REQUESTS, WINDOWS, DTYPES, list(one_series.ACCEPTANCES))
    param_names = ("provider", "B", "T", "dtype", "acceptance")

    def track_seconds(self, *_params: object) -> dict[str, Any]:
        return self._samples()
