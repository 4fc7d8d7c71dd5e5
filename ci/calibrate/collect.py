"""``ci calibrate collect``: one occasion of many processes of the same code, some of them slowed down on purpose.

Processes as they are show how often a gate would raise a false alarm; those with a delay of known size, what it would
find. Both kinds run in one random, even order, so that whatever the card does meanwhile meets them alike, and a
collection that is cut short has its share of each.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from benchmarks.harness.environment import commit_of
from benchmarks.harness.errors import StoreError
from benchmarks.harness.ids import new_id
from ci.config import load_nightly
from ci.exits import BrokenEnvironmentError, CommandError, Exit, Interrupted, UsageError
from ci.gpus import CPU, Gpu, choose_gpus, find_gpus
from ci.measuring import ROOT, Measuring
from ci.nightly import measure_gpu, open_to_write, own
from ci.options import Options
from ci.processes import interruptible
from ci.session import STATE_FILE, Plan, State, load, make_seeds, save


@dataclass(frozen=True, slots=True)
class Asked:
    """A collection as asked for.

    Attributes:
        options: how processes are measured, as of a night; ``processes`` counts those that are not slowed down.
        delays: percent of the slowdowns; each gets ``each`` processes.
        max_minutes: no process is started later than this after the beginning.
    """

    options: Options
    delays: Sequence[float] = ()
    each: int = 0
    max_minutes: float | None = None


@dataclass(slots=True)
class Collected:
    """What came of it."""

    code: Exit
    collection: str
    done: int
    total: int
    messages: list[str] = field(default_factory=list)


def collect(asked: Asked, console: Console) -> Collected:
    """Measure what is missing, each record into the store as soon as it is whole.

    Raises:
        CommandError: with its exit code; records of finished processes are kept.
    """
    begun_s, options = time.monotonic(), asked.options
    store = open_to_write(options.store)
    with own(options.out):
        state, gpus = _begin(asked)
        measuring = Measuring(state, options.out, store, load_nightly(), options.command, options.fork_server, console)
        if asked.max_minutes is not None:
            measuring.until_s = begun_s + 60 * asked.max_minutes
        try:
            with interruptible():
                save(state, options.out)
                for gpu in gpus:
                    measure_gpu(gpu, measuring, options)
        except Interrupted as signal:
            return _collected(Exit.INTERRUPTED, measuring, [f"{signal}"], options)
        except CommandError as error:
            error.next_step = error.next_step or _resume_hint(options)
            raise
        except (StoreError, OSError) as error:
            raise BrokenEnvironmentError(f"{error}; {state.progress()}", _resume_hint(options)) from error
        troubles = [*measuring.failures, *measuring.quarantined]
        code = Exit.INVALID if troubles else Exit.BROKEN if measuring.warnings else Exit.PASS
        return _collected(code, measuring, [*troubles, *measuring.warnings], options)


def schedule(seed: int, plain: int, delays: Sequence[float], each: int) -> tuple[list[int], dict[int, float]]:
    """Seeds of all processes in the order in which they run, and the delays of some of them, in percent."""
    kinds: list[float | None] = [*([None] * plain), *(pct for pct in delays for _ in range(each))]
    seeds, rng = make_seeds(seed, len(kinds)), random.Random(seed)
    counts: dict[float | None, int] = {None: plain, **dict.fromkeys(delays, each)}
    places, numbers = list[float](), dict.fromkeys(counts, 0)
    for kind in kinds:  # the nth of k comes in the nth of k equal parts of the whole
        places.append((numbers[kind] + rng.random()) / counts[kind])
        numbers[kind] += 1
    order = sorted(range(len(kinds)), key=places.__getitem__)
    of_seed = {seeds[index]: kinds[index] for index in order}
    return list(of_seed), {one: pct for one, pct in of_seed.items() if pct is not None}


def _begin(asked: Asked) -> tuple[State, list[Gpu]]:
    options, present = asked.options, find_gpus()
    if options.resume:
        return _resumed(options, present)
    gpus = choose_gpus(options.gpus, present)
    if asked.delays and asked.each and any(gpu.uuid == CPU for gpu in gpus):
        raise UsageError("--delays: expected a GPU, whose windows become longer", "without a GPU: --delays ''")
    seeds, delays = schedule(options.seed, options.processes, asked.delays, asked.each)
    if not seeds:
        raise UsageError("--processes and --each: expected at least one process")
    plan = Plan(
        id=new_id(options.commit or commit_of(ROOT / "recoverssm")),
        case_set=options.case_set,
        pattern=options.pattern,
        store=options.store,
        commit=options.commit,
        gpus=[gpu.uuid for gpu in gpus],
        seeds=seeds,
        fork=options.fork,
        delays=delays,
    )
    return State(plan, {}), gpus


def _resumed(options: Options, present: list[Gpu]) -> tuple[State, list[Gpu]]:
    old = load(options.out)
    if old is None or old.plan.delays is None:
        raise UsageError(f"--resume: {options.out / STATE_FILE} holds no collection to go on with")
    asked, begun = ((one.case_set, one.pattern, one.store) for one in (options, old.plan))
    if asked != begun:
        raise UsageError(f"--resume: begun with set, case and store {begun}, now asked for {asked}")
    return old, choose_gpus(",".join(old.plan.gpus), present)


def _collected(code: Exit, measuring: Measuring, messages: list[str], options: Options) -> Collected:
    plan, records = measuring.state.plan, measuring.state.records
    done, total = sum(map(len, records.values())), len(plan.seeds) * len(plan.gpus)
    kinds = _counts(plan.delays or {}, [seed for own in records.values() for seed in own])
    messages.append(f"collection {plan.id}: {done} of {total} processes are in {options.store} ({kinds})")
    if done < total:
        messages.append(f"go on, on the same start of the same machine: {_resume_hint(options)}")
    else:
        measuring.clear()
    return Collected(code, plan.id, done, total, messages)


def _counts(delays: Mapping[int, float], seeds: Sequence[int]) -> str:
    found = [delays.get(seed, 0.0) for seed in seeds]
    return ", ".join(f"{found.count(pct)} {f'+{pct:g} %' if pct else 'as they are'}" for pct in sorted(set(found)))


def _resume_hint(options: Options) -> str:
    case = f" --case '{options.pattern}'" if options.pattern != "*" else ""
    where = f"--out {options.out} --store {options.store}"
    return f"python -m ci calibrate collect --set {options.case_set}{case} {where} --resume"
