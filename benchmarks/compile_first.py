"""``python -m benchmarks.compile_first``: compile what a set launches, in parallel, into Triton's cache on disk.

Workers are forked from this process, which imports once and touches no GPU. Each builds its cases small (few layers,
one buffer set) and calls every op once: kernels are specialised on sizes that stay as they are, so that the measuring
processes find them compiled, and say in their records how many they did not. Nothing here is measured or kept.
"""

import os
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated

import torch
import typer

from .cases import BenchCase, NothingSelectedError, UnknownNameError, select
from .checks import COMPILED, Checklist, failure_reason, first_line
from .harness.clean_parent import NotCleanError, require_clean
from .harness.command_line import CommandLine, ProviderOption, ProvidersOption
from .harness.compilations import CompilationCounter
from .harness.parent import PARENT_VARIABLE, end_with_parent
from .long_runs import CASES, launch_once
from .peers.beside import PeerProvider
from .peers.contained import contained
from .peers.discovery import FoundPeer, UnknownPeerError, choose, find_peers
from .providers import PROVIDERS, Provider, extra_providers
from .state_sizes import CASES as SIZED
from .state_sizes import step_errors

PASS, USAGE, MISSING, INVALID, BROKEN = 0, 2, 3, 4, 5  # as in ci/exits.py

MAX_WORKERS = 8
"""Each has a CUDA context (0.5 GiB) and the memory of one small case."""

MIN_LAYERS = 3
"""Every second layer's gates start at an address that is no multiple of 16 for odd numbers of heads: more than one."""

STREAM_BYTES = 2**20

app = CommandLine(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog="Example: python -m benchmarks.compile_first --set nightly --workers 8")
def run(
    case_set: Annotated[str, typer.Option("--set", help="Set of cases, as for benchmarks.run.")],
    case: Annotated[str, typer.Option(help="Glob over case names.")] = "*",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default half the cores, at most 8.")] = None,
    providers: ProvidersOption = "none",
    provider: ProviderOption = None,
) -> None:
    """Compile what the cases launch, into Triton's cache. What a peer does not get compiled is no failure.

    Exit codes: 0 all compiled; 2 usage; 3 nothing selected; 4 not all compiled; 5 no GPU, or unfit to fork.
    """
    end_with_parent()
    try:
        cases = select(case_set, case)
        choose(providers, provider or ())
        require_clean(library_threads=True)
    except (UnknownNameError, UnknownPeerError, NothingSelectedError, NotCleanError) as error:
        typer.echo(str(error), err=True)
        codes = {UnknownNameError: USAGE, UnknownPeerError: USAGE, NothingSelectedError: MISSING}
        raise typer.Exit(codes.get(type(error), BROKEN)) from None
    followed = CASES.get(case_set, frozenset())
    shares = share_out(distinct(cases, followed | SIZED), workers or default_workers())
    parent = os.getpid()
    find = partial(find_peers, providers, provider or ())  # in the workers: other people's imports may start threads
    children = [_fork(partial(_work, parent, number, share, followed, find)) for number, share in enumerate(shares)]
    codes_seen = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    num_failed = sum(code != 0 for code in codes_seen)
    typer.echo(f"{len(shares)} workers, {num_failed} of them incomplete (exit codes {codes_seen})")
    raise typer.Exit(exit_code(codes_seen))


class WrongResultError(Exception):
    """A peer did not do what the reference does: its measuring would have no numbers."""


def exit_code(workers: Sequence[int]) -> int:
    """Of the whole, by those of its workers: where none could work, the environment is at fault."""
    if all(code == BROKEN for code in workers):
        return BROKEN
    return INVALID if any(workers) else PASS


