"""What a stranger does first: clone, set up, check. Needs git and the package index, and takes minutes."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.long
def test_a_fresh_clone_sets_itself_up_once_and_passes_its_check(tmp_path):
    clone = tmp_path / "clone"
    dropped = ("MAKE", "MFLAGS", "VIRTUAL_ENV", "PYTHONPATH", "TRITON_INTERPRET")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}

    def run(*command, cwd=clone):
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("git", "clone", "--quiet", str(ROOT), str(clone), cwd=tmp_path)
    assert "creating" in run("make", "setup", "KIND=cpu")
    assert run("make", "setup", "KIND=cpu") == ""
    run("make", "check", "KIND=cpu")
    assert run("git", "status", "--porcelain") == ""
