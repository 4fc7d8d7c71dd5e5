from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from benchmarks.harness.clock import Launch, Timing
from benchmarks.harness.control import BLOCK, _fma, _mix, _rounded, matched_stream, measure_controls, stream
from benchmarks.harness.drift import drift_pct
from benchmarks.harness.records import Control
from benchmarks.harness.stopping import Sampling

FEW = Sampling(min_samples=6, max_samples=6, warmup_s=0.0, max_s=60.0)
CONTROL_BLOCKS = 8


class CountingTimer:
    """A device on which each op call takes 100 us; keeps how many launches a round has."""

    resolution_us = 0.5

    def __init__(self) -> None:
        self.rounds: list[tuple[int, int]] = []
        self.now_s = 0.0

    def capture(self, launches: Sequence[Launch], rounds: int) -> Launch:
        for launch in launches:
            launch()
        self.rounds.append((len(launches), rounds))
        return lambda: None

    def elapsed_us(self, n: int, run: Launch) -> list[Timing]:
        elapsed_us = 100.0 * self.rounds[-1][0] * self.rounds[-1][1]
        self.now_s += n * elapsed_us / 1e6
        return [Timing(elapsed_us, self.now_s)] * n


class DisturbedTimer(CountingTimer):
    """The same, but readings named in ``slow`` take so many times as long. Each takes two captures."""

    def __init__(self, slow: dict[int, float]) -> None:
        super().__init__()
        self.slow = slow

    @property
    def num_readings(self) -> int:
        return len(self.rounds) // 2

    def elapsed_us(self, n: int, run: Launch) -> list[Timing]:
        factor = self.slow.get((len(self.rounds) - 1) // 2, 1.0)
        return [replace(timing, elapsed_us=factor * timing.elapsed_us) for timing in super().elapsed_us(n, run)]


def measure(timer: CountingTimer, **options: object) -> list[Control]:
    return measure_controls(
        torch.device("cpu"), num_bytes=4 * 4 * BLOCK, fma_trips=1, sampling=FEW, timer=timer, sleep=no_sleep, **options
    )


def no_sleep(_: float) -> None: ...


@pytest.mark.parametrize("disturbed", [0, 1, 2])
def test_one_reading_that_was_disturbed_does_not_move_a_control(disturbed: int):
    copy = measure(DisturbedTimer({disturbed: 1.115}))[0]

    assert copy.median_us == 100.0
    assert sorted(copy.readings_us) == pytest.approx([100.0, 100.0, 111.5])
    assert copy.first_readings_us == []


def test_two_readings_that_agree_outvote_the_third():
    assert measure(DisturbedTimer({0: 1.1, 2: 1.1}))[0].median_us == pytest.approx(110.0)


def test_control_that_is_off_at_the_end_is_measured_once_more_and_both_are_kept():
    start, timer = measure(CountingTimer()), DisturbedTimer({0: 1.12, 1: 1.11, 2: 1.10})
    paused: list[float] = []
    options = {"num_bytes": 4 * 4 * BLOCK, "fma_trips": 1, "sampling": FEW, "timer": timer, "sleep": paused.append}
    end = measure_controls(torch.device("cpu"), when="end", start=start, **options)

    assert end[0].first_readings_us == pytest.approx([112.0, 111.0, 110.0])
    assert end[0].readings_us == [100.0] * 3
    assert drift_pct([*start, *end]) == dict.fromkeys(("copy", "read", "read4_write1", "fma"), 0.0)
    assert [one.first_readings_us for one in end[1:]] == [[]] * 3
    assert timer.num_readings == 5 * 3  # four controls, one of them twice
    assert len(paused) == 1


def test_control_that_is_off_twice_has_drifted_and_is_not_measured_a_third_time():
    start, timer = measure(CountingTimer()), DisturbedTimer(dict.fromkeys(range(6), 1.1))
    end = measure(timer, when="end", start=start)

    assert drift_pct([*start, *end])["copy"] == pytest.approx(10.0)
    assert end[0].first_readings_us == pytest.approx([110.0] * 3)
    assert timer.num_readings == 5 * 3


def test_control_that_moved_as_controls_do_is_measured_once():
    start, timer = measure(CountingTimer()), DisturbedTimer(dict.fromkeys(range(3), 1.009))
    end = measure(timer, when="end", start=start)

    assert end[0].first_readings_us == []
    assert timer.num_readings == 4 * 3


def test_copy_copies(device: str):
    src = torch.arange(3 * BLOCK, dtype=torch.float32, device=device)
    dst = torch.full_like(src, torch.nan)
    _mix(src, dst, reads=1, writes=1)

    assert torch.equal(dst, src)


def test_four_to_one_writes_sums_of_four_blocks(device: str):
    src = torch.arange(8 * BLOCK, dtype=torch.float32, device=device)
    dst = torch.full((2 * BLOCK,), torch.nan, device=device)
    _mix(src, dst, reads=4, writes=1)

    assert torch.equal(dst, src.view(2, 4, BLOCK).sum(dim=1).flatten())


def test_reading_alone_writes_nothing(device: str):
    dst = torch.full((BLOCK,), torch.nan, device=device)
    _mix(torch.zeros(4 * BLOCK, device=device), dst, reads=4, writes=0)

    assert dst.isnan().all()


@pytest.mark.parametrize(
    ("num_read", "num_write", "num_programs"),
    [(16, 16, 1), (3 * BLOCK + 48, 16, 1), (9 * BLOCK, 5 * BLOCK + 16, 3), (160, 4 * BLOCK, 7), (16, 16, 5)],
)
def test_stream_writes_every_element_once_and_not_one_more(
    device: str, num_read: int, num_write: int, num_programs: int
):
    dst = torch.full((num_write + BLOCK,), torch.nan, device=device)
    stream(torch.zeros(num_read, device=device), dst, num_read, num_write, num_programs)

    assert torch.equal(dst[:num_write], torch.zeros(num_write, device=device))
    assert dst[num_write:].isnan().all()


def test_stream_reads_every_element_it_was_asked_to(device: str):
    num_read = 5 * BLOCK + 16
    src = torch.full((num_read + BLOCK,), torch.nan, device=device)
    src[:num_read] = 0.5
    dst = torch.full((BLOCK,), torch.nan, device=device)
    stream(src, dst, num_read, BLOCK, 1)

    assert dst.sum().item() == num_read * 0.5


def test_stream_that_only_reads_writes_nothing(device: str):
    dst = torch.full((BLOCK,), torch.nan, device=device)
    stream(torch.zeros(4 * BLOCK, device=device), dst, 4 * BLOCK, 0, 2)

    assert dst.isnan().all()


def test_controls_say_bytes_and_rate(device: str):
    num_bytes = 4 * BLOCK * CONTROL_BLOCKS
    controls = measure_controls(
        torch.device(device), num_bytes=num_bytes, fma_trips=1, sampling=FEW, timer=CountingTimer()
    )
    fma = controls.pop()

    assert (fma.name, fma.read_bytes) == ("fma", 0)
    assert {control.when for control in [*controls, fma]} == {"start"}
    assert [(control.name, control.read_bytes, control.write_bytes) for control in controls] == [
        ("copy", num_bytes, num_bytes),
        ("read", num_bytes, 0),
        ("read4_write1", num_bytes, num_bytes // 4),
    ]
    assert [control.median_us for control in controls] == [100.0] * 3
    assert controls[0].bytes_per_s == pytest.approx(2 * num_bytes / 100e-6)


def test_arithmetic_loop_does_every_trip(device: str):
    few, many = torch.empty(BLOCK, device=device), torch.empty(BLOCK, device=device)
    _fma(few, 1)
    _fma(many, 2)
    step = 0.9921875**16

    assert torch.allclose(128 - many, (128 - few) * step, atol=1e-3)


def control(name: str, when: str, median_us: float) -> Control:
    return Control(name=name, when=when, read_bytes=1, write_bytes=1, median_us=median_us, bytes_per_s=1.0)


def test_drift_is_the_change_from_start_to_end():
    controls = [control("copy", "start", 100.0), control("fma", "start", 50.0), control("copy", "end", 103.0)]

    assert drift_pct(controls) == {"copy": pytest.approx(3.0)}


def test_matched_stream_rotates_over_twice_the_l2(device: str):
    timer = CountingTimer()
    median_us = matched_stream(
        48 * 1024, 16 * 1024, device=torch.device(device), l2_bytes=256 * 1024, sampling=FEW, timer=timer
    )

    assert median_us == 100.0
    assert timer.rounds[0][0] == 8  # of 64 KiB each: 512 KiB


def test_matched_stream_of_several_kernels_rotates_whole_op_calls(device: str):
    timer = CountingTimer()
    matched_stream(48 * 1024, 16 * 1024, 3, device=torch.device(device), l2_bytes=256 * 1024, sampling=FEW, timer=timer)

    assert timer.rounds[0][0] == 3  # op calls of 3 launches: 9 sets, the least multiple of 3 above 8


def test_stream_too_small_to_be_cold_is_none_and_not_warm():
    assert matched_stream(1024, 0, device=torch.device("cpu"), l2_bytes=60 * 2**20, timer=CountingTimer()) is None


@pytest.mark.parametrize("wrong", [(0, 0, 1), (-4, 8, 1), (64, 64, 0)])
def test_stream_of_nothing_is_refused(wrong: tuple[int, int, int]):
    with pytest.raises(ValueError, match="expected bytes to move"):
        matched_stream(*wrong, device=torch.device("cpu"), l2_bytes=1, timer=CountingTimer())


@pytest.mark.parametrize("num_bytes", [0, 1, 64, 65, 4095, 10**6 + 1, 123_456_789])
def test_rounding_adds_less_than_a_percent(num_bytes: int):
    rounded = _rounded(num_bytes)

    assert rounded % 64 == 0
    assert rounded >= num_bytes
    assert rounded - num_bytes < max(64, 0.008 * num_bytes)
