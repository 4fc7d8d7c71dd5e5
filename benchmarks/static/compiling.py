"""Compiles kernels for cards that are not here, each in a process forked from this one, several at a time.

LLVM aborts the whole process where a target lacks an instruction: that costs one kernel, named with what was said last.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime import driver

from .cubin import Examined, Tools, examine
from .occupancy import load_limits
from .planning import Job, arch_number

COMPILE_S = 300  # then the child is ended; a kernel takes seconds

_SAID_BYTES = 20_000  # of what a child said, to find the reason in
_MARKS = ("LLVM ERROR", "fatal", "error", "Error")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of a kernel and their source lines, or why there are none. ``was_cached``: nothing was compiled."""

    examined: Examined | None
    failure: str | None = None
    was_cached: bool = False


def compile_all(
    jobs: Sequence[Job], cache_folder: Path, tools: Tools, workers: int, on_done: Callable[[Job, Outcome], None]
) -> list[Outcome]:
    """The outcome of every job, in their order. What compiled before from the same sources is read from the cache."""
    cache_folder.mkdir(parents=True, exist_ok=True)
    outcomes: dict[int, Outcome] = {}
    waiting = []
    for number, job in enumerate(jobs):
        examined = _read(cache_folder / f"{cache_key(job, tools)}.json")
        if examined is None:
            waiting.append(number)
        else:
            outcomes[number] = Outcome(examined, was_cached=True)
            on_done(job, outcomes[number])
    with tempfile.TemporaryDirectory(prefix="static-") as scratch:
        for number, failure in _in_children(jobs, waiting, cache_folder, tools, Path(scratch), workers):
            job = jobs[number]
            examined = None if failure else _read(cache_folder / f"{cache_key(job, tools)}.json")
            outcomes[number] = Outcome(examined, failure or (None if examined else "ended without figures"))
            on_done(job, outcomes[number])
    return [outcomes[number] for number in range(len(jobs))]


def find_tools() -> Tools:
    """Triton's own copies of NVIDIA's programs, or those that its environment variables name."""
    return Tools(_tool("cuobjdump"), _tool("nvdisasm"))


def ptxas_version(arch: str) -> str | None:
    """Of the assembler that Triton takes for this architecture; None where it is missing."""
    path = _ptxas(arch)
    if path is None:
        return None
    lines = _output(path, "--version").split("\n")
    return next((line.split("release ")[1].strip() for line in lines if "release " in line), "unknown")


def unknown_arch(arch: str) -> str | None:
    """Why nothing can be compiled or judged for this architecture; None where all is known."""
    if arch not in load_limits():
        return f"{arch}: no limits in benchmarks/static/limits.toml, which has {', '.join(load_limits())}"
    path = _ptxas(arch)
    if path is None:
        return f"{arch}: ptxas is missing from Triton {triton.__version__}"
    if f"'{arch}'" not in _output(path, "--help"):
        return f"{arch}: {path.name} {ptxas_version(arch)} does not know it"
    return None


def cache_key(job: Job, tools: Tools) -> str:
    """Of everything that decides the figures: sources, compiler, tools, target and what is compiled."""
    parts = (_source_hash(), triton.__version__, ptxas_version(job.arch), tools.missing, job.arch, job.name)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@cache
def _source_hash() -> str:
    """Of all kernels, which share device functions, and of what turns binaries into figures."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for folder in ("recoverssm/kernels", "benchmarks/static"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".py", ".toml"}:
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _in_children(
    jobs: Sequence[Job], numbers: Sequence[int], cache_folder: Path, tools: Tools, scratch: Path, workers: int
) -> Iterator[tuple[int, str | None]]:
    """Number and failure of each job, as it ends."""
    left, running = list(reversed(numbers)), {}
    while left or running:
        while left and len(running) < workers:
            number = left.pop()
            said = scratch / f"{number}.txt"
            running[_fork(jobs[number], cache_folder, tools, said, scratch)] = (number, said)
        pid, status = os.wait()
        number, said = running.pop(pid)
        yield number, _failure(os.waitstatus_to_exitcode(status), said)


def _fork(job: Job, cache_folder: Path, tools: Tools, said: Path, scratch: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(COMPILE_S)
        with said.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ["TRITON_CACHE_DIR"] = str(scratch / "triton")  # ours is by source; Triton's would only grow
        _write(cache_folder / f"{cache_key(job, tools)}.json", compile_job(job, tools))
        code = 0
    except BaseException as error:  # a child must not go on as its parent
        with suppress(OSError):
            os.write(2, f"\n{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def compile_job(job: Job, tools: Tools) -> Examined:
    """Compile in this process, which is a compiler for one architecture from then on, and examine the binary."""
    target = GPUTarget("cuda", arch_number(job.arch), 32)
    stand_in = {"get_current_target": target, "get_current_device": 0, "get_current_stream": 0}
    driver.set_active(SimpleNamespace(**{name: lambda *_, value=value: value for name, value in stand_in.items()}))
    launch = job.launch
    compiled = launch.kernel.run(*job.tensors, *launch.scalars, grid=(1,), warmup=True, **launch.constants)
    return examine(
        compiled.asm["cubin"],
        num_warps=compiled.metadata.num_warps,
        dynamic_shared_bytes=compiled.metadata.shared,
        limits=load_limits()[job.arch],
        tools=tools,
    )


def _failure(code: int, said: Path) -> str | None:
    if code == 0:
        return None
    with suppress(OSError), said.open("rb") as file:
        file.seek(max(0, said.stat().st_size - _SAID_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").split("\n") if line.strip()]
        reasons = [line for line in lines if any(mark in line for mark in _MARKS)] or lines
        if code < 0:
            reasons = [line for line in lines if "LLVM ERROR" in line] or reasons
            return f"{signal.Signals(-code).name}: {reasons[-1] if reasons else 'without a word'}"
        if reasons:
            return reasons[-1]
    return f"exit code {code}, without a word"


def _read(path: Path) -> Examined | None:
    """None where there is nothing, or something broken, which is written anew."""
    try:
        return Examined(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write(path: Path, examined: Examined) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(asdict(examined)))
    temporary.replace(path)


def _ptxas(arch: str) -> Path | None:
    """From Triton 3.9 on, the one named for Blackwell assembles for Hopper too."""
    with suppress(RuntimeError):  # it is missing
        return Path(get_ptxas(arch_number(arch)).path)
    return None


def _tool(name: str) -> Path | None:
    try:
        return Path(getattr(knobs.nvidia, name).path)
    except (AttributeError, RuntimeError):
        return None


@cache
def _output(path: Path, option: str) -> str:
    return subprocess.run([path, option], capture_output=True, text=True, check=False, timeout=60).stdout
