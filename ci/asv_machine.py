"""What asv is told about this machine: a name that is the GPU model's, and versions that its pages can filter by.

asv's own description of a machine knows no GPU, but it keeps whatever else the file holds and copies it into each
result. Two hosts with the same GPU model share the name: they belong to one series, as everywhere here.
"""

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.harness.records import Environment

from .exits import BrokenEnvironmentError

API_VERSION = 1  # of asv's machine files
EXTRA_FIELDS = ("driver", "cuda", "torch", "triton")


def machine_file() -> Path:
    """Where asv 0.6 keeps its machines; it has no option for another place."""
    return Path.home() / ".asv-machine.json"


def describe(environment: Environment) -> dict[str, str]:
    """The entry for this machine: what tells two series apart, nothing that names a host."""
    entry = {
        "machine": environment.gpu_model,
        "gpu": environment.gpu_model,
        "os": f"Linux {environment.os_kernel or ''}".strip(),
        "arch": os.uname().machine,
        "cpu": environment.cpu_model or "",
        "num_cpu": str(os.cpu_count() or ""),
        "ram": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
    }
    return entry | versions(environment)


def versions(environment: Environment) -> dict[str, str]:
    """Driver, CUDA, torch and Triton, "" where there is none."""
    return {name: getattr(environment, name) or "" for name in EXTRA_FIELDS}


def write_machine(environment: Environment, path: Path) -> str:
    """Add or renew this machine in asv's file, other machines kept; returns its name.

    Raises:
        BrokenEnvironmentError: the file is there and is not one of asv's.
    """
    machines: Any = {"version": API_VERSION}
    if path.exists():
        try:
            machines = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise BrokenEnvironmentError(f"{path}: not JSON: {error}", f"repair or remove {path}") from error
        if not isinstance(machines, dict) or machines.get("version") != API_VERSION:
            raise BrokenEnvironmentError(f"{path}: expected asv's version {API_VERSION}", "run `asv update`")
    entry = describe(environment)
    machines[entry["machine"]] = entry
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(machines, indent=4, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)
    return entry["machine"]
