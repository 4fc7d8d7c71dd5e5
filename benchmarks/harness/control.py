"""Controls: plain kernels of ours that only move bytes or only compute, to say what this card could reach today."""

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from .clock import CudaEventTimer, DeviceTimer, Launch
from .cold_cache import num_rotations
from .measure import measure_graph_cold
from .quiet import QuietCard
from .records import Control, When
from .stats.summary import median
from .stopping import Sampling
from .stream_kernels import UNROLL, _fma_kernel, _mix_kernel, _stream_kernel

if TYPE_CHECKING:
    import torch

CONTROL_BYTES = 512 * 2**20  # of the larger side; several times any L2, and long enough to reach a steady rate
CONTROL_SAMPLING = Sampling(min_samples=15, max_samples=30, max_s=0.5)
NUM_READINGS = 3
"""Of each control, each warmed up anew for 50 ms and more, so that what disturbs one spares its neighbours. A reading
alone is 15 windows of 0.7 ms: one interruption of 6 ms covers most of them, and so moves their median."""
DOUBTFUL_PCT = 1.0  # against the start; in nine sound processes of an H200 controls moved by 0.42 % at most
PAUSE_S = 0.2
FMA_TRIPS = 64  # of UNROLL * 4 multiply-adds each: about 70 us on one SM with 16 programs of BLOCK chains, at 2 GHz
FMA_PROGRAMS_PER_SM = 16  # 2048 threads of 8 chains: as many as an SM holds, so that all cards run one wave
MIXES = {"copy": (1, 1), "read": (4, 0), "read4_write1": (4, 1)}  # blocks that a program reads and writes

MAX_ROTATIONS = 2048  # launches in one graph; a stream that would need more moves too little to be measured cold
BLOCK = 1024
NUM_WARPS = 4  # 8 fp32 per thread: two loads of 16 bytes
BYTES_PER_PROGRAM = 2 * 4 * BLOCK * 4  # where the caller names no grid: two trips of the unrolled loop
ALIGN = 64  # bytes; keeps every share a multiple of 16 elements, so that masked accesses stay vectorised


def measure_controls(
    device: "torch.device | int | None" = None,
    *,
    when: When = "start",
    start: Sequence[Control] = (),
    num_bytes: int = CONTROL_BYTES,
    fma_trips: int = FMA_TRIPS,
    sampling: Sampling = CONTROL_SAMPLING,
    timer: DeviceTimer | None = None,
    card: QuietCard | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Control]:
    """Copy, read-only and 4:1 streams over buffers of ``num_bytes`` (512 MiB), and a loop of multiply-adds.

    Each is the middle one of three graph-cold runs, so that a disturbance of one of them does not move it. Needs 1 GiB
    of free memory (2 GiB where one is measured once more), taken anew from the driver for each control.

    Args:
        when: in the life of the process.
        start: those of the start. One that differs from its like by ``DOUBTFUL_PCT`` is measured once more, after a
            pause and on other memory; the second time counts, and the record keeps both.
        card: learns the SM clock that this process can have. It drops no sample here: a control says what the card
            did, held back or not.
    """
    device = _device(device)
    timer = timer or CudaEventTimer(device)
    at_start = {control.name: control.median_us for control in start}

    def read(launch: Launch) -> float:
        samples = measure_graph_cold([launch], sampling=sampling, timer=timer, num_kernels=1)
        if card is not None:
            card.learn(max((mhz for mhz in samples.sm_mhz if mhz is not None), default=None))
        return median(samples.values_us)

    controls = []
    for name, prepare in _streams_and_fma(num_bytes, fma_trips, device).items():
        _give_back_memory(device)  # what torch's allocator kept from the cases lies elsewhere than at the start
        launch, read_bytes, write_bytes = prepare()
        readings, first = [read(launch) for _ in range(NUM_READINGS)], list[float]()
        if name in at_start and abs(100 * (median(readings) / at_start[name] - 1)) >= DOUBTFUL_PCT:
            sleep(PAUSE_S)
            again, *_ = prepare()  # the first launch keeps its buffers, so these are others
            first, readings = readings, [read(again) for _ in range(NUM_READINGS)]
            del again
        del launch
        controls.append(
            Control(
                name=name,
                when=when,
                read_bytes=read_bytes,
                write_bytes=write_bytes,
                median_us=median(readings),
                bytes_per_s=(read_bytes + write_bytes) / median(readings) * 1e6,
                readings_us=readings,
                first_readings_us=first,
            )
        )
    return controls


def _streams_and_fma(
    num_bytes: int, fma_trips: int, device: "torch.device"
) -> dict[str, Callable[[], tuple[Launch, int, int]]]:
    """By name, what makes a control's buffers: the launch, and the bytes that it reads and writes."""
    import torch

    def mix(reads: int, writes: int) -> tuple[Launch, int, int]:
        num_programs = num_bytes // (4 * BLOCK * max(reads, writes))
        src = torch.rand(num_programs * reads * BLOCK, dtype=torch.float32, device=device)
        dst = torch.zeros(max(num_programs * writes, 1) * BLOCK, dtype=torch.float32, device=device)
        read_bytes, write_bytes = (4 * BLOCK * num_programs * blocks for blocks in (reads, writes))
        return partial(_mix, src, dst, reads, writes), read_bytes, write_bytes

    def fma() -> tuple[Launch, int, int]:
        ends = torch.empty(FMA_PROGRAMS_PER_SM * _num_sms(device) * BLOCK, dtype=torch.float32, device=device)
        return partial(_fma, ends, fma_trips), 0, 4 * ends.numel()

    return {name: partial(mix, *blocks) for name, blocks in MIXES.items()} | {"fma": fma}


