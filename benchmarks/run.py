"""``python -m benchmarks.run``: one measuring process, one record.

Heavy imports wait for the command: Triton decides at import time whether kernels are compiled or interpreted, and that
depends on whether there is a GPU.
"""

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from .harness.closed_pipes import outlive_readers
from .harness.command_line import CommandLine, CommitOption, ProviderOption, ProvidersOption, peer_arguments
from .harness.parent import end_with_parent
from .harness.records import Calibration

if TYPE_CHECKING:
    from .cases import BenchCase
    from .cold_launches import DeviceContracts

PASS, USAGE, MISSING, INVALID, BROKEN = 0, 2, 3, 4, 5  # as in ci/exits.py, which this program must not import

EXAMPLE = "Example: python -m benchmarks.run --set smoke --case '*_b32_*' --out build/record.json"

NO_GPU = "no GPU: exact figures, kernels under Triton's interpreter, torch reference on the CPU"

app = CommandLine(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog=EXAMPLE)
def run(
    case_set: Annotated[
        str | None, typer.Option("--set", help="Set of cases: smoke, pr, nightly, roofline, league or published.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON file of the record; its samples go beside it as Parquet.")
    ] = None,
    case: Annotated[str, typer.Option(help="Glob over case names; several with commas.")] = "*",
    seed: Annotated[int | None, typer.Option(help="Of values, slots and orders; drawn when not given.")] = None,
    commit: CommitOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished process of --out.")] = False,
    contracts: Annotated[
        str | None,
        typer.Option(help="Contracts for device time: graph-cold, nvbench-cold, or both with a comma. [the set's own]"),
    ] = None,
    lean: Annotated[
        bool,
        typer.Option("--lean", help="Leave out what no gate judges: host times, matched streams, chained launches."),
    ] = False,
    providers: ProvidersOption = "none",
    provider: ProviderOption = None,
    list_cases: Annotated[bool, typer.Option("--list", help="Print the cases (without --set of all) and end.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be measured and end.")] = False,
    estimate: Annotated[bool, typer.Option("--estimate", help="Print how long it would take and end.")] = False,
    store: Annotated[str, typer.Option(help="Where --estimate finds earlier nights.")] = "out/store",
    delay_pct: Annotated[
        float | None,
        typer.Option(
            min=0.1, max=100, help="Make every graph-cold window so much longer; the record is for calibration alone."
        ),
    ] = None,
    collection: Annotated[str | None, typer.Option(hidden=True)] = None,
    started: Annotated[str, typer.Option(hidden=True)] = "fresh",
) -> None:
    """Measure cases in this process and write one record.

    With a GPU: checks against float64, then device and host times. Without: exact figures, kernels checked under
    Triton's interpreter, and times of the torch reference. Takes no lock: `ci nightly` holds it while it runs this.
    Every finished case is kept at once in a journal beside --out; after a crash, the same command with --seed and
    --resume goes on.

    Exit codes: 0 measured; 2 usage; 3 nothing selected; 4 a check failed or a value is invalid (the record is written);
    5 broken environment; 75 a case lost the CUDA context (it is noted as failed; --resume measures the others).
    """
    end_with_parent()
    console = Console()
    has_gpu = _choose_kernels()  # before anything imports Triton
    if list_cases:
        _end(console, _listing(case_set, case))
    case_set, cases = _select(case_set, case)
    _require_known(providers, provider or ())
    if estimate:
        _end(console, _estimate(store, case_set, len(cases)))
    if dry_run:
        _end(console, _plan(case_set, cases, has_gpu, seed, _contracts(contracts, case_set, lean), out))
    if out is None:
        _stop(USAGE, "--out: expected a file for the record (or --list to see the cases)")
    if out.exists():
        _stop(USAGE, f"--out: {out} exists; records are never overwritten, give another name or remove it")
    _require_writable(out)
    _require_journal(out, resume, seed)
    if not has_gpu:
        _say(console, NO_GPU)
    if delay_pct is not None and not has_gpu:
        _stop(USAGE, "--delay-pct: expected a GPU, whose windows become longer; there is none")
    drawn = secrets.randbelow(2**31) if seed is None else seed
    command = _command(case_set, case, drawn, commit, contracts, lean, delay_pct, out)
    command[-2:-2] = peer_arguments(providers, [Path(where).name for where in provider or []])
    chosen = _contracts(contracts, case_set, lean)
    calibration = None
    if collection is not None or delay_pct is not None:
        calibration = Calibration(collection=collection or "by hand", delay_pct=delay_pct)
    peers = (providers, tuple(provider or ()))
    failures = _measure(case_set, cases, drawn, commit, chosen, command, out, console, started, calibration, peers)
    _say(console, f"record: {out}", *failures)
    if failures:
        _stop(INVALID, f"{len(failures)} checks or series failed; the record says which, and holds no number for them")


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _end(console: Console, lines: list[str]) -> NoReturn:
    _say(console, *lines)
    raise typer.Exit(PASS)


