"""pytest plugin: the fixture ``gpu_benchmark`` measures with our engine and reports through pytest-benchmark.

    def test_scale(gpu_benchmark):
        gpu_benchmark([partial(scale, x) for x in buffers])  # together at least twice the L2

    pytest -p benchmarks.pytest_plugin --benchmark-only

The stock fixture gets every sample through its public ``pedantic``: one round per sample, against a clock that moves by
the sample and by nothing else. So tables, JSON, histograms and ``--benchmark-compare`` work as they always do, while
verdicts stay with ``python -m ci``. A comparison across differing environments is refused (docs/measuring.md).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from .harness.environment import collect_environment, gpu_uuid
from .harness.gpu_monitor import GpuMonitor
from .harness.lock import GpuLock
from .harness.measure import Samples, measure_cpu_reference, measure_graph_cold, measure_host_dispatch
from .harness.quiet import QuietCard
from .harness.records import Contract, Environment
from .harness.stopping import DEFAULT_SAMPLING, Sampling

if TYPE_CHECKING:
    from .harness.clock import Launch

ENVIRONMENT = "environment"
"""Key of ``machine_info`` and of ``extra_info``: what cuts a series when it changes."""

HOST_CONTRACTS = frozenset({"host-dispatch", "cpu-reference"})
HOST_FIELDS = frozenset({"cpu_model", "os_kernel"})
"""They count for times of the host alone, as in ``Environment.cut_key``."""

_SAVED_CONTRACTS = pytest.StashKey[dict[str, str]]()


class ReplayClock:
    """A clock that stands still except when told: the timer that the stock fixture reads."""

    def __init__(self) -> None:
        self.__name__ = type(self).__name__  # what the stock fixture stores as the timer's name
        self._now_s = 0.0

    def __call__(self) -> float:
        return self._now_s

    def rewind(self) -> None:
        """Back to 0, so that the difference of the next two readings is the sample itself, without rounding."""
        self._now_s = 0.0

    def advance(self, sample_s: float) -> None:
        """Let one sample pass."""
        self._now_s += sample_s


class HeldGpus:
    """The GPUs that this run of pytest has to itself, from its first measurement on each to its end."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._uuids = stack, set[str]()

    def hold(self, uuid: str) -> None:
        """Take the lock of that GPU, once. Raises LockHeldError when another run has it."""
        if uuid not in self._uuids:
            self._stack.enter_context(GpuLock(uuid))
            self._uuids.add(uuid)


class GpuBenchmark:
    """What a test calls; made by the fixture ``gpu_benchmark``, used once per test like the stock ``benchmark``."""

    def __init__(self, benchmark: Any, clock: ReplayClock, item: pytest.Item, held: HeldGpus) -> None:
        self._benchmark, self._clock, self._item, self._held = benchmark, clock, item, held

    def __call__(
        self,
        launches: "Launch | Sequence[Launch]",
        *,
        contract: Contract = "graph-cold",
        sampling: Sampling = DEFAULT_SAMPLING,
        restore: "Launch | None" = None,
        num_kernels: int | None = None,
    ) -> Samples | None:
        """Measure under one contract and hand every sample on; no contract stands in for another.

        Args:
            launches: each one op call; for ``graph-cold`` on buffers that together are at least twice the L2
                (``cold_cache.num_rotations``), for ``host-dispatch`` and ``cpu-reference`` exactly one.
            restore, num_kernels: of ``measure_graph_cold``, and for that contract alone.
        Returns:
            The samples; None where benchmarks are disabled, and each launch then runs once.
        Raises:
            MeasurementError: the contract cannot be kept, for instance without a GPU.
        """
        calls = [launches] if callable(launches) else list(launches)
        measure = _engine(contract, calls, sampling, restore, num_kernels)
        return self.measured_by(measure, contract, otherwise=lambda: [call() for call in calls])

    def measured_by(
        self,
        measure: Callable[[QuietCard], Samples],
        contract: Contract,
        *,
        otherwise: Callable[[], object] = lambda: None,
    ) -> Samples | None:
        """As calling it, for callers that measure through ``benchmarks.harness`` themselves.

        Args:
            measure: gets the judge of blocks of samples that ``measure_graph_cold`` takes.
            otherwise: runs in place of ``measure`` under ``--benchmark-disable`` and under xdist.
        """
        if not self._benchmark.enabled:
            self._benchmark.pedantic(otherwise)
            return None
        self._refuse_other_contract(contract)
        samples, clocks = self._measure(measure, contract)
        self._benchmark.extra_info.update(
            contract=contract,
            launches_per_sample=samples.launches_per_sample,
            stop_reason=samples.stop_reason,
            num_dropped=len(samples.dropped),
            clocks=clocks,
            **{ENVIRONMENT: msgspec.to_builtins(current_environment())},
        )
        values = iter(samples.values_us)
        self._benchmark.pedantic(
            lambda: self._clock.advance(next(values, 0.0) * 1e-6),  # the stock profiler calls once more: no sample left
            setup=self._clock.rewind,
            rounds=len(samples.values_us),
            iterations=1,
        )
        return samples

    def hold_gpu(self) -> None:
        """Have the current GPU alone until the session ends, where there is one and benchmarks are enabled.

        Measuring does this by itself; call it first where set-up measures or fills the card. Raises LockHeldError.
        """
        uuid = gpu_uuid() if self._benchmark.enabled else None
        if uuid is not None:
            self._held.hold(uuid)

    def _measure(self, measure: Callable[[QuietCard], Samples], contract: Contract) -> tuple[Samples, dict[str, Any]]:
        """The samples, and what NVML saw of the card meanwhile."""
        uuid = None if contract == "cpu-reference" else gpu_uuid()
        if uuid is None:
            return measure(QuietCard()), {"missing": {"nvml": "no CUDA device in use"}}
        self._held.hold(uuid)
        with GpuMonitor(uuid) as monitor, monitor.held() if contract in HOST_CONTRACTS else nullcontext():
            samples = measure(QuietCard(monitor.throttle_us))
        return samples, msgspec.to_builtins(monitor.summary()) | _sm_clock(samples)

    def _refuse_other_contract(self, contract: Contract) -> None:
        saved = self._item.config.stash.get(_SAVED_CONTRACTS, {}).get(self._item.nodeid, contract)
        if saved != contract:
            raise pytest.UsageError(
                f"--benchmark-compare: {self._item.nodeid} was saved under the contract {saved} and is measured under "
                f"{contract} now: two different quantities. Save a new run, or leave --benchmark-compare out"
            )


