"""Windows made longer on purpose, on a device whose launches take what they are told."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.delay import Delay
from benchmarks.harness.errors import MeasurementError
from benchmarks.harness.measure import measure_graph_cold
from benchmarks.harness.stopping import Sampling
from tests.harness.fake_timer import Device

SAMPLING = Sampling(min_samples=10, max_samples=20, warmup_s=0.001)


@pytest.mark.parametrize("pct", [1, 2, 3, 5, 10])
def test_window_becomes_longer_by_what_was_asked_and_says_so(pct):
    device = Device()
    calls = [device.op(7.0)] * 3
    plain = measure_graph_cold(calls, sampling=SAMPLING, timer=device, num_kernels=1)
    slow = measure_graph_cold(calls, sampling=SAMPLING, timer=device, num_kernels=1, delay=device.delay(pct))

    assert plain.delay_pct is None
    assert slow.delay_pct == pytest.approx(pct, rel=1e-4)  # whole cycles
    assert slow.values_us == pytest.approx([7.0 * (1 + slow.delay_pct / 100)] * 10)
    assert slow.launches_per_sample == plain.launches_per_sample  # the delay is no op call


def test_delay_is_corrected_where_a_launch_costs_more_than_was_guessed():
    device = Device(launch_us=4.0, mhz=1000.0)
    slow = measure_graph_cold([device.op(600.0)], sampling=SAMPLING, timer=device, delay=device.delay(1))

    assert slow.delay_pct == pytest.approx(1, rel=1e-3)


def test_what_came_out_is_recorded_and_not_what_was_asked():
    device = Device()
    delay = device.delay(5)
    stuck = Delay(
        delay.pct, delay.launch, lambda cycles: setattr(device, "cycles", round(12 * device.mhz))
    )  # always 12 us
    slow = measure_graph_cold([device.op(700.0)], sampling=SAMPLING, timer=device, delay=stuck)

    assert slow.delay_pct == pytest.approx(2)
    assert slow.values_us[0] == pytest.approx(714.0)


def test_delay_shorter_than_a_launch_is_refused_with_both_times():
    device = Device(launch_us=20.0)

    with pytest.raises(MeasurementError, match=r"1 % of a window of 700 us is 7\.00 us.*does not wait takes 20\.00 us"):
        measure_graph_cold([device.op(700.0)], sampling=SAMPLING, timer=device, delay=device.delay(1))


def test_delayed_graph_that_lost_a_launch_is_refused():
    device = Device()
    whole = device.capture
    device.capture = lambda launches, rounds: whole(launches[:-1] if rounds * len(launches) > 1 else launches, rounds)

    with pytest.raises(MeasurementError, match="has 0 nodes, expected 1 op calls of 1 kernels"):
        measure_graph_cold([device.op(700.0)], sampling=SAMPLING, timer=device, num_kernels=1, delay=device.delay(2))


def test_memory_is_restored_before_delayed_windows_too():
    device = Device()
    restored = []
    slow = measure_graph_cold(
        [device.op(700.0)], sampling=SAMPLING, timer=device, delay=device.delay(2), restore=lambda: restored.append(1)
    )

    assert slow.delay_pct == pytest.approx(2)
    assert len(restored) >= len(slow.values_us) + 20


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from benchmarks.harness.stream_kernels import _wait_kernel
source = ASTSource(fn=_wait_kernel, signature={"cycles_ptr": "*i64"})
print(compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1}).asm["ptx"])
"""


def test_waiting_kernel_reads_the_clock_anew_in_every_round():
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], cwd=root, env=env, capture_output=True, text=True, check=True
    )

    label, body = re.search(
        r"(\$L__BB0_\d+):(?:(?!\$L__BB).)*?(%clock64.*?)@%p\d+ bra", done.stdout, re.DOTALL
    ).groups()
    assert re.search(rf"%clock64.*@%p\d+ bra\s+{re.escape(label)};", done.stdout, re.DOTALL), body