def _give_back_memory(device: "torch.device") -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()


def matched_stream(
    read_bytes: int,
    write_bytes: int,
    launches: int = 1,
    *,
    device: "torch.device | int | None" = None,
    l2_bytes: int | None = None,
    num_programs: int | None = None,
    sampling: Sampling = CONTROL_SAMPLING,
    timer: DeviceTimer | None = None,
) -> float | None:
    """Median us of one op call's worth of pure streaming: same bytes, same mix, same grid, same graph-cold contract.

    None when so few bytes move that a cold rotation would need more than ``MAX_ROTATIONS`` launches.
    Sizes are rounded up by less than 0.8 %, and each is measured once per process.

    Args:
        read_bytes, write_bytes: of one launch.
        launches: kernels that make up one op call, each moving that much; the result covers all of them.
        l2_bytes: of the device; as torch reports it by default.
        num_programs: grid of one launch; one program per 32 KiB by default.
    Raises:
        ValueError: nothing is moved, or a number is negative.
    """
    if min(read_bytes, write_bytes) < 0 or read_bytes + write_bytes <= 0 or launches < 1:
        raise ValueError(
            "matched_stream: expected bytes to move and at least 1 launch, "
            f"got {read_bytes=}, {write_bytes=}, {launches=}"
        )
    device = _device(device)
    what = (_rounded(read_bytes), _rounded(write_bytes), launches, device, l2_bytes or _l2_bytes(device), num_programs)
    return _cached_us(*what, sampling) if timer is None else _matched_us(*what, sampling, timer)


@cache
def _cached_us(
    read_bytes: int,
    write_bytes: int,
    launches: int,
    device: "torch.device",
    l2_bytes: int,
    num_programs: int | None,
    sampling: Sampling,
) -> float | None:
    timer = CudaEventTimer(device)
    return _matched_us(read_bytes, write_bytes, launches, device, l2_bytes, num_programs, sampling, timer)


def _matched_us(
    read_bytes: int,
    write_bytes: int,
    launches: int,
    device: "torch.device",
    l2_bytes: int,
    num_programs: int | None,
    sampling: Sampling,
    timer: DeviceTimer,
) -> float | None:
    rotations = num_rotations(read_bytes + write_bytes, l2_bytes)
    rotations = -(-rotations // launches) * launches  # whole op calls
    if rotations > MAX_ROTATIONS:
        return None
    streams = _streams(read_bytes, write_bytes, rotations, device, num_programs)
    calls = [partial(_run_all, streams[at : at + launches]) for at in range(0, rotations, launches)]
    return median(measure_graph_cold(calls, sampling=sampling, timer=timer, num_kernels=launches).values_us)


def _streams(
    read_bytes: int, write_bytes: int, rotations: int, device: "torch.device", num_programs: int | None
) -> list[Launch]:
    """One launch per buffer set; the sets are slices of two buffers."""
    import torch

    num_read, num_write = read_bytes // 4, write_bytes // 4
    src = torch.rand(rotations, max(num_read, 1), dtype=torch.float32, device=device)
    dst = torch.zeros(rotations, max(num_write, BLOCK), dtype=torch.float32, device=device)
    num_programs = num_programs or -(-(read_bytes + write_bytes) // BYTES_PER_PROGRAM)
    return [partial(stream, src[at], dst[at], num_read, num_write, num_programs) for at in range(rotations)]


def stream(src: "torch.Tensor", dst: "torch.Tensor", num_read: int, num_write: int, num_programs: int) -> None:
    """Launch one stream that reads ``num_read`` elements of ``src`` and writes ``num_write`` of ``dst`` (fp32, 1-D).

    Every element written is a sum of elements read, so that no read can be left out.
    """
    read_share, write_share = (_share(num, num_programs) for num in (num_read, num_write))
    _stream_kernel[(num_programs,)](
        src,
        dst,
        num_read,
        num_write,
        read_share,
        write_share,
        _trips(read_share),
        _trips(write_share),
        UNROLL=UNROLL,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )


def _mix(src: "torch.Tensor", dst: "torch.Tensor", reads: int, writes: int) -> None:
    _mix_kernel[(src.numel() // (reads * BLOCK),)](
        src, dst, READS=reads, WRITES=writes, BLOCK=BLOCK, num_warps=NUM_WARPS
    )


def _fma(ends: "torch.Tensor", num_trips: int) -> None:
    _fma_kernel[(ends.numel() // BLOCK,)](
        ends, num_trips, UNROLL=4 * UNROLL, BLOCK=BLOCK, num_warps=NUM_WARPS, enable_fp_fusion=True
    )


def _run_all(launches: list[Callable[[], None]]) -> None:
    for launch in launches:
        launch()


def _share(num: int, num_programs: int) -> int:
    """Elements of one program, a multiple of 16."""
    return -(-num // (16 * num_programs)) * 16


def _trips(share: int) -> int:
    return -(-share // (UNROLL * BLOCK))


def _rounded(num_bytes: int) -> int:
    """To a multiple of 64 bytes, and of 1/256 of its power of two: near sizes share one measurement."""
    step = max(ALIGN, 1 << max(num_bytes.bit_length() - 8, 0))
    return -(-num_bytes // step) * step if num_bytes else 0


def _device(device: "torch.device | int | None") -> "torch.device":
    import torch

    if device is None:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


def _num_sms(device: "torch.device") -> int:
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _l2_bytes(device: "torch.device") -> int:
    import torch

    return int(torch.cuda.get_device_properties(device).L2_cache_size)
