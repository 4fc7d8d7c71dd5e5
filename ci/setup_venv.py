"""Build `.venv` for this machine, from pinned versions; does nothing when that is done already.

*cpu* installs everything from constraints/cpu.txt. *gpu* makes an environment that sees the host's own packages,
keeps those that pyproject.toml accepts (torch and Triton among them) and installs what is missing from
constraints/gpu.txt; pip's own PIP_NO_INDEX and PIP_FIND_LINKS make that work without a network.
Runs under the host's Python, so it needs the standard library and pip alone.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.exits import BrokenEnvironmentError

ROOT = Path(__file__).resolve().parent.parent
STAMP = ".recoverssm-setup"
EXTRAS = {"cpu": ("bench", "report", "remote", "dev"), "gpu": ("bench", "test")}
WISHED = {  # on a GPU host: installed where pip can reach them, done without elsewhere
    ("report", "dev"): "pages and lint need another machine",
    ("remote",): "stores at URLs need another machine",
    ("nvbench",): "series under nvbench-cold are skipped",
    ("cluster",): "`ci nightly --executor slurm` reaches no node like this one",
    ("tools",): "`make bench` and `make asv` need another machine",
}
HOSTS = ("torch", "triton")  # what a GPU host must bring itself
CHROMIUM = ("chromium", "fonts-dejavu-core")  # Debian's packages; the page is tested and photographed in it


def choose_kind(asked: str, *, has_gpu: bool, has_torch: bool) -> tuple[str, str]:
    """The kind of environment to build, and why."""
    if asked != "auto":
        return asked, "asked for"
    if not has_gpu:
        return "cpu", "no GPU found"
    if not has_torch:
        return "cpu", f"a GPU is here, but {sys.executable} has no torch: install torch there to use the GPU"
    return "gpu", "GPU found; torch and Triton are the host's"


def fingerprint(kind: str, pyproject: Mapping[str, Any], constraints: str, python: str) -> str:
    """What an environment depends on: the requirements and the pins, not the settings of linters."""
    relevant = [kind, python, pyproject["build-system"], pyproject["project"], constraints]
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()


def without_hosts_own(constraints: str, host: Mapping[str, str], requirements: Iterable[str]) -> str:
    """The pins that hold on a host with its own packages: those of packages it lacks, or has too old a version of."""
    keep = set(host) - {name for name, version in host.items() if not _accepts(requirements, name, version)}
    lines = [line for line in constraints.splitlines() if _canonical(line.partition("==")[0]) not in keep]
    return "\n".join(lines) + "\n"


def host_packages() -> dict[str, str]:
    """Versions of what this Python can import already, by canonical name."""
    return {_canonical(item.name): item.version for item in importlib.metadata.distributions() if item.name}


def has_gpu() -> bool:
    """Whether an NVIDIA driver answers here."""
    nvidia_smi = shutil.which("nvidia-smi")
    if nvidia_smi and subprocess.run([nvidia_smi, "-L"], capture_output=True, check=False).stdout.startswith(b"GPU "):
        return True
    if importlib.util.find_spec("torch") is None:
        return False
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def set_up(kind: str, venv: Path) -> bool:
    """Bring `venv` to what the repository asks for. Returns whether anything had to be done."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    constraints = (ROOT / f"constraints/{kind}.txt").read_text()
    expected = fingerprint(kind, pyproject, constraints, f"{sys.prefix} {sys.version}")
    stamp = venv / STAMP
    if stamp.exists() and stamp.read_text() == expected:
        return False
    stamp.unlink(missing_ok=True)
    requirements = _requirements(pyproject, EXTRAS[kind])
    if kind == "gpu":
        host = host_packages()
        for name in HOSTS:
            if name not in host or not _accepts(requirements, name, host[name]):
                wanted = next(item for item in requirements if _name(item) == name)
                raise BrokenEnvironmentError(
                    f"host's {name}: expected {wanted}, got {host.get(name, 'none')}",
                    f"install it for {sys.executable}, or use make setup KIND=cpu",
                )
        constraints = without_hosts_own(constraints, host, requirements)
    _create(venv, share_host=kind == "gpu")
    pins = venv / "constraints.txt"
    pins.write_text(constraints)
    if kind == "gpu":
        # A path entry in place of an editable install, which would need setuptools of the host's.
        (_site_packages(venv) / "recoverssm.pth").write_text(f"{ROOT}\n")
        _pip(venv, pins, *_without_hosts(requirements))
        for extras, loss in WISHED.items():
            if platform.machine() != "x86_64" and extras == ("nvbench",):
                print(f"not installed: nvbench (no wheel for {platform.machine()}); {loss}")
                continue
            wished = _named(pyproject, extras)
            if not _pip(venv, pins, "--retries=0", *_without_hosts(wished), required=False):
                print(f"not installed: {', '.join(extras)} (not reachable); {loss}")
    else:
        _pip(venv, pins, "setuptools>=77")
        _pip(venv, pins, "--no-build-isolation", "--editable", f"{ROOT}[{','.join(EXTRAS[kind])}]")
    stamp.write_text(expected)
    return True


