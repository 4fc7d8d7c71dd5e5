"""The nightly job: lock each GPU, measure in fresh processes, judge against the last accepted night, store, show."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from benchmarks.harness.environment import commit_of
from benchmarks.harness.errors import BranchError, LockHeldError, StoreError, UnsentError
from benchmarks.harness.ids import new_id
from benchmarks.harness.lock import GpuLock
from benchmarks.harness.records import Night, Record
from benchmarks.harness.store import Store, open_store

from . import static_night
from .beside import read_alone
from .compiling import compile_first
from .config import load_nightly
from .counting import NIGHTLY_SET, count
from .exits import WORST_FIRST, BrokenEnvironmentError, CommandError, Exit, Interrupted, InUseError, UsageError
from .gone_gpus import gone_gpus
from .gpus import CPU, Gpu, choose_gpus, find_gpus, require_usable
from .history.layout import HISTORY
from .judged_night import Bench, judge_night, order_of_models
from .measuring import ROOT, Measuring
from .night import Tonight
from .options import Options
from .policy import Policy, load_policy
from .processes import interruptible
from .session import STATE_FILE, Plan, State, load, make_seeds, save
from .side_by_side import side_by_side

PAGE_CAP_S = 300
RECORD_BYTES = 1 << 20  # a process of 40 cases leaves about as much


@dataclass(slots=True)
class Result:
    """What came of it. ``messages`` are for people: what to know and what to do next."""

    code: Exit
    nights: list[Night] = field(default_factory=list)
    page: Path | None = None
    messages: list[str] = field(default_factory=list)


def run_nightly(options: Options, console: Console) -> Result:
    """Do all of it. Progress goes to ``console``; what was measured is kept whatever happens.

    Raises:
        CommandError: with its exit code; before or between measuring processes.
    """
    config, policy = load_nightly(), load_policy()
    store = open_to_write(options.store)
    with own(options.out):
        state, gpus = _begin(options)
        measuring = Measuring(state, options.out, store, config, options.command, options.fork_server, console)
        return _run(measuring, gpus, options, policy)


def _run(measuring: Measuring, gpus: Sequence[Gpu], options: Options, policy: Policy) -> Result:
    state, store = measuring.state, measuring.store
    try:
        with interruptible():
            save(state, options.out)
            if options.static:
                static_night.compile_kernels(measuring, options.static_command)
            _measure_all(gpus, measuring, options)
            result = _judge_and_store(measuring, gpus, options, policy)
            if options.page:
                build_page(store, options.out / "site", result)
            return result
    except Interrupted as signal:
        kept = f"{signal}: {state.progress()} and stored in {store.name}"
        return Result(Exit.INTERRUPTED, messages=[kept, f"go on: {_resume_hint(options)}"])
    except CommandError as error:
        error.next_step = error.next_step or _resume_hint(options)
        raise
    except (StoreError, OSError) as error:
        raise BrokenEnvironmentError(f"{error}; {state.progress()}", _resume_hint(options)) from error


def open_to_write(spec: str) -> Store:
    """The store, with room for a record. Raises BrokenEnvironmentError that names it."""
    try:
        store = open_store(spec)
        store.require_space(RECORD_BYTES)  # now, rather than after a process has measured in vain
        return store
    except (StoreError, OSError) as error:
        raise BrokenEnvironmentError(f"--store {spec}: {error}") from error


@contextmanager
def own(out: Path) -> Iterator[None]:
    """The folder is there, and no other run's: its state file has one writer. Raises BrokenEnvironmentError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / ".lock", timeout=0)
        lock.acquire()
    except Timeout as error:
        raise InUseError(f"--out {out}: another run is using this folder", "give another --out") from error
    except OSError as error:
        raise BrokenEnvironmentError(f"--out {out}: cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def _begin(options: Options) -> tuple[State, list[Gpu]]:
    old = load(options.out) if options.resume else None
    present = find_gpus()
    if old is None:
        if options.resume:
            raise UsageError(f"--resume: nothing to go on with, {options.out / STATE_FILE} does not exist")
        gpus = choose_gpus(options.gpus, present)
        plan = Plan(
            id=new_id(options.commit or commit_of(ROOT / "recoverssm")),
            case_set=options.case_set,
            pattern=options.pattern,
            store=options.store,
            commit=options.commit,
            gpus=[gpu.uuid for gpu in gpus],
            all_gpus=options.gpus == "all",
            seeds=make_seeds(options.seed, options.processes),
            fork=options.fork,
            shard=options.shard,
            cases=list(options.selected) if options.shard else [],
            providers=options.providers,
            provider_files=[_absolute(where) for where in options.provider_files],
        )
        return State(plan, {}), gpus
    if old.plan.delays is not None:
        raise UsageError(f"--resume: {options.out} holds a collection", "python -m ci calibrate collect --resume")
    if old.is_complete:
        raise UsageError(f"--resume: the night in {options.out} is complete: {', '.join(old.night_ids)}")
    asked = (options.case_set, options.pattern, options.store, options.shard)
    begun = (old.plan.case_set, old.plan.pattern, old.plan.store, old.plan.shard)
    if asked != begun:
        raise UsageError(f"--resume: begun with set, case, store and shard {begun}, now asked for {asked}")
    return old, choose_gpus(",".join(old.plan.gpus), present)


def _absolute(where: str) -> str:
    """``path:Class`` for a process that starts elsewhere."""
    path, _, name = where.rpartition(":")
    return f"{Path(path).resolve()}:{name}" if path else where


@contextmanager
def alone_on(gpu: Gpu, wait_s: float) -> Iterator[None]:
    """Hold the lock of a GPU that torch can use. The CPU has none: its times are never gated, so runs may overlap.

    Raises:
        BrokenEnvironmentError: another run holds it for longer than ``wait_s``, or torch cannot use it.
    """
    with ExitStack() as stack:
        if gpu.uuid != CPU:
            try:
                stack.enter_context(GpuLock(gpu.uuid, timeout_s=wait_s))
            except LockHeldError as error:
                raise InUseError(str(error), "wait for it: --wait SECONDS") from error
            require_usable(gpu)
        yield


def _measure_all(gpus: Sequence[Gpu], measuring: Measuring, options: Options) -> None:
    """Run what is missing on all GPUs, each under its lock: at once, or one after the other."""
    waiting = [gpu for gpu in gpus if measuring.state.missing(gpu.uuid)]
    if options.exclusive or len(waiting) < 2:
        for gpu in waiting:
            measure_gpu(gpu, measuring, options)
        return
    with ExitStack() as locks:
        for gpu in waiting:
            locks.enter_context(alone_on(gpu, options.wait_s))
        for gpu in waiting:  # one by one: the first compiles for its likes, and counting wants no company
            _prepare(gpu, measuring, options)
            read_alone(gpu, measuring, options.controls_command)
        measuring.at_once = True
        side_by_side(measuring.measure, waiting, measuring.stop)


def measure_gpu(gpu: Gpu, measuring: Measuring, options: Options) -> None:
    """Run what is missing on one GPU, under its lock. Raises as ``Measuring.measure``, and when the GPU is in use."""
    if not measuring.state.missing(gpu.uuid):
        return
    with alone_on(gpu, options.wait_s):
        _prepare(gpu, measuring, options)
        measuring.measure(gpu)


def _prepare(gpu: Gpu, measuring: Measuring, options: Options) -> None:
    if gpu.uuid != CPU and options.precompile:
        compile_first(gpu, measuring, options.compile_command)
    if options.counters and not measuring.state.records.get(gpu.uuid):
        arguments = ["--set", NIGHTLY_SET, "--large"]
        measuring.counted[gpu.uuid] = count(gpu, options.out / "counters", arguments, measuring.console)


def _judge_and_store(measuring: Measuring, gpus: Sequence[Gpu], options: Options, policy: Policy) -> Result:
    state, store = measuring.state, measuring.store
    # Here and not before measuring: an interrupted night would set a file aside, and the resumed one would not name it.
    store.check()
    ids = [record for gpu in state.plan.gpus for record in state.records.get(gpu, {}).values()]
    ids += state.static.values()
    records = store.records(ids)
    lost = set(ids) - {r.id for r in records} - {i for i in ids if any(i in note for note in store.quarantined)}
    measuring.quarantined += [f"record {record}: gone from the store" for record in sorted(lost)]
    result = Result(Exit.PASS)
    shard = state.plan.shard
    if all(record.is_static for record in records):
        reasons = "; ".join([*measuring.failures, *measuring.quarantined])
        result = Result(Exit.INVALID, messages=[f"no process left a record that can be read: {reasons}"])
    bench = Bench(store, measuring.config, policy, measuring.out)
    if shard:
        merging = f"python -m ci merge {shard.night} --store {store.name}"
        result.messages.append(f"shard {shard}: with the others in one store: {merging}")
        if measuring.failures or measuring.quarantined:
            result.code = Exit.INVALID
            result.messages += [*measuring.failures, *measuring.quarantined]
    models = () if shard else order_of_models(records, measuring.config.static.archs)
    gone = gone_gpus(store, gpus) if state.plan.all_gpus else []
    if untold := [one.said for one in gone if one.gpu_model is None or one.gpu_model not in models]:
        result.messages += untold
        result.code = min(Exit.MISSING, result.code, key=WORST_FIRST.index)
    for model in models:
        own = [r for r in records if r.environment.gpu_model == model]
        its_own = [one.said for one in gone if one.gpu_model in (None, model)]
        night = judge_night(bench, _tonight(measuring, options, own, its_own))
        result.nights.append(night)
        _store_night(measuring, night, result)
    if result.code != Exit.BROKEN:  # else --resume judges and stores again
        state.night_ids = [shard.night] if shard else [night.id for night in result.nights]
    save(state, options.out)
    if state.is_complete:
        measuring.clear()
    elif result.code == Exit.BROKEN:
        result.messages.append(f"all that was measured is stored; judge and store the night: {_resume_hint(options)}")
    elif measuring.failures or measuring.quarantined:
        result.messages.append(f"run the processes without a record again: {_resume_hint(options)}")
    result.messages = [*measuring.warnings, *result.messages]
    codes = [Exit(night.exit_code) for night in result.nights] + ([Exit.BROKEN] if measuring.warnings else [])
    result.code = min((*codes, result.code), key=WORST_FIRST.index)
    return result


def _tonight(measuring: Measuring, options: Options, records: Sequence[Record], gone: Sequence[str]) -> Tonight:
    if all(record.is_static for record in records):
        static = measuring.config.static
        return static_night.tonight(options.case_set, options.pattern, static, options.selected, records)
    asked = (options.case_set, options.pattern, options.selected)
    return Tonight(*asked, records, measuring.quarantined, measuring.failures, gone=gone)


def _store_night(measuring: Measuring, night: Night, result: Result) -> None:
    try:
        measuring.store.add_night(night)
    except (BranchError, UnsentError) as error:
        measuring.warnings.append(f"night {night.id}: {error}")  # written, and the message says how to publish it
    except (StoreError, OSError) as error:
        result.code = Exit.BROKEN
        result.messages.append(f"night {night.id}: {error}")


def build_page(store: Store, site: Path, result: Result) -> None:
    """The page of what ``store`` holds, where it can be built here; else a message says where."""
    command = [sys.executable, "-m", "reports", "build", "--store", store.name]
    command += ["--store", str(HISTORY)] if HISTORY.is_dir() else []
    command += ["--out", str(site)]
    if importlib.util.find_spec("jinja2") is None:
        result.messages.append(f"no page here (jinja2 is not installed); elsewhere: python {' '.join(command[1:])}")
        return
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=PAGE_CAP_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        result.messages.append(f"page not built: {error}")
        return
    last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
    if done.returncode in (Exit.PASS, Exit.INVALID):  # INVALID: built, but a file of a store could not be read
        result.page = (site / "index.html").resolve()
        if done.returncode == Exit.INVALID:
            result.messages.append(f"page built without some files: {last}")
    else:
        result.messages.append(f"page not built (exit {done.returncode}): {last}")


def _resume_hint(options: Options) -> str:
    case = f" --case '{options.pattern}'" if options.pattern != "*" else ""
    where = f"--out {options.out} --store {options.store}"
    where += f" --shard {options.shard} --night {options.shard.night}" if options.shard else ""
    return f"python -m ci nightly --set {options.case_set}{case} {where} --resume"
