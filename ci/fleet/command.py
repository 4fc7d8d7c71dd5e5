"""``ci nightly --executor slurm``: shards on a cluster, then one night of what came back."""

import shutil
from collections.abc import Sequence

from rich.console import Console

from benchmarks.cases import BenchCase
from benchmarks.harness.errors import StoreError
from ci.exits import WORST_FIRST, BrokenEnvironmentError, Exit, Interrupted, MissingDataError, UsageError
from ci.nightly import Result, build_page, open_to_write, own
from ci.options import Options
from ci.processes import interruptible
from ci.shards import merge

from .begun import begin
from .config import Fleet
from .night import FleetNight, Hours
from .slurm import Scheduler, Slurm


def nightly_on_cluster(
    options: Options,
    cases: Sequence[BenchCase],
    night: str | None,
    fleet: Fleet,
    console: Console,
    scheduler: Scheduler | None = None,
    hours: Hours = Hours(),  # noqa: B008, it holds nothing that changes
) -> Result:
    """Measure on the nodes of ``fleet``, judge, store, show. Interrupted, ``--resume`` asks for what is missing.

    Raises:
        CommandError: with its exit code; what shards measured stays below ``--out``.
    """
    if fleet.control and shutil.which(fleet.control[0]) is None:  # it would fail on every node, and quarantine all
        raise UsageError(f"control: expected a program that this host has too, got {fleet.control[0]}")
    store, folder = open_to_write(options.store), options.out.resolve()
    with own(options.out):
        scheduler = scheduler or Slurm(folder / "logs")
        name = begin(options, fleet, night, folder)
        fleet_night = FleetNight(fleet, scheduler, store, folder, console, hours)
        try:
            with interruptible():
                fleet_night.run(options, cases, name)
                result = _judge(fleet_night, name, options)
        except Interrupted as signal:
            hint = f"{signal}: shards that have ended are kept; go on with the same command and --resume"
            return Result(Exit.INTERRUPTED, messages=[hint])
        except (StoreError, OSError) as error:
            raise BrokenEnvironmentError(str(error), "go on with the same command and --resume") from error
        if options.page:
            build_page(store, options.out / "site", result)
        return result


def _judge(measured: FleetNight, name: str, options: Options) -> Result:
    """What came back as a night of each GPU model; a pool from which nothing came has none, and its code says so."""
    try:
        nights, told, code = merge(measured.store, name, options.pattern, options.out)
    except MissingDataError as error:
        nights, told, code = [], [str(error)], Exit.MISSING
    return Result(min(code, measured.code, key=WORST_FIRST.index), nights, messages=[*measured.messages, *told])
