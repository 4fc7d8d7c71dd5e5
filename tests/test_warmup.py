"""warm_up compiles all that a configuration launches: nothing is left to a capture, or to a request that waits."""

from dataclasses import replace

import pytest
import torch

from recoverssm import (
    AlignInputs,
    CaptureError,
    CommitContext,
    GateParams,
    RecordRows,
    Records,
    RecoverSSMConfig,
    verify,
    warm_up,
)
from recoverssm.dispatch import planned_for
from recoverssm.triton_compat import KernelLaunch
from tests.calls import noted_launches

CONFIG = RecoverSSMConfig(num_heads=12, draft_tokens=7, max_num_requests=40)
CONFIGS = {
    "kimi": CONFIG,
    "bf16": replace(CONFIG, state_dtype=torch.bfloat16, draft_tokens=3),
    "unbounded": replace(CONFIG, gate_lower_bound=None),
    "draftless": replace(CONFIG, draft_tokens=0, num_heads=1),
    "pages": replace(CONFIG, placement="page", conv_layout="DS"),
    "align": replace(CONFIG, cache_mode="align", block_size=3),
    "deferred": replace(CONFIG, commit="deferred"),
    "deferred, align": replace(CONFIG, commit="deferred", cache_mode="align", block_size=3, draft_tokens=9),
    "deferred, small": replace(CONFIG, commit="deferred", key_dim=32, value_dim=64),
    "few heads": replace(CONFIG, num_heads=6, activation_dtype=torch.float16),
    "small": replace(CONFIG, key_dim=32, value_dim=64, activation_dtype=torch.float32),
}


@pytest.fixture
def launches(monkeypatch):
    """Kernel, whether each tensor begins at a multiple of 16 bytes, scalars and constants of what would be launched.

    Memory that is only planned for begins there too, but not every part of it.
    """
    launches = []

    def note(launch, tensors, addresses):
        launches.append((launch.kernel, tuple(a % 16 == 0 for a in addresses), launch.scalars, launch.constants))

    monkeypatch.setattr(KernelLaunch, "__call__", note)
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda tensor: tensor.storage_offset() * tensor.element_size())
    return launches


def compiled(launches):
    """What Triton compiles for each: kernel, alignment, constants, and of a number whether it is 1 or 16 divides it."""
    found = set()
    for kernel, aligned, scalars, constants in launches:
        general = getattr(kernel, "kwargs", vars(kernel))["do_not_specialize"] or ()  # interpreted, or compiled
        names = [name for name in kernel.arg_names if not name.endswith("_ptr")]
        kinds = tuple(
            (name, (value == 1, value % 16 == 0) if isinstance(value, int) and name not in general else type(value))
            for name, value in zip(names, (value for value in scalars if value is not None), strict=False)
        )
        found.add((kernel.__name__, aligned, scalars.count(None), kinds, tuple(sorted(constants.items()))))
    return found