@cache
def current_environment() -> Environment:
    """Of torch's current device, or of the CPU; asked for once per session."""
    return collect_environment()


def differing_fields(saved: Mapping[str, Any], now: Mapping[str, Any], *, host: bool) -> dict[str, tuple[Any, Any]]:
    """Fields by which two environments (as stored) cut a series, with both values; empty when they may be compared.

    Args:
        host: CPU and OS kernel count too.
    """
    left_out = {"missing"} if host else {"missing", *HOST_FIELDS}
    names = sorted({*saved, *now} - left_out)
    return {name: (saved.get(name), now.get(name)) for name in names if saved.get(name) != now.get(name)}


# --- fixtures and hooks


@pytest.fixture(scope="session")
def _held_gpus() -> Iterator[HeldGpus]:
    with ExitStack() as stack:
        yield HeldGpus(stack)


@pytest.fixture
def gpu_benchmark(request: pytest.FixtureRequest, benchmark: Any, _held_gpus: HeldGpus) -> GpuBenchmark:
    """Measures device time with our engine and reports it through the stock ``benchmark`` fixture."""
    return GpuBenchmark(benchmark, _replay_clock(request.node), request.node, _held_gpus)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give each test that uses the fixture its clock, before the stock fixture is made; its other settings stay."""
    if "gpu_benchmark" in getattr(item, "fixturenames", ()):
        marker = item.get_closest_marker("benchmark")
        settings = dict(marker.kwargs) if marker else {}
        if "timer" in settings:
            raise pytest.UsageError(f"{item.nodeid}: gpu_benchmark brings its own timer; leave timer= out of the mark")
        item.add_marker(pytest.mark.benchmark(**settings, timer=ReplayClock()), append=False)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Add the GPU and all else that cuts a series."""
    environment = current_environment()
    machine_info["gpu"] = environment.gpu_model
    machine_info[ENVIRONMENT] = msgspec.to_builtins(environment)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_benchmark_compare_machine_info(
    config: pytest.Config, machine_info: dict[str, Any], compared_benchmark: dict[str, Any]
) -> None:
    """Refuse a saved run of another environment before anything is measured."""
    when = compared_benchmark.get("datetime", "an unknown time")
    saved = compared_benchmark.get("machine_info", {}).get(ENVIRONMENT)
    if saved is None:
        raise pytest.UsageError(
            f"--benchmark-compare: the run of {when} does not say in which environment it was measured; save a new one "
            "with this plugin active"
        )
    contracts = {
        one["fullname"]: one["extra_info"]["contract"]
        for one in compared_benchmark.get("benchmarks", [])
        if "contract" in one.get("extra_info", {})
    }
    differing = differing_fields(
        saved, machine_info[ENVIRONMENT], host=not HOST_CONTRACTS.isdisjoint(contracts.values())
    )
    if differing:
        shown = "; ".join(f"{name}: {then!r} then, {now!r} now" for name, (then, now) in differing.items())
        raise pytest.UsageError(
            f"--benchmark-compare: the run of {when} was measured in another environment ({shown}). Measure both sides "
            "in one environment, name another run, or leave --benchmark-compare out"
        )
    config.stash.setdefault(_SAVED_CONTRACTS, {}).update(contracts)


def _replay_clock(item: pytest.Item) -> ReplayClock:
    marker = item.get_closest_marker("benchmark")
    assert marker is not None, "pytest_itemcollected has marked every item that uses the fixture"
    clock = marker.kwargs["timer"]
    assert isinstance(clock, ReplayClock)
    return clock


def _sm_clock(samples: Samples) -> dict[str, float | None]:
    """Median of the SM clock over the blocks of samples, counted by the SMs themselves."""
    known = [mhz for mhz in samples.sm_mhz if mhz is not None]
    return {"sm_cycles_mhz_median": median(known) if known else None}


def _engine(
    contract: Contract, calls: "list[Launch]", sampling: Sampling, restore: "Launch | None", num_kernels: int | None
) -> Callable[[QuietCard], Samples]:
    if contract == "graph-cold":
        return lambda card: measure_graph_cold(
            calls, sampling=sampling, restore=restore, num_kernels=num_kernels, card=card
        )
    if contract not in HOST_CONTRACTS:
        known = ", ".join(sorted({"graph-cold", *HOST_CONTRACTS}))
        raise ValueError(f"contract: expected one of {known}, got {contract!r}")
    if len(calls) != 1:
        raise ValueError(f"launches: expected exactly one under {contract}, got {len(calls)}")
    if restore is not None or num_kernels is not None:
        raise ValueError(f"restore, num_kernels: expected None under {contract}; they belong to graph-cold")
    measure = measure_host_dispatch if contract == "host-dispatch" else measure_cpu_reference
    return lambda _card: measure(calls[0], sampling=sampling)
