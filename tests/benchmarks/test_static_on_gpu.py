"""What is compiled without a card is what a card loads: the same kernels, specialised alike, to the bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.static.cubin import binary_hash
from benchmarks.static.planning import Job, compiled_series, specialise
from recoverssm.triton_compat import KernelLaunch
from tests.benchmarks.static_hashes import CASES

ROOT = Path(__file__).parents[2]


@pytest.mark.gpu
def test_the_binary_that_an_op_loads_is_the_one_that_is_compiled_without_a_card(nothing_kept, monkeypatch, tmp_path):
    device = torch.device("cuda", torch.cuda.current_device())
    major, minor = torch.cuda.get_device_capability(device)
    arch = f"sm_{major}{minor}"
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    compiling = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.static_hashes", arch, str(tmp_path)],
        cwd=ROOT,
        env=env | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    loaded = {}
    through_triton = KernelLaunch.through_triton

    def note(self, tensors):
        compiled = through_triton(self, tensors)
        job = Job(arch, self, tensors, specialise(self, tensors))
        loaded[job.name] = binary_hash(compiled.asm["cubin"])
        return compiled

    measured = [series for case in CASES for _, series in compiled_series(case, device)]
    nothing_kept()  # of what made their inputs, which is neither measured nor planned
    monkeypatch.setattr(KernelLaunch, "through_triton", note)
    for series in measured:
        series.calls[0]()
    torch.cuda.synchronize(device)
    said, _ = compiling.communicate()

    assert compiling.returncode == 0
    assert loaded == json.loads(said)
    assert {name.split()[0] for name in loaded} >= {"commit_plan", "compact_conv"}