def _choose_kernels() -> bool:
    """Interpret kernels where there is no GPU; refuse to time interpreted ones where there is. Whether there is."""
    try:
        import torch
    except ImportError as error:
        _stop(BROKEN, f"torch cannot be imported: {error}; run `make setup`")
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
        torch.set_num_threads(1)  # tiny tensors: more threads only get in each other's way
        return False
    if os.environ.get("TRITON_INTERPRET") == "1":
        _stop(BROKEN, "TRITON_INTERPRET is set, but there is a GPU: unset it, or hide the GPU (CUDA_VISIBLE_DEVICES=)")
    return True


def _select(case_set: str | None, pattern: str) -> "tuple[str, list[BenchCase]]":
    try:
        from .cases import SETS, NothingSelectedError, UnknownNameError, select
    except ImportError as error:
        _stop(BROKEN, f"{error}; run `make setup`")
    if case_set is None:
        _stop(USAGE, f"--set: expected one of {', '.join(SETS)}; --list without --set names the cases of each")
    try:
        return case_set, select(case_set, pattern)
    except UnknownNameError as error:
        _stop(USAGE, str(error))
    except NothingSelectedError as error:
        _stop(MISSING, str(error))


def _listing(case_set: str | None, pattern: str) -> list[str]:
    """One line for each case of a set, or for each set and its cases."""
    from .cases import NothingSelectedError, select_by_set

    if case_set is not None:
        return [f"{one.name}  {one.stands_for}" for one in _select(case_set, pattern)[1]]
    try:
        sets = select_by_set(pattern)
    except NothingSelectedError as error:
        _stop(MISSING, str(error))
    return [line for name in sets for line in (f"set: {name}", *_listing(name, pattern))]


def _estimate(spec: str, case_set: str, num_cases: int) -> list[str]:
    from .estimate import estimate_process
    from .harness.errors import StoreError
    from .harness.store import open_store

    try:
        found = estimate_process(open_store(spec, writable=False), case_set, num_cases)
    except StoreError as error:
        _stop(BROKEN, f"--store: {error}")
    lines = [f"{model}: {one.process_s:.0f} s, as in night {one.from_night}" for model, one in found.items()]
    return lines or [f"no estimate: {spec} holds no night of set {case_set} yet (another one: --store)"]


def _contracts(text: str | None, case_set: str, lean: bool) -> "DeviceContracts":
    from .cold_launches import UnknownContractError, choose_contracts

    try:
        return choose_contracts(text, case_set, lean=lean)
    except UnknownContractError as error:
        _stop(USAGE, str(error))


