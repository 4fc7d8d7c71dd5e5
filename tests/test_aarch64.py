"""GB300 hosts are aarch64: pip says whether all that a GPU host needs can be had there, at the pinned versions."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYTHON = "3.12.8"
GLIBC = range(17, 29)  # manylinux_2_17 to 2_28: what hosts of Ubuntu 22.04, RHEL 8 and newer can install
EXTRAS = ("bench", "test", "nvbench")  # of the GPU-host part
TRIES = 3  # an index that does not answer is no missing wheel
TIMEOUT_S = 900
# pip chooses wheels for --platform, but evaluates markers ("platform_machine == 'x86_64'") for the machine it runs on.
PIP = f"""
import platform, runpy
platform.machine = lambda: "aarch64"
platform.python_version = lambda: {PYTHON!r}
platform.python_version_tuple = lambda: tuple({PYTHON!r}.split("."))
runpy.run_module("pip", run_name="__main__")
"""


def requirements() -> list[str]:
    """What the GPU-host part asks for. A marker that leaves aarch64 out is dropped: that is what is to be found out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(item for extra in EXTRAS for item in project["optional-dependencies"][extra])]
    return [item.partition(";")[0].strip() for item in asked]


def declared_missing() -> set[str]:
    """Packages in the table of docs/operating.md."""
    text = (ROOT / "docs" / "operating.md").read_text()
    table = re.search(r"\| missing on aarch64 \|.*?\n\n", text, re.DOTALL)[0]
    return set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE))


def resolve(requirement: str, folder: Path) -> list[str] | None:
    """Wheels that pip would install on an aarch64 host, or None when there is none for a package or what it needs."""
    report = folder / "report.json"
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in GLIBC] + ["--platform=manylinux2014_aarch64"]
    command = [sys.executable, "-c", PIP, "install", "--dry-run", "--ignore-installed", "--no-cache-dir", "--quiet"]
    command += [*platforms, f"--python-version={PYTHON}", "--implementation=cp", "--only-binary=:all:"]
    command += ["--constraint", str(ROOT / "constraints" / "gpu.txt"), "--target", str(folder / "target")]
    command += ["--report", str(report), requirement]
    for _ in range(TRIES):
        report.unlink(missing_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode == 0:
            installed = json.loads(report.read_text())["install"]
            return [item["download_info"]["url"].rpartition("/")[2] for item in installed]
        if "No matching distribution found" in done.stderr or "ResolutionImpossible" in done.stderr:
            return None
    raise AssertionError(f"pip could not ask the index for {requirement}:\n{done.stderr[-2000:]}")


@pytest.mark.long
def test_every_dependency_of_a_gpu_host_resolves_for_aarch64_or_is_declared_missing(tmp_path):
    resolved = {requirement: resolve(requirement, tmp_path) for requirement in requirements()}

    missing = {re.match(r"[\w-]+", requirement)[0] for requirement, wheels in resolved.items() if wheels is None}
    assert missing == declared_missing()
    wheels = [wheel for found in resolved.values() for wheel in found or ()]
    assert len(wheels) >= len(resolved) - len(missing)
    assert [wheel for wheel in wheels if not wheel.endswith(("aarch64.whl", "-none-any.whl"))] == []
