"""Without a GPU: exact figures, kernels checked under Triton's interpreter, and times of the reference."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from .cases import BenchCase, kimi_k3
from .checks import INTERPRETED, Checklist, first_line
from .exact import add_exact_figures
from .harness.measure import measure_cpu_reference
from .harness.records import Status
from .harness.stopping import Sampling
from .journal import Journal, part_of_peer
from .peers.beside import PeerProvider
from .peers.contained import contained
from .progress import Progress
from .providers import PROVIDERS
from .providers.torch_reference import NAME, reference_calls
from .results import Results

MAX_REQUESTS, MAX_HEADS, MAX_LAYERS, MAX_VALUE_DIM = 2, 2, 2, 32
"""Sizes of a shrunken twin. Two of each tell rows, heads and layers apart; 32 value rows are several tiles."""

SAMPLING = Sampling(min_samples=6, max_samples=20, warmup_s=0.0, max_s=0.3)
DEVICE = torch.device("cpu")
REFERENCE_OPS = ("verify", "commit")


class PartBlamedError(Exception):
    """Stands for a crash seen earlier: the part ended a process and is not tried again."""


def shrunken(case: BenchCase) -> BenchCase:
    """The case with few requests, heads, value rows and layers: the same kernel configuration at interpreter speed."""
    shape = replace(
        case.shape,
        num_heads=min(case.shape.num_heads, MAX_HEADS),
        value_dim=min(case.shape.value_dim, MAX_VALUE_DIM),
    )
    num_requests, num_layers = min(case.num_requests, MAX_REQUESTS), min(case.num_layers, MAX_LAYERS)
    return replace(
        case,
        name=f"twin_h{shape.num_heads}_v{shape.value_dim}_l{num_layers}_b{num_requests}_t{shape.spec_query_len}"
        f"_a{case.mean_accepted:.2f}_{case.state_dtype}",
        stands_for=f"shrunken twin of {case.name} for a CPU; its times say nothing about a GPU",
        shape=shape,
        num_requests=num_requests,
        num_layers=num_layers,
    )


def reference_cases() -> list[BenchCase]:
    """The tiny cases that the torch reference is timed on, whatever the set."""
    return [shrunken(kimi_k3(8, 32, 8, 3.84, state_dtype)) for state_dtype in ("fp32", "bf16")]


def measure_cases(
    cases: Sequence[BenchCase],
    seed: int,
    results: Results,
    progress: Progress,
    journal: Journal,
    peers: Sequence[PeerProvider] = (),
) -> list[BenchCase]:
    """Check and count every case, time the reference and peers; returns the tiny cases that came in addition.

    Peers are checked and timed on the tiny cases alone. Times of interpreted kernels say nothing, of torch ops little.
    """
    twins: dict[tuple[int, str], list[BenchCase]] = {}
    for case in cases:
        add_exact_figures(case, results)
        # Kernels are compiled per window length and dtype; batch, heads and acceptance only change the grid.
        twins.setdefault((case.shape.spec_query_len, case.state_dtype), []).append(case)
    tiny_cases = reference_cases()
    progress.expect(len(twins) + len(tiny_cases) * (1 + len(peers)))
    for alike in twins.values():
        # The largest batch has a second row, and with it a null row to check.
        twin = shrunken(max(alike, key=lambda one: one.num_requests))
        _run_part(f"check {twin.name}", partial(_check_twin, twin, alike, seed, results), progress, journal)
    for tiny in tiny_cases:
        _run_part(f"time {tiny.name}", partial(_time_reference, tiny, seed, results), progress, journal)
        for peer in peers:
            measure = partial(_measure_peer, peer, tiny, seed, results)
            _run_part(part_of_peer(f"time {tiny.name}", peer.name), measure, progress, journal)
    return tiny_cases


def _run_part(part: str, measure: Callable[[str | None], str], progress: Progress, journal: Journal) -> None:
    if journal.is_finished(part):
        progress.case_ended(part, "finished by an earlier process")
        return
    progress.case_started(part)
    with journal.part(part):
        outcome = measure(journal.blame(part))
    progress.case_ended(part, outcome)


def _check_twin(twin: BenchCase, alike: Sequence[BenchCase], seed: int, results: Results, blame: str | None) -> str:
    shape = twin.shape
    detail = (
        f"Triton's interpreter on a shrunken twin: {twin.num_requests} requests, {shape.num_heads} heads, "
        f"V = {shape.value_dim}, {twin.num_layers} layers, K = {shape.key_dim}, T = {shape.spec_query_len}, "
        f"{twin.mean_accepted:.2f} accepted, {twin.state_dtype}; shared by cases of that T and dtype"
    )
    num_failed = 0
    for provider in PROVIDERS:
        checklist = Checklist(twin.name, provider.name, INTERPRETED, detail)
        try:
            if blame is not None:
                raise PartBlamedError(blame)
            prepared = provider.prepare(twin, DEVICE, zlib.crc32(f"{seed}/{twin.name}".encode()), 0)
            prepared.check(checklist)
            checklist.count("state", "non_finite", prepared.num_non_finite(), "outputs and states")
        except Exception as error:
            # Whatever a kernel or the interpreter raises costs these cases their numbers, not the process its record.
            checklist.raised(error)
        num_failed += sum(not check.passed for check in checklist.checks)
        for one in alike:
            results.checks += checklist.named(one.name)
    verdict = f"{num_failed} checks failed" if num_failed else "checks passed"
    return f"{verdict}, for {len(alike)} case{'s' if len(alike) > 1 else ''}"


def _time_reference(tiny: BenchCase, seed: int, results: Results, blame: str | None) -> str:
    if blame is not None:
        for op in REFERENCE_OPS:
            results.add_without_value(op, NAME, tiny.name, "cpu-reference", "failed", blame)
        return f"failed: {blame}"
    shown = []
    for op, call in reference_calls(tiny, seed).items():
        samples = measure_cpu_reference(call, sampling=SAMPLING)
        results.add_samples(op, NAME, tiny.name, "cpu-reference", samples)
        shown.append(f"torch {op} {results.measurements[-1].value:.0f} us")
    return ", ".join(shown)


def _measure_peer(peer: PeerProvider, tiny: BenchCase, seed: int, results: Results, blame: str | None) -> str:
    checklist = Checklist(tiny.name, peer.name, INTERPRETED)
    status: Status = "failed"
    before, reason = results.sizes, blame
    try:
        with contained():
            if reason is None and (reason := peer.unsupported(tiny, DEVICE)) is None:
                return _time_peer(peer, tiny, seed, results, checklist)
        status = "failed" if blame else "skipped"
    except Exception as error:
        # Other people's code: whatever it raises costs it its numbers.
        results.cut_back(before)
        reason = f"raised {type(error).__name__}: {first_line(error)}"
    for op, _ in peer.series_names:
        results.add_without_value(op, peer.name, tiny.name, "cpu-reference", status, reason)
    return f"{status}: {reason}"


def _time_peer(peer: PeerProvider, tiny: BenchCase, seed: int, results: Results, checklist: Checklist) -> str:
    prepared = peer.prepare(tiny, DEVICE, seed, 0)
    prepared.check(checklist)
    results.checks += checklist.checks
    for series in prepared.series():
        samples = measure_cpu_reference(series.calls[0], sampling=SAMPLING)
        results.add_samples(series.op, peer.name, tiny.name, "cpu-reference", samples)
        if series.restore is not None:
            series.restore()
    num_failed = sum(not check.passed for check in checklist.checks)
    return f"{num_failed} checks failed" if num_failed else "checks passed"
