import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.own_library import StrangeLibraryError, require_own_library

ROOT = Path(__file__).resolve().parents[2]


def test_the_library_beside_the_program_is_its_own():
    require_own_library()


def test_one_module_from_elsewhere_is_enough_to_be_refused(monkeypatch):
    module = ModuleType("recoverssm.stray")
    module.__file__ = "/site-packages/recoverssm/stray.py"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(StrangeLibraryError, match=r"recoverssm\.stray: expected from .*, imported from /site-packages"):
        require_own_library()


@pytest.mark.parametrize("program", ["benchmarks.run", "benchmarks.fork_server"])
def test_a_program_without_a_library_beside_it_measures_no_installed_one(tmp_path, program):
    shutil.copytree(ROOT / "benchmarks", tmp_path / "tree" / "benchmarks")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    arguments = ["--set", "smoke", "--seed", "1", "--out", "record.json"]
    command = [sys.executable, "-m", program, *(["@token "] if "server" in program else arguments)]
    done = subprocess.run(
        command,
        cwd=tmp_path / "tree",
        env=env,
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5
    assert "an installed package must not be measured" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "tree" / "record.json").exists()
