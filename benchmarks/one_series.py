"""One series at a time, for the tools people already use: asv (``bench_*.py``) and pytest-benchmark (``test_ops.py``).

Nights measure a whole case per process. Here a caller names one op of one provider on one case; the rules are the same:
the check comes before the timer, a contract that cannot be kept yields no number, and an impossible number is refused.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from .cases import BenchCase, kimi_k3
from .harness.errors import MeasurementError
from .harness.records import Contract
from .harness.stats.summary import median

if TYPE_CHECKING:
    import torch

    from .harness.clock import Launch
    from .harness.measure import Samples
    from .harness.quiet import QuietCard
    from .providers import OwnProvider, Provider

SEED = 0
"""Values and slots are the same in every process: what these tools compare is two commits, not two draws."""

TENSOR_PARALLEL = 8
PUBLISHED = {4: 3.00, 8: 3.84}
"""Mean accepted tokens by spec_query_len, from the public sources in ``cases.py``."""

ACCEPTANCES = ("published", "all")


class UnavailableError(MeasurementError):
    """The machine cannot take this number: no GPU, or too little memory. Not a failure of the code measured."""


class CheckFailedError(MeasurementError):
    """The op's result differs from the float64 reference, so it is not timed."""


@dataclass(frozen=True, slots=True)
class OneSeries:
    """What is timed, under which contract.

    Attributes:
        launches: one op call each; the host contracts have exactly one.
        least_us: the roofline time; a cold result far below it is impossible. None where there is no roofline.
        restore, num_kernels: as in ``providers.Series``.
        num_non_finite: elements of outputs and states that are NaN or infinite; asked after timing.
    """

    op: str
    provider: str
    case: BenchCase
    contract: Contract
    launches: tuple["Launch", ...]
    least_us: float | None = None
    restore: "Launch | None" = None
    num_kernels: int | None = None
    num_non_finite: Callable[[], int] = lambda: 0

    def measure(self, card: "QuietCard | None" = None) -> "Samples":
        """Samples under the contract.

        Args:
            card: judges blocks of samples of ``graph-cold``; those taken while the card was held back do not count.
        Raises:
            MeasurementError: it cannot be kept, or the result is impossible; there is no other timer.
        """
        from . import cpu_process, gpu_process
        from .harness.measure import measure_cpu_reference, measure_graph_cold

        if self.contract == "cpu-reference":
            return measure_cpu_reference(self.launches[0], sampling=cpu_process.SAMPLING)
        samples = measure_graph_cold(
            self.launches,
            sampling=gpu_process.SAMPLING,
            restore=self.restore,
            num_kernels=self.num_kernels,
            card=card,
        )
        self.refuse_impossible(samples)
        if num_non_finite := self.num_non_finite():
            raise CheckFailedError(f"{self.provider} {self.op} on {self.case}: {num_non_finite} elements not finite")
        return samples

    def refuse_impossible(self, samples: "Samples") -> None:
        """Raise MeasurementError when the op was quicker than its compulsory bytes can move."""
        from .gpu_process import IMPOSSIBLE

        value_us = median(samples.values_us)
        if self.least_us is not None and value_us < IMPOSSIBLE * self.least_us:
            raise MeasurementError(
                f"{self.provider} {self.op} on {self.case}: impossible: {value_us:.2f} us, and its bytes take "
                f"{self.least_us:.2f} us at the best bandwidth of this process"
            )


def case_of(num_requests: int, spec_query_len: int, state_dtype: str, acceptance: str = "published") -> BenchCase:
    """The Kimi-K3 case of these sizes on one of 8 ranks.

    Args:
        acceptance: "published", the mean of the window's public source, or "all" tokens of every window.
    """
    if acceptance not in ACCEPTANCES:
        raise ValueError(f"acceptance: expected one of {ACCEPTANCES}, got {acceptance!r}")
    accepted = PUBLISHED[spec_query_len] if acceptance == "published" else float(spec_query_len)
    return kimi_k3(TENSOR_PARALLEL, num_requests, spec_query_len, accepted, state_dtype)


def device_series(op: str, provider_name: str, case: BenchCase) -> OneSeries:
    """The ``graph-cold`` series of one op, checked against float64 on the memory that will be timed.

    Raises:
        UnavailableError: no GPU, or the case does not fit it.
        CheckFailedError: the provider's results are wrong, whichever op of it is asked for.
    """
    import torch

    if not torch.cuda.is_available():
        raise UnavailableError("graph-cold needs a CUDA device, and torch sees none")
    device = torch.device("cuda", torch.cuda.current_device())
    provider = _provider(provider_name)
    bytes_per_us = best_bytes_per_us(device.index)
    prepared = _checked(provider, case, device)
    series = next(one for one in prepared.series() if (one.op, one.contract) == (op, "graph-cold"))
    return OneSeries(
        op,
        provider_name,
        case,
        "graph-cold",
        series.calls,
        series.cost.total_bytes / bytes_per_us,
        series.restore,
        series.num_kernels,
        prepared.num_non_finite,
    )


def reference_series(op: str, case: BenchCase) -> OneSeries:
    """The ``cpu-reference`` series of one op on the case's shrunken twin."""
    from .cpu_process import shrunken
    from .providers.torch_reference import NAME, reference_calls

    twin = shrunken(case)
    return OneSeries(op, NAME, twin, "cpu-reference", (reference_calls(twin, SEED, ops=(op,))[op],))


def seconds(samples: "Samples") -> dict[str, Any]:
    """Samples as asv stores them: seconds of one op call each, and how many calls one sample spans."""
    return {"samples": [value_us * 1e-6 for value_us in samples.values_us], "number": samples.launches_per_sample}


def cache_bytes(provider_name: str, case: BenchCase) -> int:
    """Bytes that the case's requests hold over all layers: computed, so the same on every machine."""
    return _provider(provider_name).cache_bytes(case)


@cache
def best_bytes_per_us(device_index: int) -> float:
    """The fastest control stream of this process on that GPU, measured once."""
    from .harness.control import measure_controls

    return max(control.bytes_per_s for control in measure_controls(device_index)) / 1e6


def _provider(name: str) -> "OwnProvider":
    from .providers import PROVIDERS

    return next(provider for provider in PROVIDERS if provider.name == name)


def _checked(provider: "Provider", case: BenchCase, device: "torch.device") -> Any:
    import torch

    from .checks import COMPILED, Checklist, failure_reason
    from .gpu_process import available_bytes

    l2_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
    needed, available = provider.needed_bytes(case, l2_bytes), available_bytes(device)
    if needed > available:
        raise UnavailableError(
            f"{case}: {provider.name} needs {needed / 2**30:.1f} GiB of device memory, {available / 2**30:.1f} GiB "
            "are free"
        )
    checklist = Checklist(case.name, provider.name, COMPILED)
    prepared = provider.prepare(case, device, zlib.crc32(f"{SEED}/{case.name}".encode()), l2_bytes)
    prepared.check(checklist)
    if reason := failure_reason(checklist.checks):
        raise CheckFailedError(f"{case}: {provider.name}: {reason}")
    return prepared
