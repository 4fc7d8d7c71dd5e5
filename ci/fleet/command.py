"""``ci nightly --executor slurm``: shards on a cluster, then one night of what came back."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from rich.console import Console

from benchmarks.cases import BenchCase
from benchmarks.harness.errors import StoreError
from ci.exits import BrokenEnvironmentError, Exit, Interrupted, UsageError
from ci.nightly import Options, Result, build_page, open_to_write, own
from ci.processes import interruptible
from ci.shards import merge
from ci.whole_files import replace_file

from .config import load_fleet
from .night import FleetNight, Hours
from .slurm import Scheduler, Slurm

NIGHT_FILE = "fleet-night.txt"


def nightly_on_cluster(
    options: Options,
    cases: Sequence[BenchCase],
    night: str | None,
    file: Path | None,
    console: Console,
    scheduler: Scheduler | None = None,
    hours: Hours = Hours(),  # noqa: B008, it holds nothing that changes
) -> Result:
    """Measure on the nodes that ``file`` names, judge, store, show. Interrupted, ``--resume`` asks for what is missing.

    Raises:
        CommandError: with its exit code; what shards measured stays below ``--out``.
    """
    if file is None:
        raise UsageError("--fleet: expected a file that names partitions", "docs/operating.md has one to copy")
    if options.shard is not None:
        raise UsageError("--shard: the file of --fleet says how many shards there are")
    fleet, store = load_fleet(file), open_to_write(options.store)
    folder = options.out.resolve()
    with own(options.out):
        scheduler = scheduler or Slurm(folder / "logs")
        name = _name(folder / NIGHT_FILE, night, resume=options.resume)
        fleet_night = FleetNight(fleet, scheduler, store, folder, console, hours)
        try:
            with interruptible():
                messages = fleet_night.run(options, cases, name)
                nights, told, code = merge(store, name, options.pattern, options.out)
        except Interrupted as signal:
            hint = f"{signal}: shards that have ended are kept; go on with the same command and --resume"
            return Result(Exit.INTERRUPTED, messages=[hint])
        except (StoreError, OSError) as error:
            raise BrokenEnvironmentError(str(error), "go on with the same command and --resume") from error
        result = Result(code, nights, messages=[*messages, *told])
        if options.page:
            build_page(store, options.out / "site", result)
        return result


def _name(path: Path, asked: str | None, *, resume: bool) -> str:
    if resume and path.exists():
        return path.read_text(encoding="utf-8").strip()
    if resume:
        raise UsageError(f"--resume: nothing to go on with, {path} does not exist")
    name = asked or f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{token_hex(3)}"
    replace_file(path, f"{name}\n".encode())
    return name
