"""Measures cases on one GPU: checks first, then every series, each provider's memory freed before the next."""

import gc
import random
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch

from . import state_sizes
from .cases import BenchCase
from .checks import COMPILED, Checklist, failure_reason, first_line
from .cold_launches import GRAPH_COLD, DeviceContracts, measure_cold_launches
from .exact import add_exact_figures
from .harness.clock import CudaEventTimer, DeviceTimer
from .harness.control import matched_stream, measure_controls
from .harness.delay import Delay
from .harness.errors import ContextLostError, MeasurementError, MissingToolError
from .harness.gpu_monitor import GpuMonitor
from .harness.measure import Samples, ThrottledError, measure_graph_cold, measure_host_dispatch
from .harness.quiet import QuietCard
from .harness.records import Control, Status
from .harness.stats.summary import median
from .harness.stopping import Sampling
from .journal import Journal, part_of_peer
from .long_runs import add_long_runs
from .peers.beside import PeerProvider
from .peers.contained import contained
from .progress import Progress
from .providers import CHAINS, PROVIDERS, Prepared, Provider, Series, extra_providers
from .results import Results

SAMPLING = Sampling(min_samples=30, max_samples=60, warmup_s=0.015, max_s=0.25)
"""The cap leaves all but the longest steps 30 samples; docs/measuring.md has what a night takes with it."""

HOST_SAMPLING = Sampling(min_samples=30, max_samples=30, warmup_s=0.005, max_s=0.25)

MATCHED_SAMPLING = Sampling(min_samples=10, max_samples=12, warmup_s=0.015, max_s=0.1)
"""A matched stream is shown beside a number and judges nothing; four are measured per case."""

SPARE_BYTES = 2 * 2**30
"""Left free on the card: CUDA graphs, the control streams' buffers and what the allocator cannot fill."""

IMPOSSIBLE = 0.98
"""A cold result below this share of its roofline time moved fewer bytes than the op must: it was not cold, or did not
do its work. The 2 % allow for the interval of the control that the roofline comes from."""

CONTROLLED = frozenset(
    {
        ("recoverssm", "verify"),
        ("recoverssm", "commit_state"),
        ("recoverssm", "commit"),
        ("recoverssm_pdl", "verify"),
        ("full_state", "verify"),
    }
)
"""Series that get a control stream of their own bytes, mix and grid."""


def measure_cases(
    cases: Sequence[BenchCase],
    seed: int,
    device: torch.device,
    results: Results,
    progress: Progress,
    journal: Journal,
    contracts: DeviceContracts = GRAPH_COLD,
    monitor: GpuMonitor | None = None,
    followed: frozenset[str] = frozenset(),
    delay: Delay | None = None,
    peers: Sequence[PeerProvider] = (),
) -> list[Control]:
    """Measure every case in an order drawn from the seed, between two rounds of controls; returns those.

    Parts that the journal holds are left out; one that raises or loses the context is in it as failed. Each peer is a
    part of its own in each case, so that nothing that it does costs anybody else a number. The second round of controls
    is absent where it could not be measured: nobody knows then whether the card drifted.

    Raises:
        ContextLostError: after that part.
    """
    timer, card = CudaEventTimer(device), QuietCard(monitor.throttle_us) if monitor else QuietCard()
    controls = measure_controls(device, timer=timer, card=card)
    journal.note_controls(controls)
    best_bytes_per_s = max(control.bytes_per_s for control in controls)
    process = GpuProcess(
        seed,
        device,
        best_bytes_per_s,
        results,
        contracts,
        timer=timer,
        card=card,
        monitor=monitor,
        followed=followed,
        delay=delay,
        peers=peers,
    )
    order = list(cases)
    random.Random(seed).shuffle(order)
    parts = [part for case in order for part in process.parts(case)]
    progress.expect(len(parts))
    for part in parts:
        if journal.is_finished(part.name):
            progress.case_ended(part.name, "finished by an earlier process")
            continue
        progress.case_started(part.name)
        with journal.part(part.name):
            outcome, lost = _contained(process, part, journal.blame(part.name), results)
        progress.case_ended(part.name, outcome)
        if lost:
            raise ContextLostError(f"{part.name}: {lost}")
    try:
        return controls + measure_controls(device, when="end", start=controls, timer=timer, card=card)
    except (MeasurementError, torch.OutOfMemoryError):
        return controls


@dataclass(frozen=True, slots=True)
class Part:
    """What is measured, or fails, as a whole; both return a line for people, ``fail`` for a reason."""

    name: str
    measure: Callable[[], str]
    fail: Callable[[str], str]


def _contained(process: "GpuProcess", part: Part, blame: str | None, results: Results) -> tuple[str, str | None]:
    """A line for people, and why the context is lost, if it is; the part then has no numbers."""
    if blame is not None:
        return part.fail(blame), None
    before, raised = results.sizes, None
    try:
        outcome = part.measure()
    except Exception as error:
        # Past the guards inside: whatever it is, it costs this part.
        raised = f"{type(error).__name__}: {first_line(error)}"
    lost = process.why_lost()
    if lost is None and raised is None:
        return outcome, None
    results.cut_back(before)
    reason = f"raised {raised}" if lost is None else f"lost the CUDA context: {raised or lost}"
    return part.fail(reason), lost


