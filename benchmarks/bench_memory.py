"""asv suite, cache bytes in use: computed, the same on every machine. Lower is better, so no "bytes saved" here."""

from . import one_series
from .harness import HARNESS_VERSION


class Cache:
    """Bytes that all requests of one rank hold over all layers."""

    unit = "bytes"
    version = HARNESS_VERSION
    params = (["recoverssm", "full_state"], [1, 32, 128], [4, 8], ["fp32", "bf16"])
    param_names = ("provider", "B", "T", "dtype")

    def track_bytes(self, provider: str, B: int, T: int, dtype: str) -> int:
        return one_series.cache_bytes(provider, one_series.case_of(B, T, dtype))
