import importlib
import pkgutil
import subprocess
import sys

import pytest

import benchmarks

COLLECTED = ("time_", "timeraw_", "track_", "mem_", "peakmem_")
MODULES = sorted(info.name for info in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."))


@pytest.mark.parametrize("name", MODULES)
def test_asv_would_find_no_benchmark_by_accident(name):
    module = importlib.import_module(name)
    found = [
        attribute
        for attribute in vars(module)
        if attribute.lower().startswith(COLLECTED) and callable(getattr(module, attribute))
    ]

    assert found == []


def test_importing_everything_touches_no_gpu_and_prints_nothing():
    program = (
        "import importlib, os, sys\n"
        "before = dict(os.environ)\n"
        f"for name in {MODULES!r}: importlib.import_module(name)\n"
        "import torch\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert dict(os.environ) == before\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
