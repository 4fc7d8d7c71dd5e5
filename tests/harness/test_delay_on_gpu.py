"""Delays on a real card: what is recorded is what a window takes longer."""

import pytest
import torch

from benchmarks.harness.clock import CudaEventTimer
from benchmarks.harness.delay import CLOSE_ENOUGH, Delay
from benchmarks.harness.measure import measure_graph_cold
from benchmarks.harness.stats.summary import median

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("pct", [1, 5])
def test_realised_delay_is_near_the_one_asked_for(pct):
    device = torch.device("cuda", torch.cuda.current_device())
    timer = CudaEventTimer(device)
    tensors = [torch.zeros(32 << 20, device=device) for _ in range(4)]
    calls = [lambda tensor=tensor: tensor.add_(1.0) for tensor in tensors]
    plain = measure_graph_cold(calls, timer=timer, num_kernels=1)
    slow = measure_graph_cold(calls, timer=timer, num_kernels=1, delay=Delay.on(device, pct))

    assert slow.delay_pct == pytest.approx(pct, rel=CLOSE_ENOUGH, abs=0.3)  # the wider of the two
    assert 100 * (median(slow.values_us) / median(plain.values_us) - 1) == pytest.approx(slow.delay_pct, abs=0.5)
