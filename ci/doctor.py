"""Examines this machine: what a nightly would find here, what it would not, why, and how to repair it.

Starts with the standard library alone, so that a missing package is a finding and not a traceback.
"""

import datetime as dt
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .exits import CommandError, Exit
from .gpus import CPU, Gpu, ask_torch, find_gpus, silent_gpus

if TYPE_CHECKING:
    from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("torch", "triton", "numpy", "scipy", "pyarrow", "filelock", "rich", "typer", "msgspec")
DISK_WANTED_BYTES = 2 << 30  # a year of nights of 40 cases takes about half of it
DISK_NEEDED_BYTES = 100 << 20

Level = Literal["ok", "limited", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing examined. *limited*: the nightly runs without it; *broken*: it cannot run."""

    name: str
    level: Level
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Examination:
    """All findings, and what they mean for a nightly."""

    findings: list[Finding]
    will_run: list[str]
    will_not_run: list[str]

    @property
    def code(self) -> Exit:
        return Exit.BROKEN if any(f.level == "broken" for f in self.findings) else Exit.PASS


def examine(store: str) -> Examination:
    """Look at everything; a question that fails is a finding."""
    gpus = _gpus()
    on_gpu = gpus[0].uuid != CPU
    questions: list[tuple[str, Callable[[], Finding | list[Finding]]]] = [
        ("python", _python),
        ("packages", _packages),
        ("nvml", lambda: _nvml(on_gpu=on_gpu)),
        ("nvbench", lambda: _nvbench(on_gpu=on_gpu)),
        ("gpu", lambda: _gpu(gpus)),
        ("torch", lambda: _torch(gpus, on_gpu=on_gpu)),
        ("lock", lambda: _locks(gpus)),
        ("disk", lambda: _disk(store)),
        ("configuration", _configuration),
        ("store", lambda: _store(store)),
        ("git", _git),
        ("page", _page),
        ("browser", _browser),
    ]
    if not on_gpu:
        questions.insert(6, ("interpreter", _interpreter))
    findings: list[Finding] = []
    for name, question in questions:
        try:
            answer = question()
        except CommandError as error:
            answer = Finding(name, "broken", str(error), error.next_step)
        except Exception as error:  # any other failure of a question is itself what was found
            answer = Finding(name, "broken", f"{type(error).__name__}: {error}")
        findings += answer if isinstance(answer, list) else [answer]
    return Examination(findings, *_meaning(findings, on_gpu=on_gpu))


def report(examination: Examination, console: "Console") -> None:
    """One line for each finding, with its repair below; then what runs and what does not."""
    marks = {"ok": "ok", "limited": "limited", "broken": "BROKEN"}
    lines = []
    for finding in examination.findings:
        lines.append(f"{marks[finding.level]:<8} {finding.name:<14} {finding.found}")
        lines += [f"{'':<24}fix: {finding.fix}"] if finding.fix else []
    lines += [f"will run:     {what}" for what in examination.will_run]
    lines += [f"will not run: {what}" for what in examination.will_not_run]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _meaning(findings: list[Finding], *, on_gpu: bool) -> tuple[list[str], list[str]]:
    broken = [f.name for f in findings if f.level == "broken"]
    if broken:
        return [], [f"the nightly, until this is repaired: {', '.join(broken)}"]
    levels = {f.name: f.level for f in findings}
    will, will_not = [], []
    if on_gpu:
        will.append("the nightly on the GPU: checks, device times, host times, exact figures, verdicts")
    else:
        will.append(
            "the nightly on the CPU: checks under Triton's interpreter, exact figures, reference times, verdicts"
        )
        will_not.append("device times: there is no GPU that torch can use")
    (will if levels.get("page") == "ok" else will_not).append("the page")
    return will, will_not


def _gpus() -> list[Gpu]:
    try:
        return find_gpus()
    except CommandError:  # _torch reports the same failure, with its repair
        return [Gpu(CPU, "no GPU")]


def _python() -> Finding:
    version = sys.version.split()[0]
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Finding("python", "ok", f"{version} at {sys.executable}")
    return Finding("python", "broken", f"{version}; supported are 3.11 to 3.13", "make setup PYTHON=python3.12")


def _packages() -> list[Finding]:
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    result = [Finding(name, "broken", "not installed", "make setup") for name in absent]
    versions = ", ".join(f"{name} {_version(name)}" for name in NEEDED if name not in absent)
    return result or [Finding("packages", "ok", versions)]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _nvml(*, on_gpu: bool) -> Finding:
    what = "clocks, power and throttling are not recorded" if on_gpu else "there is no GPU to watch either"
    if importlib.util.find_spec("pynvml") is None:
        return Finding("nvml", "limited", f"nvidia-ml-py is not installed: {what}", "make setup" if on_gpu else "")
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        fix = "install the NVIDIA driver's libraries" if on_gpu else ""
        return Finding("nvml", "limited", f"not usable ({error}): {what}", fix)
    try:
        driver = nvml.nvmlSystemGetDriverVersion()
        return Finding("nvml", "ok", f"driver {driver.decode() if isinstance(driver, bytes) else driver}")
    finally:
        nvml.nvmlShutdown()


def _nvbench(*, on_gpu: bool) -> Finding:
    if not on_gpu:
        return Finding("nvbench", "limited", "not used: there is no GPU to launch on")
    lost = "series under nvbench-cold are skipped"
    if not _installed("cuda.bench"):
        machine = platform.machine()
        if machine != "x86_64":
            return Finding("nvbench", "limited", f"cuda-bench has no wheel for {machine}: {lost}")
        return Finding("nvbench", "limited", f"cuda-bench is not installed: {lost}", "make setup")
    if not _installed("cuda.bindings"):
        fix = "install the cuda-bindings of the host's CUDA major version"
        return Finding("nvbench", "limited", f"cuda-bench is here without cuda-bindings: {lost}", fix)
    return Finding("nvbench", "ok", f"cuda-bench {_version('cuda-bench')}")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def _gpu(gpus: list[Gpu]) -> list[Finding]:
    level: Level = "limited" if gpus[0].uuid == CPU else "ok"
    found = [Finding("gpu", level, gpu.name if gpu.uuid == CPU else f"{gpu.name} {gpu.uuid}") for gpu in gpus]
    fix = "see dmesg for its Xid; reset it or restart the host"
    return found + [Finding("gpu", "limited", silent, fix) for silent in silent_gpus()]


def _torch(gpus: list[Gpu], *, on_gpu: bool) -> Finding:
    from benchmarks.harness.errors import LockHeldError
    from benchmarks.harness.lock import GpuLock

    try:
        with ExitStack() as stack:  # asking touches the GPUs, and would disturb a run on one of them
            for gpu in (g for g in gpus if g.uuid != CPU):
                stack.enter_context(GpuLock(gpu.uuid, command="python -m ci doctor"))
            view = ask_torch(os.environ)
    except (LockHeldError, OSError):
        return Finding("torch", "limited", f"{_version('torch')}, not tried: a GPU could not be had (see lock)")
    build = "CPU build" if view.cuda is None else f"CUDA {view.cuda}"
    if view.error:
        return Finding("torch", "broken", f"{view.torch} ({build}): {view.error}", "measure without it: --gpus cpu")
    if on_gpu and not view.gpus:
        fix = "install a CUDA build of torch on this host, then make setup KIND=gpu; or measure with --gpus cpu"
        return Finding("torch", "broken", f"{view.torch} ({build}) does not see {gpus[0].name}", fix)
    return Finding("torch", "ok", f"{view.torch} ({build}), sees {len(view.gpus)} GPUs")


def _interpreter() -> Finding:
    command = [sys.executable, "-W", "ignore", "-m", "ci.interpreter_probe"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    pair = f"Triton {_version('triton')} with numpy {_version('numpy')}"
    if done.returncode == 0:
        return Finding("interpreter", "ok", f"{pair} runs kernels on the CPU")
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return Finding("interpreter", "broken", f"{pair}: {last}", "install the pinned versions: make setup")


def _locks(gpus: list[Gpu]) -> list[Finding]:
    from benchmarks.harness.errors import LockHeldError
    from benchmarks.harness.lock import GpuLock, lock_folder

    result = []
    for gpu in (g for g in gpus if g.uuid != CPU):
        try:
            with GpuLock(gpu.uuid, command="python -m ci doctor"):
                result.append(Finding("lock", "ok", f"{gpu.uuid} is free; locks are in {lock_folder()}"))
        except LockHeldError as error:
            result.append(Finding("lock", "limited", str(error), "python -m ci nightly --wait SECONDS"))
        except OSError as error:
            result.append(Finding("lock", "broken", str(error.strerror)))
    return result


def _disk(store: str) -> Finding:
    from benchmarks.harness.store import is_url

    folder = ROOT if store.startswith("branch:") or is_url(store) else Path(store).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    found = f"{free / 2**30:.1f} GiB free at {folder}"
    if not os.access(folder, os.W_OK):
        return Finding("disk", "broken", f"{folder} cannot be written", "give another --store")
    if free < DISK_NEEDED_BYTES:
        return Finding("disk", "broken", found, "make room, or give another --store")
    return Finding("disk", "ok" if free >= DISK_WANTED_BYTES else "limited", found)


def _configuration() -> Finding:
    from benchmarks.cases import SETS

    from .config import NIGHTLY_FILE, THRESHOLDS_FILE, load_nightly
    from .policy import forgotten, load_policy

    config, policy = load_nightly(), load_policy()
    rows = len(policy.thresholds.limit)
    what = f"{config.processes} processes ({NIGHTLY_FILE.name}), {rows} rows of limits ({THRESHOLDS_FILE.name}), "
    what += f"{len(policy.known.regression)} known regressions, {len(policy.aliases.alias)} renamed cases"
    cases = {case.name for of_set in SETS.values() for case in of_set}
    if stale := forgotten(policy, cases, dt.datetime.now(dt.UTC).date()):
        return Finding(
            "configuration", "limited", f"{what}: {'; '.join(stale)}", "docs/operating.md, What owners decide"
        )
    return Finding("configuration", "ok", what)


def _store(store: str) -> Finding:
    from benchmarks.harness.store import open_store

    if store.startswith("branch:"):  # checking it out would change this machine
        if shutil.which("git") is None:
            return Finding("store", "broken", f"{store} needs git", "give a folder as --store and import it later")
        inside = ["git", "rev-parse", "--show-toplevel"]
        if subprocess.run(inside, capture_output=True, timeout=30, check=False).returncode != 0:
            return Finding(
                "store", "broken", f"{store}: {Path.cwd()} is in no git repository", "give a folder as --store"
            )
        return Finding("store", "ok", f"{store}, checked out when a night begins")
    opened = open_store(store, writable=False)
    nights = opened.recent_nights()
    accepted = [n for n in nights if n.accepted]
    last = f", last accepted {accepted[-1].id}" if accepted else ", none accepted: the next one is new"
    if opened.quarantined:
        bad = "; ".join(opened.quarantined)
        return Finding("store", "limited", f"{store}: unreadable: {bad}", "the next night sets it aside and exits 4")
    return Finding("store", "ok", f"{store}: {len(nights)} recent nights{last}")


def _git() -> Finding:
    command = ["git", "log", "-1", "--format=%h %cs"]
    fix = "name the commit: python -m ci nightly --commit SHA"
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
        status = ["git", "status", "--porcelain", "--untracked-files=no"]
        dirty = subprocess.run(status, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except FileNotFoundError:
        return Finding("git", "limited", "not installed: records carry the hash of the sources, and no commit", fix)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding("git", "limited", f"{last}: records carry the hash of the sources, and no commit", fix)
    changed = f", {len(dirty.splitlines())} files changed since" if dirty else ""
    return Finding("git", "ok", done.stdout.strip() + changed)


def _page() -> Finding:
    if importlib.util.find_spec("jinja2") is None:
        fix = "build it elsewhere from the store: python -m reports build --store STORE --out DIR"
        return Finding("page", "limited", "not installed: jinja2", fix)
    return Finding("page", "ok", f"jinja2 {_version('jinja2')}")


def _browser() -> Finding:
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if found is None:
        return Finding("browser", "limited", "no chromium: the page is not tested here", "install Debian's chromium")
    return Finding("browser", "ok", found)


def as_json(examination: Examination) -> dict[str, Any]:
    """For ``--json``."""
    return {**json.loads(json.dumps(asdict(examination))), "exit_code": int(examination.code)}
