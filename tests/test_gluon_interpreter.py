"""The emulator of Gluon against NumPy, and that it catches what it says it catches."""

import numpy as np
import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recoverssm.kernels.gluon_compat import async_load, thread_barrier
from recoverssm.kernels.probes import load_lines
from tests.gluon_interpreter import Emulated, MemoryFault, run


@gluon.jit
def _offsets(stride, ROWS: gl.constexpr, COLUMNS: gl.constexpr, layout: gl.constexpr):
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    return rows[:, None] * stride + columns[None, :], rows


@gluon.jit
def _copy_kernel(x_ptr, y_ptr, num_rows, stride_x, stride_y, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    swapped: gl.constexpr = gl.BlockedLayout([4, 1], [8, 4], [1, 4], [0, 1])
    pid = gl.program_id(0)
    source, rows = _offsets(stride_x, ROWS, COLUMNS, layout)
    target, rows_y = _offsets(stride_y, ROWS, COLUMNS, swapped)
    base = pid * ROWS
    x = gl.load(x_ptr + base * stride_x + source, mask=(rows + base < num_rows)[:, None], other=0.0)
    y = gl.convert_layout(x, swapped) * 2.0
    gl.store(y_ptr + base * stride_y + target, y, mask=(rows_y + base < num_rows)[:, None])


def _pools(num_rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    pool = torch.randn(num_rows, 80).to(dtype)
    return pool[:, :64], torch.full((num_rows, 96), torch.nan, dtype=dtype)[:, 16:80]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masked_copy_of_strided_tensors(dtype):
    x, y = _pools(21, dtype)

    Emulated(_copy_kernel)[(2,)](x, y, 21, x.stride(0), y.stride(0), ROWS=16, COLUMNS=64, num_warps=4)

    assert torch.equal(y, x * 2)


@pytest.mark.parametrize("num_rows", [22, 32])
def test_a_store_out_of_bounds_is_caught(num_rows):
    x, _ = _pools(40, torch.float32)
    _, y = _pools(21, torch.float32)

    with pytest.raises(MemoryFault, match=r"outside every argument.* of y_ptr"):
        run(_copy_kernel, (2,), x, y, num_rows, x.stride(0), y.stride(0), ROWS=16, COLUMNS=64)


def test_a_load_between_the_rows_of_a_view_is_caught():
    x, y = _pools(32, torch.float32)

    with pytest.raises(MemoryFault, match=r"outside every argument.* of x_ptr"):
        run(_copy_kernel, (2,), x[:, :63], y, 32, x.stride(0), y.stride(0), ROWS=16, COLUMNS=64)


@gluon.jit
def _race_kernel(x_ptr, READ: gl.constexpr):
    pid = gl.program_id(0)
    gl.store(x_ptr + (pid + 1 if READ else 0), gl.load(x_ptr + pid) if READ else pid)


@pytest.mark.parametrize("read", [True, False])
def test_programs_at_odds_about_one_element_are_caught(read):
    with pytest.raises(MemoryFault, match="race: program 1"):
        run(_race_kernel, (2,), torch.arange(8, dtype=torch.int32), READ=read)


def test_lanes_at_odds_about_one_element_are_caught():
    x, y = _pools(32, torch.float32)

    with pytest.raises(MemoryFault, match="lanes of one store"):
        run(_copy_kernel, (2,), x, y, 32, x.stride(0), 0, ROWS=16, COLUMNS=64)


def test_overflow_of_int32_is_caught():
    x, y = _pools(32, torch.float32)

    with pytest.raises(OverflowError, match="int32"):
        run(_copy_kernel, (2,), x, y, 32, 2**28, y.stride(0), ROWS=16, COLUMNS=64)


@gluon.jit
def _transpose_kernel(x_ptr, y_ptr, SIZE: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    offsets, _ = _offsets(SIZE, SIZE, SIZE, layout)
    memory = gl.allocate_shared_memory(gl.float32, [2, SIZE, SIZE], shared)
    for i in range(2):
        memory.index(i).store(gl.load(x_ptr + i * SIZE * SIZE + offsets))
    thread_barrier()
    for i in gl.static_range(2):
        gl.store(y_ptr + i * SIZE * SIZE + offsets, memory.index(i).permute([1, 0]).load(layout))


def test_transpose_through_shared_memory():
    x, y = torch.randn(2, 32, 32), torch.full((2, 32, 32), torch.nan)

    run(_transpose_kernel, (1,), x, y, SIZE=32)

    assert torch.equal(y, x.mT)


@gluon.jit
def _wgmma_kernel(a_ptr, b_ptr, c_ptr, N: gl.constexpr, K: gl.constexpr, FENCE: gl.constexpr, OVERWRITE: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    dtype: gl.constexpr = a_ptr.dtype.element_ty
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 256 // dtype.primitive_bitwidth])
    shared: gl.constexpr = gl.NVMMASharedLayout(64, dtype.primitive_bitwidth, 2)
    offsets_a, _ = _offsets(K, 64, K, layout)
    offsets_b, _ = _offsets(K, N, K, layout)
    offsets_c, _ = _offsets(N, 64, N, mma)
    a = gl.convert_layout(gl.load(a_ptr + offsets_a), gl.DotOperandLayout(0, mma, 32 // dtype.primitive_bitwidth))
    b = gl.allocate_shared_memory(dtype, [N, K], shared, gl.load(b_ptr + offsets_b))
    if FENCE:
        fence_async_shared()
    acc = warpgroup_mma_init(gl.zeros([64, N], gl.float32, layout=mma))
    acc = warpgroup_mma(a, b.permute([1, 0]), acc, is_async=True)
    if OVERWRITE:
        b.store(gl.load(b_ptr + offsets_b))
    c = warpgroup_mma_wait(0, deps=[acc])
    gl.store(c_ptr + offsets_c, c)


def _operands(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(64, 32).to(dtype), torch.randn(16, 32).to(dtype), torch.full((64, 16), torch.nan)


@pytest.mark.parametrize(("dtype", "cut"), [(torch.float32, 0xFFFFE000), (torch.bfloat16, 0xFFFFFFFF)])
def test_wgmma_multiplies_what_the_tensor_core_keeps(dtype, cut):
    a, b, c = _operands(dtype)

    run(_wgmma_kernel, (1,), a, b, c, N=16, K=32, FENCE=True, OVERWRITE=False, num_warps=4)

    kept = [(x.float().numpy().view(np.uint32) & np.uint32(cut)).view(np.float32).astype(np.float64) for x in (a, b)]
    np.testing.assert_allclose(c.numpy(), kept[0] @ kept[1].T, atol=5e-6)  # sums of 32 products in fp32


@pytest.mark.parametrize(
    ("options", "message"), [((False, False), "fence_async_shared"), ((True, True), "still reads")]
)
def test_wgmma_without_fence_or_wait_is_caught(options, message):
    with pytest.raises(MemoryFault, match=message):
        run(_wgmma_kernel, (1,), *_operands(torch.float32), N=16, K=32, FENCE=options[0], OVERWRITE=options[1])


@gluon.jit
def _table_kernel(table_ptr, slots_ptr, out_ptr, SIZE: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    pid = gl.program_id(0)
    slot = gl.load(slots_ptr + pid)
    if slot <= 0:
        return
    address = gl.load(table_ptr + pid)
    state_ptr = gl.multiple_of(address.to(gl.pointer_type(gl.bfloat16)), 2)
    offs = gl.arange(0, SIZE, layout=layout)
    x = gl.load(state_ptr + slot.to(gl.int64) * SIZE + offs).to(gl.float32)
    scan = gl.associative_scan(x, 0, _sum)
    gl.store(out_ptr + pid * SIZE + offs, scan / gl.sum(x, axis=0))


@gluon.jit
def _sum(a, b):
    return a + b


@pytest.mark.parametrize("last_slot", [3, 4])
def test_pointers_from_a_table_reach_the_memory_that_was_named(last_slot):
    torch.manual_seed(0)
    pools = [torch.rand(4, 32).to(torch.bfloat16) for _ in range(3)]
    table = torch.tensor([pool.data_ptr() for pool in pools])
    slots, out = torch.tensor([1, 0, last_slot], dtype=torch.int32), torch.full((3, 32), torch.nan)

    if last_slot == 4:
        with pytest.raises(MemoryFault, match="outside every argument"):
            run(_table_kernel, (3,), table, slots, out, SIZE=32, memory=pools)
        return
    run(_table_kernel, (3,), table, slots, out, SIZE=32, memory=pools)

    for row, slot in ((0, 1), (2, 3)):
        x = pools[row][slot].double()
        torch.testing.assert_close(out[row].double(), x.cumsum(0) / x.sum(), rtol=1e-6, atol=0)
    assert out[1].isnan().all()


@gluon.jit
def _async_copy_kernel(x_ptr, y_ptr, SIZE: gl.constexpr, WAIT: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    offs = gl.arange(0, SIZE, layout=layout)
    memory = gl.allocate_shared_memory(gl.float32, [SIZE], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    async_load(memory, x_ptr + offs, mask=offs < SIZE // 2)
    async_copy.commit_group()
    if WAIT:
        async_copy.wait_group(0)
    x = memory.load(layout)
    async_copy.wait_group(0)
    rounded = gl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=gl.float32, is_pure=True, pack=1)
    gl.store(y_ptr + offs, rounded)


@gluon.jit
def _vector_load_kernel(x_ptr, y_ptr, STEP: gl.constexpr, START: gl.constexpr):
    offs = gl.arange(0, 64, layout=gl.BlockedLayout([4], [32], [1], [0]))
    x = load_lines(x_ptr + START + offs * STEP, True)
    gl.store(y_ptr + offs, x)


def test_a_load_of_16_bytes_takes_what_follows_the_first_of_its_pointers():
    x, y = torch.arange(256.0), torch.zeros(64)

    run(_vector_load_kernel, (1,), x, y, STEP=1, START=4)

    assert torch.equal(y, x[4:68])
    with pytest.raises(MemoryFault, match="expected 4 pointers to items side by side"):
        run(_vector_load_kernel, (1,), x, y, STEP=2, START=4)
    with pytest.raises(MemoryFault, match="multiple of 16 bytes"):
        run(_vector_load_kernel, (1,), x, y, STEP=1, START=1)


@pytest.mark.parametrize("wait", [True, False])
def test_an_asynchronous_copy_holds_poison_until_its_wait(wait):
    x, y = torch.full((128,), 1 + 2**-11), torch.zeros(128)

    run(_async_copy_kernel, (1,), x, y, SIZE=128, WAIT=wait)

    expected = torch.where(torch.arange(128) < 64, 1 + 2**-10, 0.0) if wait else torch.full((128,), torch.nan)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


@gluon.jit
def _tma_kernel(x_desc, y_desc, WAIT: gl.constexpr):
    memory = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_type.shape, x_desc.layout)
    barrier = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(barrier, count=1)
    mbarrier.expect(barrier, x_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(x_desc, [gl.program_id(0) * 16, 32], barrier, memory)
    if WAIT:
        mbarrier.wait(barrier, 0)
    mbarrier.invalidate(barrier)
    tma.async_copy_shared_to_global(y_desc, [gl.program_id(0) * 16, 0], memory)
    tma.store_wait(0)


def test_tma_copies_a_box_and_zeros_outside_the_tensor():
    layout = gl.NVMMASharedLayout(64, 32, 2)
    x, y = torch.randn(20, 40), torch.full((32, 16), torch.nan)
    boxes = [TensorDescriptor.from_tensor(t, [16, 16], layout) for t in (x, y)]

    run(_tma_kernel, (2,), *boxes, WAIT=True)

    expected = torch.zeros(32, 16)
    expected[:20, :8] = x[:, 32:]
    assert torch.equal(y, expected)
    with pytest.raises(MemoryFault, match="nobody waited for"):
        run(_tma_kernel, (2,), *boxes, WAIT=False)


@gluon.jit
def _promotion_kernel(half_ptr, int_ptr, bool_ptr, out_ptr):
    half, number, flag = gl.load(half_ptr), gl.load(int_ptr), gl.load(bool_ptr)
    gl.store(out_ptr, half + half * 3.0)  # rounds twice to bf16
    gl.store(out_ptr + 1, half.to(gl.float32) + half * 3.0)
    gl.store(out_ptr + 2, number // 2)  # toward zero
    gl.store(out_ptr + 3, number % 4)
    gl.store(out_ptr + 4, number / 2)
    gl.store(out_ptr + 5, gl.where(flag & (number < 0), -1.5, 2))
    gl.store(out_ptr + 6, half.to(gl.int16, bitcast=True))
    gl.store(out_ptr + 7, max(number, 3) + min(2, 1))


def test_numbers_have_triton_types_and_rounding():
    x = torch.tensor(1.0078125, dtype=torch.bfloat16)
    out = torch.full((8,), torch.nan)

    run(_promotion_kernel, (1,), x, torch.tensor(-7, dtype=torch.int32), torch.tensor(True), out)

    thrice = (x.float() * 3).bfloat16()
    sums = [(x.float() + thrice.float()).bfloat16().item(), (x.float() + thrice.float()).item()]
    assert out.tolist() == [*sums, -3, -3, -3.5, -1.5, x.view(torch.int16).item(), 4]


@gluon.jit
def _chained_kernel(x_ptr, y_ptr, EARLY: gl.constexpr, WAITS: gl.constexpr):
    gdc_launch_dependents()
    x = gl.load(x_ptr)
    if EARLY == "write":
        gl.store(y_ptr, x)
    if EARLY == "read":
        x += gl.load(y_ptr)
    if WAITS:
        gdc_wait()
    gl.store(y_ptr, x)


@pytest.mark.parametrize(
    ("early", "waits", "message"),
    [
        ("", True, None),
        ("read", True, r"reads y_ptr before gdc_wait"),
        ("write", True, r"writes y_ptr before gdc_wait"),
        ("", False, r"writes y_ptr before gdc_wait"),
    ],
)
def test_memory_of_the_kernel_before_is_left_alone_until_it_is_complete(early, waits, message):
    x, y = torch.ones(1), torch.zeros(1)
    options = {"EARLY": early, "WAITS": waits, "read_early": {"x_ptr"}}

    run(_chained_kernel, (1,), x, y, **options)  # an ordinary launch begins when all before it is complete
    assert y.item() == 1
    if message is None:
        run(_chained_kernel, (1,), x, y, **options, launch_pdl=True)
    else:
        with pytest.raises(MemoryFault, match=message):
            run(_chained_kernel, (1,), x, y, **options, launch_pdl=True)


@gluon.jit
def _hasty_kernel(x_ptr, y_ptr):
    gl.load(x_ptr)


def test_a_program_that_never_waits_is_caught():
    """Who waits for it would not have waited for the kernels before it."""
    with pytest.raises(MemoryFault, match="ends without gdc_wait"):
        run(_hasty_kernel, (1,), torch.ones(1), torch.ones(1), read_early={"x_ptr"}, launch_pdl=True)
