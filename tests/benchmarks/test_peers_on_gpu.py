"""A peer on a card: checked, captured into graphs, timed beside ours."""

import pytest
import torch

from benchmarks.cases import kimi_k3
from benchmarks.gpu_process import GpuProcess
from benchmarks.peers.beside import PeerProvider
from benchmarks.results import Results
from examples.provider import TorchRecurrence


@pytest.mark.gpu
@pytest.mark.parametrize("state_dtype", ["fp32", "bf16"])
def test_the_example_is_checked_and_timed_on_a_card(state_dtype):
    device, results = torch.device("cuda", torch.cuda.current_device()), Results()
    process = GpuProcess(3, device, 1e15, results, peers=[PeerProvider(TorchRecurrence())])
    case = kimi_k3(16, 1, 8, 3.84, state_dtype)

    (part,) = [part for part in process.parts(case) if part.name.endswith("torch_recurrence")]
    part.measure()

    assert results.failures() == []
    assert {(m.op, m.status) for m in results.measurements} == {
        (op, "ok") for op in ("verify", "commit_state", "conv", "step")
    }
