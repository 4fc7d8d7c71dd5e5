"""Which GPUs are here, found without touching one where NVML answers; and whether torch can use them."""

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .exits import BrokenEnvironmentError, UsageError

CPU = "cpu"
DRIVER_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
PROBE_CAP_S = 120

# Run in a child: a CUDA context of our own would sit on the GPU through the whole night.
_PROBE = """
import json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": [], "error": None}
try:
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        torch.ones(1, device=f"cuda:{i}").add_(1).item()
        found["gpus"].append({"uuid": str(p.uuid), "name": p.name})
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or the CPU in its place."""

    uuid: str  # as NVML prints it; "cpu"
    name: str

    def child_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment of a process that is to see this GPU alone, or none."""
        return {**env, "CUDA_VISIBLE_DEVICES": "" if self.uuid == CPU else self.uuid, "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True)
class TorchView:
    """What a fresh process with torch sees. ``error`` says why a GPU that torch knows of cannot be used."""

    torch: str
    cuda: str | None
    gpus: tuple[Gpu, ...]
    error: str | None


def find_gpus(env: Mapping[str, str] | None = None, nvml: Any = None) -> list[Gpu]:
    """All GPUs this process may use, in NVML's order, and of a GPU that is cut up (MIG) its parts; else the CPU alone.

    NVML answers without touching a GPU on which another run may be measuring. torch is asked, in a child, only when
    NVML cannot answer although a driver is here, or CUDA_VISIBLE_DEVICES narrows the choice.
    """
    env = os.environ if env is None else env
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return [Gpu(CPU, "no GPU (CUDA_VISIBLE_DEVICES is empty)")]
    if visible is None:
        by_nvml, _ = _ask_nvml(nvml)
        if by_nvml:
            return by_nvml
        if not any(Path(name).exists() for name in DRIVER_FILES):
            return [Gpu(CPU, "no GPU")]
    return list(ask_torch(env).gpus) or [Gpu(CPU, "no GPU that torch can use")]


def silent_gpus(nvml: Any = None) -> list[str]:
    """GPUs that the driver counts and that do not answer, each with what it says; they are none of ``find_gpus``."""
    return _ask_nvml(nvml)[1]


def choose_gpus(wanted: str | None, present: list[Gpu]) -> list[Gpu]:
    """``None``: the first, or the CPU; ``all``; ``cpu``; or UUIDs with commas, with or without ``GPU-`` or ``MIG-``.

    Raises:
        UsageError: a GPU that is not here, naming those that are. BrokenEnvironmentError: all, and there is none.
    """
    if wanted is None:
        return present[:1]
    if wanted == "all":
        if all(gpu.uuid == CPU for gpu in present):
            raise BrokenEnvironmentError(
                f"--gpus all: {present[0].name}", "python -m ci doctor; without --gpus it measures what a CPU can"
            )
        return present
    by_name = {CPU: Gpu(CPU, "the CPU, as asked")}
    for gpu in present:
        by_name[gpu.uuid] = by_name[gpu.uuid.removeprefix("GPU-").removeprefix("MIG-")] = gpu
    chosen: dict[str, Gpu] = {}
    for name in (part.strip() for part in wanted.split(",")):
        if name not in by_name:
            known = ", ".join(f"{g.uuid} ({g.name})" for g in present)
            raise UsageError(f"--gpus: expected all, cpu or UUIDs out of {known}; got {name!r}")
        chosen[by_name[name].uuid] = by_name[name]
    return list(chosen.values())


def require_usable(gpu: Gpu) -> None:
    """Raises BrokenEnvironmentError when torch cannot compute on this GPU; says what to do. Touches the GPU briefly."""
    if gpu.uuid == CPU:
        return
    view = ask_torch(gpu.child_env(os.environ))
    if view.error:
        raise BrokenEnvironmentError(f"GPU {gpu.uuid}: torch {view.torch} cannot use it: {view.error}")
    if not view.gpus:
        build = "a CPU build" if view.cuda is None else f"built for CUDA {view.cuda}"
        hint = "install a CUDA build of torch, or measure without a GPU: --gpus cpu"
        raise BrokenEnvironmentError(f"GPU {gpu.uuid} ({gpu.name}): torch {view.torch} ({build}) does not see it", hint)


def ask_torch(env: Mapping[str, str]) -> TorchView:
    """What torch sees under ``env``, in a fresh process.

    Raises:
        BrokenEnvironmentError: torch cannot even be imported, with the last line of what it said.
    """
    command = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=PROBE_CAP_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BrokenEnvironmentError(f"torch: no answer within {PROBE_CAP_S} s about its GPUs") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BrokenEnvironmentError(f"torch: cannot be used (exit {done.returncode}): {last}", "make setup")
    found = json.loads(done.stdout.splitlines()[-1])
    gpus = tuple(Gpu(_with_prefix(g["uuid"]), g["name"]) for g in found["gpus"])
    return TorchView(found["torch"], found["cuda"], gpus, found["error"])


def _with_prefix(uuid: str) -> str:
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _ask_nvml(nvml: Any) -> tuple[list[Gpu], list[str]]:
    """GPUs that answer; and of each that does not what to tell."""
    # No answer at all is an answer here: the caller asks torch next.
    try:
        nvml = importlib.import_module("pynvml") if nvml is None else nvml
        nvml.nvmlInit()
    except Exception:
        return [], []
    gpus: list[Gpu] = []
    silent: list[str] = []
    try:
        count = nvml.nvmlDeviceGetCount()
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                parts = _mig_parts(nvml, handle) or [handle]
                gpus += [Gpu(_text(nvml.nvmlDeviceGetUUID(h)), _text(nvml.nvmlDeviceGetName(h))) for h in parts]
            except Exception as error:  # "GPU is lost": the driver counts it still
                silent.append(f"GPU {index + 1} of {count} does not answer: {error}")
    except Exception:
        return [], []
    finally:
        nvml.nvmlShutdown()
    return gpus, silent


def _mig_parts(nvml: Any, handle: Any) -> list[Any]:
    """Handles of the parts of a GPU that is cut up; none of one that is whole, or that cannot be cut."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
        places = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if current else 0
    except Exception:
        return []
    parts = []
    for place in range(places):
        with contextlib.suppress(Exception):  # an empty place is an error of NVML's
            parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
    return parts


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