class GpuProcess:
    """One process on one GPU.

    Args:
        best_bytes_per_s: the fastest of this process's control streams: the roofline.
        timer: of this device; CUDA events by default.
        card: judges blocks of samples.
        monitor: is held off while host time is taken.
        followed: names of cases that get a long run.
        delay: lengthens every graph-cold window, but not those of controls and matched streams.
        peers: other projects' kernels, measured beside the case's own providers.
    """

    def __init__(
        self,
        seed: int,
        device: torch.device,
        best_bytes_per_s: float,
        results: Results,
        contracts: DeviceContracts = GRAPH_COLD,
        *,
        timer: DeviceTimer | None = None,
        card: QuietCard | None = None,
        monitor: GpuMonitor | None = None,
        followed: frozenset[str] = frozenset(),
        delay: Delay | None = None,
        peers: Sequence[PeerProvider] = (),
    ) -> None:
        self._seed, self._device = seed, device
        self._timer = timer or CudaEventTimer(device)
        self._card, self._monitor = card or QuietCard(), monitor
        self._best_bytes_per_us = best_bytes_per_s / 1e6
        self._l2_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
        self._results, self._contracts, self._followed = results, contracts, followed
        self._delay, self._peers = delay, peers

    def parts(self, case: BenchCase) -> list[Part]:
        """The case's own providers, and each peer that has something to measure of it, in an order drawn for it."""
        parts = [Part(case.name, partial(self.measure_case, case), partial(self.fail_case, case))]
        for peer in self._peers:
            if self._contracts_of(peer).under(case, peer.series_names):
                measure = partial(self._measure_beside, peer, case)
                fail = partial(self._give_up, peer, case, "failed")
                parts.append(Part(part_of_peer(case.name, peer.name), measure, fail))
        random.Random(self._case_seed(case)).shuffle(parts)
        return parts

    def _case_seed(self, case: BenchCase) -> int:
        return zlib.crc32(f"{self._seed}/{case.name}".encode())

    def measure_case(self, case: BenchCase) -> str:
        """Everything of one case but its peers; returns a line for people."""
        add_exact_figures(case, self._results)
        case_seed = self._case_seed(case)
        providers = self._providers(case)
        random.Random(case_seed).shuffle(providers)
        outcome = "; ".join(
            f"{provider.name} {self._measure_provider(provider, case, case_seed)}" for provider in providers
        )
        if case.name in self._followed:
            add_long_runs(case, self._device, self._timer.capture, self._results)
        if case.name in state_sizes.CASES:
            state_sizes.add_state_sizes(case, self._device, self._results)
        return outcome

    def fail_case(self, case: BenchCase, reason: str) -> str:
        """Only the exact figures; every series of every provider failed for this reason. Touches no device."""
        add_exact_figures(case, self._results)
        for provider in self._providers(case):
            self._give_up(provider, case, "failed", reason)
        return f"failed: {reason}"

    def _measure_beside(self, peer: PeerProvider, case: BenchCase) -> str:
        """One peer on one case."""
        with contained():
            try:
                reason = peer.unsupported(case, self._device)
            except Exception as error:
                why = f"unsupported raised {type(error).__name__}: {first_line(error)}"
                return self._give_up(peer, case, "failed", why)
            if reason is not None:
                return self._give_up(peer, case, "skipped", reason)
            return self._measure_provider(peer, case, self._case_seed(case))

    def _providers(self, case: BenchCase) -> list[Provider]:
        providers = [*PROVIDERS, *([] if self._contracts.lean else extra_providers(case, self._device))]
        return [one for one in providers if self._contracts_of(one).under(case, one.series_names)]

    def _contracts_of(self, provider: Provider) -> DeviceContracts:
        """Of a chain, for a launch by itself has nothing to begin beside, and of peers: graphs alone."""
        in_graphs = provider in CHAINS or isinstance(provider, PeerProvider)
        return self._contracts.in_graphs() if in_graphs else self._contracts

    def why_lost(self) -> str | None:
        """What the device says when it can no longer be used by this process; None when it can."""
        try:
            torch.cuda.synchronize(self._device)
            torch.cuda.mem_get_info(self._device)
        except Exception as error:
            return f"{type(error).__name__}: {first_line(error)}"
        return None

    def _measure_provider(self, provider: Provider, case: BenchCase, case_seed: int) -> str:
        needed, available = provider.needed_bytes(case, self._l2_bytes), available_bytes(self._device)
        if needed > available and gc.collect():  # what others' objects still hold in circles
            available = available_bytes(self._device)
        if needed > available:
            reason = f"needs {needed / 2**30:.1f} GiB of device memory, {available / 2**30:.1f} GiB are free"
            return self._give_up(provider, case, "skipped", reason)
        checklist = Checklist(case.name, provider.name, COMPILED)
        try:
            prepared = provider.prepare(case, self._device, case_seed, self._l2_bytes)
            prepared.check(checklist)
        except torch.OutOfMemoryError as error:
            return self._give_up(provider, case, "skipped", f"does not fit the card: {first_line(error)}")
        except Exception as error:
            # Whatever a kernel or its compiler raises costs this case its numbers, not the process its record.
            checklist.raised(error)
        self._results.checks += checklist.checks
        if reason := failure_reason(checklist.checks):
            return self._give_up(provider, case, "failed", f"correctness: {reason}")
        medians = self._measure_series(provider, case, prepared, case_seed)
        return ", ".join(f"{op} {value:.1f} us" for op, value in medians.items())

    def _give_up(self, provider: Provider, case: BenchCase, status: Status, reason: str) -> str:
        for op, contract in self._contracts_of(provider).under(case, provider.series_names):
            self._results.add_without_value(op, provider.name, case.name, contract, status, reason)
        return f"{status}: {reason}"

    def _measure_series(
        self, provider: Provider, case: BenchCase, prepared: Prepared, case_seed: int
    ) -> dict[str, float]:
        medians = {}
        checklist = Checklist(case.name, provider.name, COMPILED)
        order = self._contracts_of(provider).series_under(case, prepared.series())
        random.Random(case_seed).shuffle(order)
        for series in order:
            try:
                if series.contract == "host-dispatch":
                    samples = self._sample_host(series)
                    self._results.add_samples(series.op, provider.name, case.name, series.contract, samples)
                elif series.contract == "nvbench-cold":
                    self._add_device_samples(provider, case, series, measure_cold_launches(series, self._device))
                else:
                    samples = self._sample_device(series)
                    self._add_device_samples(provider, case, series, samples)
                    medians[series.op] = median(samples.values_us)
            except MeasurementError as error:
                status: Status = "skipped" if isinstance(error, MissingToolError) else "invalid"
                taken = error.samples if isinstance(error, ThrottledError) else None
                self._results.add_without_value(
                    series.op, provider.name, case.name, series.contract, status, first_line(error), taken
                )
            self._check_finite(series, prepared, checklist)
        self._results.checks += checklist.checks
        return dict(sorted(medians.items()))

    def _sample_host(self, series: Series) -> Samples:
        with self._monitor.held() if self._monitor else nullcontext():
            return measure_host_dispatch(series.calls[0], sampling=HOST_SAMPLING)

    def _sample_device(self, series: Series) -> Samples:
        return measure_graph_cold(
            series.calls,
            sampling=SAMPLING,
            timer=self._timer,
            restore=series.restore,
            num_kernels=series.num_kernels,
            card=self._card,
            delay=self._delay,
        )

    def _add_device_samples(self, provider: Provider, case: BenchCase, series: Series, samples: Samples) -> None:
        value_us, cost = median(samples.values_us), series.cost
        roofline_us = cost.total_bytes / self._best_bytes_per_us
        facts: dict[str, object] = {
            "read_bytes": cost.read_bytes,
            "write_bytes": cost.write_bytes,
            "roofline_pct": 100 * roofline_us / value_us if cost.total_bytes else None,
        }
        if value_us < IMPOSSIBLE * roofline_us:
            facts["status"] = "invalid"
            facts["reason"] = (
                f"impossible: {value_us:.2f} us for {cost.total_bytes} bytes, which take {roofline_us:.2f} us at "
                "the best bandwidth of this process; the buffers were not cold, or the op left out work"
            )
        elif not self._contracts.lean and series.contract == "graph-cold" and (provider.name, series.op) in CONTROLLED:
            facts["control_pct"] = self._control_pct(series, value_us)
        self._results.add_samples(series.op, provider.name, case.name, series.contract, samples, **facts)

    def _control_pct(self, series: Series, value_us: float) -> float | None:
        """Share of its matched control stream; None where no such stream can be measured."""
        try:
            control_us = matched_stream(
                series.cost.read_bytes,
                series.cost.write_bytes,
                device=self._device,
                num_programs=series.num_programs,
                sampling=MATCHED_SAMPLING,
            )
        except MeasurementError:  # the control's failure says nothing against the op's own samples
            return None
        return None if control_us is None else 100 * control_us / value_us

    def _check_finite(self, series: Series, prepared: Prepared, checklist: Checklist) -> None:
        """Look at what the timed calls left, then let the next series find what this one found."""
        try:
            checklist.count("state", "non_finite", prepared.num_non_finite(), f"outputs and states after {series.op}")
            if series.restore is not None:
                series.restore()
        except Exception as error:
            checklist.raised(error)


def available_bytes(device: torch.device) -> int:
    """Device memory that a case may take: what is free, and what torch's allocator holds without using it."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) - SPARE_BYTES
