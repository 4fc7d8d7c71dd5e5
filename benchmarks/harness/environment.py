"""Where and what was measured: environment (cuts a series), silicon (a random effect) and subject (what is tracked)."""

import hashlib
import platform
import re
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import HARNESS_VERSION
from .nvml import NvmlDevice, UnknownError, ask, open_device, text
from .records import Environment, Silicon, Subject

if TYPE_CHECKING:
    import torch

NO_CUDA = "torch sees no CUDA device"
CPUINFO = Path("/proc/cpuinfo")
NOT_SOURCE = {"__pycache__"}


def gpu_slug(name: str) -> str:
    """Name of a GPU model as used in files and series keys: "NVIDIA H200" -> "nvidia-h200"."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not slug:
        raise ValueError(f"name: expected a GPU's name, got {name!r}")
    return slug


def collect_environment(device: int | None = None, *, nvml: Any = None) -> Environment:
    """What cuts a series when it changes; facts that cannot be had are None with the reason in ``missing``.

    Args:
        device: index of torch's CUDA device, the current one by default.
        nvml: a stand-in for the ``pynvml`` module.
    """
    import torch

    missing: dict[str, str] = {}
    properties = _properties(device)
    card = _nvml_device(properties, missing, nvml)
    from_nvml = _asker(missing, card)
    facts: dict[str, Any] = {
        "mig": from_nvml("mig", lambda card: _on_off(card.nvml.nvmlDeviceGetMigMode(card.handle)[0])),
        "ecc": from_nvml("ecc", lambda card: _on_off(card.nvml.nvmlDeviceGetEccMode(card.handle)[0])),
        "power_limit_w": from_nvml(
            "power_limit_w", lambda card: card.nvml.nvmlDeviceGetEnforcedPowerLimit(card.handle) / 1000
        ),
        "driver": from_nvml("driver", lambda card: text(card.nvml.nvmlSystemGetDriverVersion())),
    }
    for field, attribute in {
        "gpu_memory_bytes": "total_memory",
        "num_sms": "multi_processor_count",
        "l2_bytes": "L2_cache_size",
    }.items():
        facts[field] = ask(missing, field, partial(_positive, properties, attribute))
    if properties is not None:
        facts["compute_capability"] = f"{properties.major}.{properties.minor}"
    else:
        missing["compute_capability"] = NO_CUDA
    if card is not None:
        card.close()
    return Environment(
        gpu_model="cpu" if properties is None else gpu_slug(properties.name),
        cuda=ask(missing, "cuda", lambda: _known(torch.version.cuda, "this torch was built without CUDA")),
        python=platform.python_version(),
        torch=str(torch.__version__),
        triton=ask(missing, "triton", lambda: metadata.version("triton")),
        ptxas=ask(missing, "ptxas", partial(_ptxas_version, properties)),
        harness=HARNESS_VERSION,
        cpu_model=ask(missing, "cpu_model", _cpu_model),
        os_kernel=platform.release(),
        missing=missing,
        **facts,
    )


def collect_silicon(device: int | None = None, *, nvml: Any = None) -> Silicon:
    """Which card and host this is; facts that cannot be had are None with the reason in ``missing``."""
    missing: dict[str, str] = {}
    properties = _properties(device)
    card = _nvml_device(properties, missing, nvml)
    from_nvml = _asker(missing, card)
    silicon = Silicon(
        gpu_uuid=from_nvml("gpu_uuid", lambda card: text(card.nvml.nvmlDeviceGetUUID(card.handle))),
        vbios=from_nvml("vbios", lambda card: text(card.nvml.nvmlDeviceGetVbiosVersion(card.handle))),
        host=ask(missing, "host", lambda: _known(platform.node(), "the host has no name")),
        missing=missing,
    )
    if card is not None:
        card.close()
    return silicon


def collect_subject(package_dir: Path, *, commit: str | None = None) -> Subject:
    """The code that is measured: its commit, and a hash of its files that is the same in every folder.

    Args:
        commit: overrides git, for hosts that have the files but no repository; without either it is None.
    """
    from_git = _git_facts(package_dir)
    if commit is not None and from_git.get("commit") != commit:
        from_git = {"commit": commit}
    return Subject(source_hash=source_hash(package_dir), version=_version(package_dir), **from_git)


def commit_of(package_dir: Path) -> str | None:
    """The commit that is checked out; None without git or a repository."""
    return _git_facts(package_dir).get("commit")


def source_hash(package_dir: Path) -> str:
    """SHA-256 over the relative names and contents of a package's files, compiled ones left out.

    Raises:
        ValueError: there are no files.
    """
    paths = sorted(
        (path.relative_to(package_dir).as_posix(), path)
        for path in package_dir.rglob("*")
        if path.is_file() and not NOT_SOURCE.intersection(path.relative_to(package_dir).parts)
    )
    if not paths:
        raise ValueError(f"package_dir: expected a package with files, got {package_dir}")
    digest = hashlib.sha256()
    for name, path in paths:
        content = path.read_bytes()
        digest.update(f"{len(name)} {name} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


def _properties(device: int | None) -> Any:
    """Torch's properties of the device; None without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_properties(torch.cuda.current_device() if device is None else device)


