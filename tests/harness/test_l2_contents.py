"""The L2 before a launch: on a CPU what is enqueued and in which order, on a card whether the L2 holds it."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch

from benchmarks.harness import l2_contents
from benchmarks.harness.clock import CudaEventTimer
from benchmarks.harness.control import BLOCK, _mix, stream
from benchmarks.harness.errors import MeasurementError
from benchmarks.harness.l2_contents import NUM_TOUCHES, L2Contents
from benchmarks.harness.stats.summary import median

L2_BYTES = 1 << 20
CPU = torch.device("cpu")
MIB = 2**20


class FakeStream:
    """Idle at the n-th question."""

    def __init__(self, num_questions=3):
        self.num_questions = num_questions

    def query(self):
        self.num_questions -= 1
        return self.num_questions <= 0


@pytest.fixture
def launched(monkeypatch):
    """What was launched: kernel, first address, its arguments, programs."""
    found = []

    class Kernel:
        def __init__(self, name):
            self.name = name

        def __getitem__(self, grid):
            return lambda memory, sums, *sizes, **options: found.append((self.name, memory.data_ptr(), sizes, *grid))

    monkeypatch.setattr(l2_contents, "_sweep_kernel", Kernel("sweep"))
    monkeypatch.setattr(l2_contents, "_read_through_kernel", Kernel("touch"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: FakeStream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return found


def test_twice_the_l2_is_swept_before_warm_memory_is_touched(launched):
    first, second = torch.zeros(100), torch.zeros(3, 5, dtype=torch.bfloat16)
    contents = L2Contents([first, first[3:], second], CPU, L2_BYTES, 0.25)
    contents.settle()

    num_blocks = 2 * L2_BYTES // (4 * l2_contents.BLOCK)
    assert launched == [
        ("sweep", contents._swept.data_ptr(), (num_blocks // 4, num_blocks), num_blocks),
        ("touch", first.data_ptr(), (100, 1), NUM_TOUCHES),
        ("touch", second.data_ptr(), (30, 1), NUM_TOUCHES),
    ]


def test_with_nothing_warm_the_sweep_alone_runs(launched):
    L2Contents([torch.zeros(0)], CPU, L2_BYTES).settle()

    assert [name for name, *_ in launched] == ["sweep"]


def test_a_stream_that_is_held_up_is_an_error_and_not_waited_for(launched, monkeypatch):
    contents = L2Contents([], CPU, L2_BYTES)
    contents._stream = FakeStream(num_questions=10**9)
    monkeypatch.setattr(l2_contents, "SETTLING_S", 0.0)

    with pytest.raises(MeasurementError, match="could not be swept"):
        contents.settle()


@pytest.fixture
def contents_of(device, monkeypatch):
    """L2Contents on the device, of an L2 of 8 blocks."""
    if device == "cpu":
        monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: FakeStream())
    return partial(L2Contents, device=torch.device(device), l2_bytes=8 * 4 * l2_contents.BLOCK)


def test_touching_changes_nothing(device, contents_of):
    tensors = [torch.rand(5000, device=device), torch.rand(3, 5, device=device).bfloat16()]
    before = [tensor.clone() for tensor in tensors]
    contents = contents_of(tensors)
    contents.touch()

    assert all(torch.equal(*pair) for pair in zip(tensors, before, strict=True))
    assert not contents._sums.any()


@pytest.mark.parametrize(("dirty_share", "num_written"), [(0.0, 0), (0.25, 4), (0.7, 11), (1.0, 16)])
def test_a_sweep_writes_its_share_of_blocks_evenly_and_no_other(device, contents_of, dirty_share, num_written):
    contents = contents_of([], dirty_share=dirty_share)
    contents._swept.fill_(7)
    contents.sweep()
    blocks = contents._swept.view(16, -1)
    written = [bool((block == 0).all()) for block in blocks]

    assert sum(written) == num_written
    assert all(bool((block == 7).all()) for block, is_written in zip(blocks, written, strict=True) if not is_written)
    assert all(abs(sum(written[:at]) - at * num_written / 16) < 1 for at in range(17))


@pytest.mark.gpu
def test_lines_that_a_sweep_wrote_cost_a_read_that_drives_them_out():
    device = torch.device("cuda", torch.cuda.current_device())
    l2_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
    num_programs = 4 * l2_bytes // (16 * BLOCK)
    src, sums = torch.rand(num_programs * 4 * BLOCK, device=device), torch.zeros(BLOCK, device=device)
    timer = CudaEventTimer(device)
    replay = timer.capture([partial(_mix, src, sums, 4, 0)], 1)
    medians = []
    for dirty_share in (0.0, 1.0):
        contents = L2Contents([], device, l2_bytes, dirty_share)
        contents.sweep()
        medians.append(median([timing.elapsed_us for timing in timer.elapsed_us(30, replay, contents.sweep)]))

    assert medians[1] > 1.03 * medians[0]  # four times the L2 is read, and up to one written back


@pytest.mark.gpu
def test_touched_memory_is_read_as_from_the_l2_and_other_memory_is_not():
    device = torch.device("cuda", torch.cuda.current_device())
    num_read = 2 * MIB // 4
    warm, cold = (torch.rand(num_read, device=device) for _ in range(2))
    sums = torch.zeros(BLOCK, device=device)
    l2_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
    contents, timer = L2Contents([warm], device, l2_bytes), CudaEventTimer(device)

    def settle():
        contents.sweep()
        contents.touch()

    def read_us(src):
        # One program reads one piece after the other, so that the latency of each counts.
        replay = timer.capture([partial(stream, src, sums, num_read, 0, 1)], 1)
        return median([timing.elapsed_us for timing in timer.elapsed_us(30, replay, settle)])

    settle()  # compiles
    warm_us, cold_us = read_us(warm), read_us(cold)

    assert cold_us > 1.2 * warm_us