def ensure_chromium() -> None:
    """Debian's Chromium for the tests of the page; without rights to install it, say how to get it."""
    if shutil.which("chromium"):
        return
    command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *CHROMIUM]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print("installing chromium", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "--quiet"], check=False, stdout=subprocess.DEVNULL, env=environment)
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env=environment).returncode == 0:
            return
    print(f"chromium is missing and the tests of the page will fail; install it with: sudo {' '.join(command)}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ci.setup_venv",
        description="Build .venv for this machine from pinned versions.",
        epilog="example: python3 -m ci.setup_venv --kind cpu",
    )
    parser.add_argument("--kind", choices=("auto", "cpu", "gpu"), default="auto", help="auto looks for a GPU")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", metavar="DIR")
    arguments = parser.parse_args(argv)
    start = time.monotonic()
    kind, why = arguments.kind, "asked for"
    if kind == "auto":
        has_torch = importlib.util.find_spec("torch") is not None
        kind, why = choose_kind(kind, has_gpu=has_gpu(), has_torch=has_torch)
    try:
        changed = set_up(kind, arguments.venv.absolute())
    except BrokenEnvironmentError as error:
        print(f"set-up failed: {error}\nnext: {error.next_step}", file=sys.stderr)
        return error.code
    if kind == "cpu":
        ensure_chromium()
    if changed:
        print(f"set up {arguments.venv} ({kind}: {why}) in {time.monotonic() - start:.0f} s")
    return 0


def _create(venv: Path, *, share_host: bool) -> None:
    """Make the environment, or keep the one that is there when it is of this Python and this kind."""
    if _is_of_this_kind(venv, share_host=share_host):
        return
    print(f"creating {venv}", flush=True)
    options = ["--clear"]
    if share_host:
        options.append("--system-site-packages")
        if importlib.util.find_spec("pip"):
            options.append("--without-pip")  # the host's is visible inside; Debian's Python cannot bring another
    if subprocess.run([sys.executable, "-m", "venv", *options, str(venv)], check=False).returncode:
        raise BrokenEnvironmentError(
            f"{sys.executable} cannot create {venv}",
            "install Python's venv module (Debian: apt-get install python3-venv)",
        )
    if share_host and sys.prefix != sys.base_prefix:
        # This Python is itself a virtual environment, which --system-site-packages would look past.
        own = [path for path in sys.path if path.startswith(sys.prefix) and path.endswith("site-packages")]
        (_site_packages(venv) / "host.pth").write_text("\n".join(own) + "\n")


def _is_of_this_kind(venv: Path, *, share_host: bool) -> bool:
    config = venv / "pyvenv.cfg"
    if not (venv / "bin/python").exists() or not config.exists():
        return False
    lines = dict(line.split(" = ", 1) for line in config.read_text().splitlines() if " = " in line)
    python = ".".join(map(str, sys.version_info[:3]))
    shared = {True: "true", False: "false"}[share_host]
    return (lines.get("version"), lines.get("include-system-site-packages")) == (python, shared)


def _site_packages(venv: Path) -> Path:
    return venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _pip(venv: Path, pins: Path, *arguments: str, required: bool = True) -> bool:
    what = " ".join(argument for argument in arguments if not argument.startswith("--"))
    print(f"pip install {what}", flush=True)
    command = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--constraint", str(pins), *arguments]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, check=False, env=environment, stderr=None if required else subprocess.DEVNULL)
    if done.returncode and required:
        raise BrokenEnvironmentError(
            f"pip could not install {what} (its message is above)",
            "README.md, section Set-up, says where a CPU build of torch comes from and how to work without a network",
        )
    return done.returncode == 0


def _requirements(pyproject: Mapping[str, Any], extras: Sequence[str]) -> list[str]:
    return [*pyproject["project"]["dependencies"], *_named(pyproject, extras)]


def _named(pyproject: Mapping[str, Any], extras: Sequence[str]) -> list[str]:
    project = pyproject["project"]
    named = [item for extra in extras for item in project["optional-dependencies"][extra]]
    return [item for item in named if _name(item) != project["name"]]


def _without_hosts(requirements: Iterable[str]) -> list[str]:
    return [item for item in requirements if _name(item) not in HOSTS]


def _accepts(requirements: Iterable[str], name: str, version: str) -> bool:
    """Whether every requirement on `name` (all of the form ``name>=version``) is met; so is having none."""
    return all(_release(version) >= _release(item.partition(">=")[2]) for item in requirements if _name(item) == name)


def _name(requirement: str) -> str:
    return _canonical(re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0])


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[+a-z]", version, maxsplit=1)[0]))


if __name__ == "__main__":
    sys.exit(main())