def _plan(
    case_set: str,
    cases: "list[BenchCase]",
    has_gpu: bool,
    seed: int | None,
    chosen: "DeviceContracts",
    out: Path | None,
) -> list[str]:
    """What a run would do; nothing is written and no kernel is launched."""
    lines = [f"set: {case_set}, {len(cases)} cases"]
    if has_gpu:
        lines.append(f"contracts for device time: {', '.join(chosen.always)}")
        lines += ["nothing that no gate judges"] if chosen.lean else []
        cold = sorted(chosen.cold_cases.intersection(case.name for case in cases))
        lines += [f"nvbench-cold for: {', '.join(cold)}"] if cold else []
    else:
        lines.append(NO_GPU)
    return [*lines, f"seed: {'drawn' if seed is None else seed}", f"record: {out or 'give --out'}"]


def _require_known(names: str, files: Sequence[str]) -> None:
    from .peers.discovery import UnknownPeerError, choose

    try:
        choose(names, files)
    except UnknownPeerError as error:
        _stop(USAGE, str(error))


def _require_writable(out: Path) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _stop(BROKEN, f"--out: {out.parent} cannot be made: {error.strerror}")
    if not os.access(out.parent, os.W_OK):
        _stop(BROKEN, f"--out: {out.parent} cannot be written")


def _require_journal(out: Path, resume: bool, seed: int | None) -> None:
    path = out.with_suffix(".journal")
    if resume and seed is None:
        _stop(USAGE, "--resume: give the --seed of the unfinished process as well")
    if path.exists() and not resume:
        _stop(USAGE, f"--out: {path} is an unfinished process: --resume goes on with it, or remove it")


def _measure(
    case_set: str,
    cases: "list[BenchCase]",
    seed: int,
    commit: str | None,
    contracts: "DeviceContracts",
    command: list[str],
    out: Path,
    console: Console,
    started: str,
    calibration: Calibration | None,
    peers: tuple[str, Sequence[str]],
) -> list[str]:
    from .harness.errors import CONTEXT_LOST_EXIT, ContextLostError
    from .journal import JournalBusyError, journal_path
    from .own_library import StrangeLibraryError
    from .process import Request, measure, write_record

    if started not in ("fresh", "forked"):
        _stop(USAGE, f"--started: expected fresh or forked, got {started!r}")
    request = Request(case_set, cases, seed, commit, command, started, contracts, calibration, *peers)
    try:
        record, samples, failures = measure(request, console, journal_path(out))
    except ContextLostError as error:
        typer.echo(f"lost the CUDA context in {error}", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(CONTEXT_LOST_EXIT)  # an ordinary end would call into the lost context, and may hang or abort there
    except (JournalBusyError, StrangeLibraryError) as error:
        _stop(BROKEN, str(error))
    except Exception as error:
        # Past the cases' own guards: the device, the driver or the environment itself.
        console.print_exception()
        _stop(BROKEN, f"{type(error).__name__}: {error}; run `python -m ci doctor`")
    try:
        write_record(out, record, samples)
    except OSError as error:
        _stop(BROKEN, f"--out: {out} cannot be written: {error.strerror}; --resume writes it without measuring again")
    journal_path(out).unlink(missing_ok=True)
    return failures


def _command(
    case_set: str,
    pattern: str,
    seed: int,
    commit: str | None,
    contracts: str | None,
    lean: bool,
    delay_pct: float | None,
    out: Path,
) -> list[str]:
    """What repeats this process, its seed included; folders of this machine are nobody's business."""
    command = ["python", "-m", "benchmarks.run", "--set", case_set, "--case", pattern, "--seed", str(seed)]
    command += ["--commit", commit] if commit else []
    command += ["--contracts", contracts] if contracts else []
    command += ["--lean"] if lean else []
    command += ["--delay-pct", f"{delay_pct:g}"] if delay_pct is not None else []
    return [*command, "--out", out.name]


def _stop(code: int, message: str) -> NoReturn:
    """End with a message that is the last line, where a parent looks for the reason."""
    typer.echo(message, err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    outlive_readers()
    app()
