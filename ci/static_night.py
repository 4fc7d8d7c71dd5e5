"""The compiled part of a night: kernels of some of its cases for every architecture, each with a record of its own."""

import shutil
from collections.abc import Sequence

import msgspec

from benchmarks.harness.record_files import decode_record, samples_path
from benchmarks.harness.records import Record
from benchmarks.harness.samples import read_samples
from benchmarks.patterns import matches

from .config import StaticConfig
from .exits import BrokenEnvironmentError, CommandError, MissingDataError
from .measuring import Measuring
from .night import Tonight
from .session import save
from .static import compile_static


def compile_kernels(measuring: Measuring, program: Sequence[str]) -> None:
    """Compile what the night's cases launch and store the records. What goes wrong is a warning, and the night goes on.

    A kernel that does not compile is in its record, and judged there. Nothing is done twice when a night is resumed.
    """
    state, config = measuring.state, measuring.config.static
    if state.static or (state.plan.shard and state.plan.shard.index > 1):  # the first shard compiles for all
        return
    plan, folder = state.plan, measuring.out / "static"
    records = folder / "records"
    shutil.rmtree(records, ignore_errors=True)
    try:
        _, report = compile_static(
            plan.case_set,
            patterns(plan.pattern, config),
            ",".join(config.archs),
            folder,
            measuring.console,
            program,
            more=("--records", str(records.resolve()), *(("--commit", plan.commit) if plan.commit else ())),
            cap_s=config.cap_s,
        )
    except MissingDataError:
        measuring.console.print(f"nothing to compile: no case of this night matches {config.case}", markup=False)
        return
    except CommandError as error:
        measuring.warnings.append(f"nothing was compiled: {error}")
        return
    measuring.warnings += [f"not compiled or not read: {problem}" for problem in report["problems"]]
    for path in sorted(records.glob("*.json")):
        record = msgspec.structs.replace(decode_record(path.read_bytes()), shard=plan.shard)
        try:
            measuring.keep(record, read_samples(samples_path(path)))
        except OSError as error:
            raise BrokenEnvironmentError(f"{path}: compiled, but not stored: {error}") from error
        state.static[record.environment.gpu_model] = record.id
    save(state, measuring.out)
    shutil.rmtree(records, ignore_errors=True)


def patterns(pattern: str, config: StaticConfig) -> tuple[str, ...]:
    """Globs that a case must match, all of them, for its kernels to be compiled."""
    return (config.case,) if pattern == "*" else (config.case, pattern)


def tonight(
    case_set: str, pattern: str, config: StaticConfig, selected: Sequence[str], records: Sequence[Record]
) -> Tonight:
    """What a night of one architecture consists of."""
    chosen = [name for name in selected if all(matches(name, glob) for glob in patterns(pattern, config))]
    return Tonight(case_set, config.case if pattern == "*" else pattern, chosen, records)
