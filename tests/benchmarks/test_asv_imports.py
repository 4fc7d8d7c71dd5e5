import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks

ROOT = Path(benchmarks.__file__).resolve().parent
# As asv collects functions and methods of classes, imported ones too.
COLLECTED = re.compile(r"(time|timeraw|track|mem|peakmem)_|(Time|Timeraw|Track|Mem|PeakMem)[A-Z_]")
MODULES = sorted(info.name for info in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."))
SUITE = [name for name in MODULES if name.startswith("benchmarks.bench_")]


def collected(module):
    """Names that asv would take for benchmarks."""
    found = []
    for name, member in vars(module).items():
        if not name.startswith("_") and inspect.isclass(member):
            found += [f"{name}.{method}" for method, _ in inspect.getmembers(member) if COLLECTED.match(method)]
        elif callable(member) and COLLECTED.match(name):
            found.append(name)
    return found


@pytest.mark.parametrize("name", [name for name in MODULES if name not in SUITE])
def test_asv_would_find_no_benchmark_by_accident(name):
    assert collected(importlib.import_module(name)) == []


@pytest.mark.parametrize("name", SUITE)
def test_each_module_of_the_suite_has_benchmarks_of_its_own(name):
    module = importlib.import_module(name)
    found = collected(module)

    assert found
    assert {getattr(module, entry.partition(".")[0]).__module__ for entry in found} == {name}


def test_asv_finds_the_suite_alone_and_importing_everything_touches_no_gpu_and_prints_nothing():
    program = f"""
import os, sys
from asv_runner.discovery import disc_benchmarks, update_sys_path
before = dict(os.environ)
update_sys_path({str(ROOT)!r})
found = sorted(one.name for one in disc_benchmarks({str(ROOT)!r}))
import torch
assert not torch.cuda.is_initialized()
assert dict(os.environ) == before
assert not {set(MODULES)!r} - sys.modules.keys()
print(*found, sep='\\n')
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    expected = [f"{name}.{entry}" for name in SUITE for entry in collected(importlib.import_module(name))]
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == sorted(entry.removeprefix("benchmarks.") for entry in expected)