def default_workers() -> int:
    """Half of the cores this process may use, at most ``MAX_WORKERS``."""
    return max(1, min(MAX_WORKERS, len(os.sched_getaffinity(0)) // 2))


def distinct(cases: Sequence[BenchCase], followed: frozenset[str]) -> list[BenchCase]:
    """Of cases that differ in acceptance alone one, for the others compile nothing of their own; all ``followed``."""
    kept: dict[tuple[object, ...], BenchCase] = {}
    for case in sorted(cases, key=lambda one: one.name not in followed):
        own = (case.shape, case.num_requests, case.state_dtype)
        if case.name in followed or own not in kept:
            kept[own if own not in kept else (*own, case.name)] = case
    return list(kept.values())


def share_out(cases: Sequence[BenchCase], num_workers: int) -> list[list[BenchCase]]:
    """Cases that share kernels to one worker, the largest families first to the worker with least; none is empty.

    Kernels differ by heads, window and state dtype; within such a family by batch, which chooses the launch row.
    """
    families: dict[tuple[int, int, str], list[BenchCase]] = {}
    for case in cases:
        key = (case.shape.num_heads, case.shape.spec_query_len, case.state_dtype)
        families.setdefault(key, []).append(case)
    shares: list[list[BenchCase]] = [[] for _ in range(min(num_workers, len(families)))]
    for family in sorted(families.values(), key=len, reverse=True):
        min(shares, key=len).extend(family)
    return shares


def small(case: BenchCase) -> BenchCase:
    """The case with few layers, as many as leave kernels specialised as they are: 1 and multiples of 16 are special."""
    num_layers = case.num_layers
    if num_layers > MIN_LAYERS:
        num_layers = 16 if num_layers % 16 == 0 else MIN_LAYERS
    return replace(case, num_layers=num_layers)


def _fork(work: Callable[[], int]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = BROKEN
    try:
        code = work()
    except Exception as error:
        typer.echo(f"{type(error).__name__}: {first_line(error)}", err=True)
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _work(
    parent: int,
    number: int,
    cases: Sequence[BenchCase],
    followed: frozenset[str],
    find: Callable[[], Sequence[FoundPeer]],
) -> int:
    os.environ[PARENT_VARIABLE] = str(parent)
    end_with_parent()
    if not torch.cuda.is_available():
        typer.echo("no GPU: torch sees none; run `python -m ci doctor`", err=True)
        return BROKEN
    device = torch.device("cuda", torch.cuda.current_device())
    code = PASS
    with CompilationCounter() as counter:
        steps = [(case.name, partial(launch_all, small(case), device)) for case in cases]
        steps += [
            (f"{case.name}, long run", partial(launch_once, case, device)) for case in cases if case.name in followed
        ]
        steps += [(f"{case.name}, sizes", partial(step_errors, case, device)) for case in cases if case.name in SIZED]
        if number == 0:
            steps.insert(0, ("control streams", partial(_launch_streams, device)))
        for name, launch in steps:
            code = code if _compiled(name, launch) else INVALID
        for found in find():
            typer.echo(f"worker {number}: {found.facts.name}: {_compile_peer(found, cases, device)}")
    summary = counter.summary()
    if summary is not None:
        typer.echo(
            f"worker {number}: {summary.num_compiled} kernels compiled in {summary.compile_s:.1f} s, "
            f"{summary.num_cached} were in the cache; {len(cases)} cases"
        )
    return code


def _compiled(name: str, launch: Callable[[], None]) -> bool:
    """Whether it could be launched. Where not, the measuring process will meet it too, and says so in its record."""
    try:
        launch()
    except Exception as error:
        typer.echo(f"{name}: {type(error).__name__}: {first_line(error)}", err=True)
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def _compile_peer(found: FoundPeer, cases: Sequence[BenchCase], device: torch.device) -> str:
    """What came of it, for people: its failures are no failure of this program."""
    if found.peer is None:
        return found.facts.missing
    peer = PeerProvider(found.peer)
    try:
        with contained():
            able = [case for case in cases if peer.unsupported(case, device) is None]
            launches = [(f"{case.name} {peer.name}", partial(_launch_peer, peer, case, device)) for case in able]
            num_right = sum(_compiled(name, launch) for name, launch in launches)
    except Exception as error:
        return f"{type(error).__name__}: {first_line(error)}"
    return f"{num_right} of {len(able)} cases compiled and right, {len(cases) - len(able)} not for it"


def _launch_peer(peer: PeerProvider, case: BenchCase, device: torch.device) -> None:
    if reason := launch_provider(peer, small(case), device):
        raise WrongResultError(reason)


def launch_all(case: BenchCase, device: torch.device) -> None:
    """``launch_provider`` for every provider of this library."""
    for provider in (*PROVIDERS, *extra_providers(case, device)):
        launch_provider(provider, case, device)


def launch_provider(provider: Provider, case: BenchCase, device: torch.device) -> str:
    """Check a provider and call every op once, on one buffer set, as a measuring process does.

    Returns what its failed checks say; empty when all passed.
    """
    prepared = provider.prepare(case, device, zlib.crc32(case.name.encode()), 0)
    checklist = Checklist(case.name, provider.name, COMPILED)
    prepared.check(checklist)  # it calls ops with tensors of its own
    for series in prepared.series():
        series.calls[0]()
        if series.restore is not None:
            series.restore()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return failure_reason(checklist.checks)


def _launch_streams(device: torch.device) -> None:
    """The controls and a stream of their kind, as a measuring process launches them, but small."""
    from .harness.control import matched_stream, measure_controls
    from .harness.quiet import QuietCard
    from .harness.stopping import Sampling

    sampling = Sampling(min_samples=6, max_samples=6, warmup_s=0.0, max_s=0.1)
    measure_controls(device, num_bytes=STREAM_BYTES, sampling=sampling, card=QuietCard())
    matched_stream(STREAM_BYTES, STREAM_BYTES, device=device, sampling=sampling)


if __name__ == "__main__":
    app()