def run_steps(config):
    """What an engine launches: three layers in padded pages, slices of one projection, any number of rows."""
    shape, rows, dtype = config.layer_shape, config.max_num_requests, config.activation_dtype
    H, T, K, V = shape.num_heads, shape.spec_query_len, shape.key_dim, shape.value_dim

    def paged(num_slots, *size, dtype=torch.float32):
        page = torch.Size(size).numel() + 48
        inner = torch.empty(size, device="meta").stride()
        return torch.empty(num_slots * page, dtype=dtype, device="meta").as_strided((num_slots, *size), (page, *inner))

    layout = config.page_layout(config.page_layout().page_bytes + 576)
    pool = torch.empty(rows + 1, 3, layout.page_bytes, dtype=torch.uint8, device="meta")
    states, convs, records = zip(*(layout.views(pool[:, layer]) for layer in range(3)), strict=True)
    if config.placement == "scratch":
        R = config.num_record_rows
        C = T + config.history_len
        records = [
            Records(paged(R, H, C, V), paged(R, H, C, 2 * K, dtype=dtype), history_len=config.history_len)
            for _ in range(3)
        ]
    gate = GateParams(torch.empty(3, H, device="meta"), torch.empty(3, H, K, device="meta"), config.gate_lower_bound)
    context = CommitContext(states, records, convs, gate, max_num_rows=rows, block_size=config.block_size)
    for num_rows in range(1, rows + 1):
        tokens = num_rows * T
        sizes = [H * K, H * K, H * V, H * K]
        fused = torch.empty(tokens, sum(sizes), dtype=dtype, device="meta")
        q, k, v, raw_gate = (x.unflatten(-1, (H, -1)) for x in fused.split(sizes, dim=-1))
        flat_beta = torch.empty(3 + tokens, H, dtype=dtype, device="meta")  # of a batch with 3 other tokens
        ints = torch.empty(4, 2 * rows + 8, dtype=torch.int32, device="meta").unbind()
        starts, slots, requests = ints[0][: num_rows + 1], ints[1][:num_rows], ints[2][:num_rows]
        record_rows, deferral = None, {}
        if config.commit == "deferred":
            columns = torch.empty(2, 4 * (rows // 4 + 1), dtype=torch.int32, device="meta")
            written, waiting = (column[:num_rows] for column in columns.unbind())
            lens = torch.empty(config.num_record_rows, dtype=torch.int32, device="meta")
            takes_history = context.takes_history(num_rows)
            record_rows = RecordRows(written, context.plan_waiting(waiting, lens, slots) if takes_history else None)
            deferral = {"record_rows": record_rows, "waiting_lens": lens}
            context.commit_waiting(waiting, lens, slots)
        layer_gate = GateParams(gate.A_log[1], gate.dt_bias[1], gate.lower_bound)
        for raw_beta in (flat_beta[:tokens], flat_beta[3:]):
            verify(
                q, k, v, raw_gate, raw_beta, states[1], records[1], layer_gate, starts, slots, record_rows=record_rows
            )
        for sampled, request_indices in ((ints[3][:num_rows], None), (ints[3], requests)):
            blocks = [None]
            if config.block_size:
                table = torch.empty(sampled.numel(), 70, dtype=torch.int32, device="meta")[:, :64]
                blocks = [AlignInputs(sampled, table, config.block_size, running) for running in (None, sampled)]
            for align in blocks:
                context.commit(sampled, starts, slots, request_indices=request_indices, align=align, **deferral)


@pytest.mark.parametrize("recorded", [False, True])
def test_what_takes_recorded_keys_and_gates_is_compiled_where_that_is_asked_for(recorded):
    with planned_for(90), noted_launches() as launches:
        warm_up(CONFIG, "meta", key_gate_recorded=recorded)

    assert {constants["RECORDED"] for *_, constants in launches if "RECORDED" in constants} == {recorded}


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_steps_launch_nothing_that_was_not_compiled(config, arch, launches):
    with planned_for(arch):
        warm_up(config, "meta")
        warm = compiled(launches)
        launches.clear()

        run_steps(config)

        assert compiled(launches) <= warm
        assert {name for name, *_ in warm} == {name for name, *_ in compiled(launches)}


def test_an_early_start_is_compiled_beside_the_other():
    with planned_for(90), noted_launches() as launches:
        warm_up(CONFIG, "meta", enable_pdl=True)

    verifies = [constants for kernel, *_, constants in launches if "verify" in kernel.__name__]
    assert {constants["PDL"] for constants in verifies} == {False, True}


def test_there_is_nothing_to_compile_for_the_cpu():
    with noted_launches() as launches:
        warm_up(CONFIG, "cpu")

    assert launches == []


@pytest.mark.gpu
def test_a_step_is_captured_after_warm_up_and_refused_before():
    """With 5 heads, which no other test of this process has compiled for."""
    config = RecoverSSMConfig(num_heads=5, draft_tokens=2, max_num_requests=3)
    H, T, K, V = 5, 3, 128, 128
    pool = torch.zeros(4, H, V, K, device="cuda")
    key_gate = torch.zeros(3, H, T, 2 * K, dtype=torch.bfloat16, device="cuda")
    records = Records(torch.zeros(3, H, T, V, device="cuda"), key_gate)
    gate = GateParams(torch.zeros(1, H, device="cuda"), torch.zeros(1, H, K, device="cuda"), -5.0)
    layer_gate = GateParams(gate.A_log[0], gate.dt_bias[0], -5.0)
    context = CommitContext([pool], [records], [], gate, max_num_rows=3)
    x = torch.randn(9, H, K, device="cuda").bfloat16()
    beta = torch.randn(9, H, device="cuda").bfloat16()
    starts = torch.arange(0, 10, 3, dtype=torch.int32, device="cuda")
    slots = torch.arange(1, 4, dtype=torch.int32, device="cuda")

    def capture():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.mul_(1)  # torch warns of empty graphs
            verify(x, x, x, x, beta, pool, records, layer_gate, starts, slots)
            context.commit(slots, starts, slots)
        return graph

    with pytest.raises(CaptureError, match="warm_up"):
        capture()
    torch.cuda.synchronize()
    assert not pool.any()
    warm_up(config, "cuda")
    capture().replay()
    assert pool[1:].any()
