"""A kernel in one file and one command, on a machine without a GPU: it is checked, timed, and in the table."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DYING = """
import os, signal
from examples.provider import TorchRecurrence

class Dies(TorchRecurrence):
    name = "dies"

    def prepare(self, workload):
        os.kill(os.getpid(), signal.SIGSEGV)

class DiesAtOnce(TorchRecurrence):
    name = "dies_at_once"

    def __init__(self):
        os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_a_provider_in_one_file_appears_in_the_table_with_one_command(tmp_path):
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRITON_INTERPRET")}
    env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    store, dying = str(tmp_path / "store"), tmp_path / "dying.py"
    dying.write_text(DYING)

    def run(*command):
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    said = run(
        "ci", "nightly", "--set", "smoke", "--case", "*_b1_*_fp32", "--processes", "1", "--no-static",
        "--provider", "examples/provider.py:TorchRecurrence", "--provider", "examples/provider.py:Tolerance",
        "--provider", f"{dying}:Dies", "--provider", f"{dying}:DiesAtOnce",
        "--store", store, "--out", str(tmp_path / "out"),
    )  # fmt: skip
    site = tmp_path / "out" / "site"
    assert f"page: {site / 'index.html'}" in said
    assert "token by token (torch_recurrence)<" in (site / "league.html").read_text()
    run("reports", "build", "--store", store, "--format", "markdown", "--page", "league", "--out", f"{tmp_path}/l.md")

    assert "provider.py:Tolerance was not measured: TypeError" in said
    assert "provider dying.py:DiesAtOnce was not measured: killed by SIGSEGV" in said
    page = (tmp_path / "l.md").read_text()
    verify = page.split("### Verify of one layer, 3.84 accepted")[1].split("###")[0]
    assert "token by token" in verify
    assert "provider.py:Tolerance" in page
    assert "not measured: killed by SIGSEGV" in page
    assert "failed: not tried after time twin" in page