def gpu_uuid(device: "torch.device | int | None" = None) -> str | None:
    """UUID of torch's device without NVML's prefix; None without CUDA."""
    import torch

    index = device.index if isinstance(device, torch.device) else device
    properties = _properties(index)
    return None if properties is None else str(properties.uuid)


def _nvml_device(properties: Any, missing: dict[str, str], nvml: Any) -> NvmlDevice | None:
    if properties is None:
        missing["nvml"] = NO_CUDA
        return None
    return ask(missing, "nvml", lambda: open_device(str(properties.uuid), nvml))


def _asker(missing: dict[str, str], card: NvmlDevice | None) -> Callable[[str, Callable[[NvmlDevice], Any]], Any]:
    def from_nvml(field: str, question: Callable[[NvmlDevice], Any]) -> Any:
        if card is None:
            missing[field] = f"no NVML: {missing['nvml']}"
            return None
        return ask(missing, field, lambda: question(card))

    return from_nvml


def _positive(properties: Any, name: str) -> int:
    if properties is None:
        raise UnknownError(NO_CUDA)
    value = int(getattr(properties, name))
    if value <= 0:
        raise UnknownError(f"torch reports {name} = {value}")
    return value


def _known(value: str | None, otherwise: str) -> str:
    if not value:
        raise UnknownError(otherwise)
    return value


def _on_off(mode: int) -> str:
    return "enabled" if mode else "disabled"


def _ptxas_version(properties: Any) -> str:
    """Of the assembler that Triton calls for this card, which may differ from the one of the CUDA toolkit."""
    from triton.backends.nvidia.compiler import get_ptxas

    ptxas = get_ptxas(0 if properties is None else 10 * properties.major + properties.minor).path
    printed = subprocess.run([ptxas, "--version"], check=True, capture_output=True, text=True, timeout=60).stdout
    version = re.search(r"V(\d+(?:\.\d+)+)", printed)
    return _known(version and version.group(1), f"ptxas prints no version: {printed[-80:]!r}")


def _cpu_model() -> str:
    """As the kernel names it: a name on x86-64, the implementer's and part's numbers on aarch64."""
    pairs = [line.split(":", 1) for line in CPUINFO.read_text(encoding="utf-8").splitlines() if ":" in line]
    found = {key.strip().lower(): value.strip() for key, value in reversed(pairs)}
    if "model name" in found:
        return found["model name"]
    parts = [f"{key} {found[key]}" for key in ("cpu implementer", "cpu part") if key in found]
    return _known(f"{platform.machine()} {', '.join(parts)}" if parts else "", f"{CPUINFO} names no model")


def _version(package_dir: Path) -> str:
    """Of the distribution that the package belongs to; "unknown" where it is neither installed nor in a checkout."""
    project = package_dir.parent / "pyproject.toml"
    if project.is_file():
        found = re.search(r'^version = "([^"]+)"', project.read_text(encoding="utf-8"), flags=re.MULTILINE)
        if found:
            return found.group(1)
    try:
        return metadata.version(package_dir.name)
    except metadata.PackageNotFoundError:
        return "unknown"


def _git_facts(package_dir: Path) -> dict[str, Any]:
    """Commit, its time in UTC, and whether the package's files differ from it; empty without git or a repository."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=package_dir, check=True, capture_output=True, text=True, timeout=60
        )
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        seconds = int(git("show", "--no-patch", "--format=%ct", "HEAD"))
        dirty = bool(git("status", "--porcelain", "--", "."))
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return {
        "commit": commit,
        "commit_utc": f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "dirty": dirty,
    }
