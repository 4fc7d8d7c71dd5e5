"""Bad input: every public op names the argument, says what was expected and what came, and writes nothing."""

from dataclasses import replace

import pytest
import torch

import recoverssm
from recoverssm import (
    AlignInputs,
    AlignPlan,
    ArgumentError,
    CommitContext,
    CommitPlan,
    ConfigError,
    DeviceError,
    DtypeError,
    GateParams,
    KDAShape,
    LayerTable,
    Records,
    ShapeError,
    StrideError,
    checks,
)
from tests.calls import verify_arguments
from tests.windows import FULL, Window, int32, padded, storage_bits

N, H, K, V, T = 3, 2, 32, 32, 4
M = N * T


def shortened(plan, name):
    return replace(plan, **{name: getattr(plan, name)[:-1]})


def twice(table):
    return LayerTable.of("twice", [table.element_type, table.element_type.clone()])


def transposed(x):
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


BAD_VERIFY = [
    ("q", lambda x: x[0], ShapeError, r"q: expected \[M, H, K\], got \[2, 32\]"),
    ("k", lambda x: x[:, :1], ShapeError, r"k: expected \[M=12, H=2, K=32\], got \[12, 1, 32\]"),
    ("v", lambda x: x.to(torch.float32), DtypeError, r"v: expected bfloat16, got float32"),
    ("raw_gate", transposed, StrideError, r"raw_gate: expected dimensions 1\.\. to be contiguous"),
    ("raw_beta", lambda x: x[:-1], ShapeError, r"raw_beta: expected \[M=12, H=2\], got \[11, 2\]"),
    ("q", lambda x: x.to("meta"), DeviceError, r"q: expected a CUDA device, got meta"),
    ("k", lambda x: x.to("meta"), DeviceError, r"k: expected cpu like the first argument, got meta"),
    (
        "checkpoint_state",
        lambda x: x.half(),
        DtypeError,
        r"checkpoint_state: expected float32 or bfloat16, got float16",
    ),
    ("checkpoint_state", lambda x: x[:, :, :, :16], ShapeError, r"checkpoint_state: expected \[P, H=2, V=32, K=32\]"),
    ("checkpoint_state", transposed, StrideError, r"checkpoint_state: .* call \.contiguous\(\)"),
    ("query_start_loc", lambda x: x.long(), DtypeError, r"query_start_loc: expected int32, got int64"),
    ("query_start_loc", lambda x: x[:-1], ShapeError, r"query_start_loc: expected \[N=4\], got \[3\]"),
    ("state_indices", lambda x: x[:, None], ShapeError, r"state_indices: expected \[N\], got \[3, 1\]"),
    ("state_indices", lambda x: x.float(), DtypeError, r"state_indices: expected int32"),
    ("out", lambda x: x[:, :, :16], ShapeError, r"out: expected \[M=12, H=2, V=32\]"),
    ("out", transposed, StrideError, r"out: expected dimensions 1\.\. to be contiguous"),
    (
        "state_indices",
        lambda x: x.repeat_interleave(2)[::2],
        StrideError,
        r"state_indices: expected dimensions 0\.\. to be",
    ),
]


@pytest.mark.parametrize(("name", "spoil", "error", "message"), BAD_VERIFY)
def test_verify_names_the_bad_argument_and_writes_nothing(name, spoil, error, message):
    window = Window(FULL, "cpu")
    arguments = verify_arguments(window)
    out, correction = storage_bits(window.out), storage_bits(window.records[0].correction)
    arguments[name] = spoil(arguments[name])

    with pytest.raises(error, match=message):
        recoverssm.verify(**arguments)

    assert torch.equal(storage_bits(window.out), out)
    assert torch.equal(storage_bits(window.records[0].correction), correction)


BAD_RECORDS = [
    (lambda c, g: (c[:2], g[:2]), ShapeError, r"records\.correction: expected at least 3 rows"),
    (lambda c, g: (c.bfloat16(), g), DtypeError, r"records\.correction: expected float32"),
    (lambda c, g: (c, g.float()), DtypeError, r"records\.key_gate: expected bfloat16"),
    (lambda c, g: (c, g[:, :, :, :32]), ShapeError, r"records\.key_gate: expected \[R=4, H=2, C=4, 2K=64\]"),
    (lambda c, g: (transposed(c), g), StrideError, r"records\.correction: expected dimensions 1\.\."),
    (lambda c, g: (c, transposed(g)), StrideError, r"records\.key_gate: expected dimensions 1\.\."),
    (lambda c, g: (c.repeat(1, 1, 5, 1), g), ShapeError, r"records\.correction: T: expected 1 to 16 tokens"),
]


@pytest.mark.parametrize(("spoil", "error", "message"), BAD_RECORDS)
def test_verify_names_bad_records(spoil, error, message):
    window = Window(FULL, "cpu")
    records = Records(*spoil(window.records[0].correction, window.records[0].key_gate))

    with pytest.raises(error, match=message):
        recoverssm.verify(**(verify_arguments(window) | {"records": records}))


def test_verify_names_bad_gate_parameters():
    window = Window(FULL, "cpu")

    with pytest.raises(ShapeError, match=r"gate\.A_log: expected \[H=2\], got \[1, 2\]"):
        recoverssm.verify(**(verify_arguments(window) | {"gate": window.gate}))
    gate = GateParams(window.gate.A_log[0], transposed(window.gate.dt_bias[0]), -5.0)
    with pytest.raises(StrideError, match=r"gate\.dt_bias: expected dimensions 0\.\."):
        recoverssm.verify(**(verify_arguments(window) | {"gate": gate}))


def test_head_sizes_that_are_no_power_of_two_are_refused():
    window = Window(FULL, "cpu")
    arguments = verify_arguments(window)
    for name in ("q", "k", "raw_gate"):
        arguments[name] = arguments[name][:, :, :24].contiguous()

    with pytest.raises(ShapeError, match=r"q: K: expected a power of two of at least 16, got 24"):
        recoverssm.verify(**arguments)
    arguments = verify_arguments(window) | {"v": window.v[:, :, :24].contiguous()}
    with pytest.raises(ShapeError, match=r"v: V: expected a power of two of at least 16, got 24"):
        recoverssm.verify(**arguments)


def test_tensors_on_the_cpu_are_refused_where_kernels_are_compiled(monkeypatch, nothing_kept):
    monkeypatch.setattr(checks, "DEVICE_TYPES", ("cuda",))
    window, row = Window(FULL, "cpu"), int32([1], "cpu")
    plan = CommitPlan(row, row, row)
    message = r": expected a CUDA device, got cpu; to try kernels on the CPU, set TRITON_INTERPRET=1"

    with pytest.raises(DeviceError, match="q" + message):
        recoverssm.verify(**verify_arguments(window))
    with pytest.raises(DeviceError, match="num_sampled" + message):
        recoverssm.commit_plan(row, int32([0, 1], "cpu"), row, plan, spec_query_len=1)
    with pytest.raises(DeviceError, match="conv_states" + message):
        recoverssm.compact_conv(LayerTable.of("conv", [torch.zeros(2, 5, 24)]), plan, conv_width=4)
    with pytest.raises(DeviceError, match="checkpoint_states" + message):
        CommitContext(window.checkpoint_states, window.records, [], window.gate, max_num_rows=1)


BAD_FULL_STATE = [
    ("state_indices", lambda x: x[:, 0], ShapeError, r"state_indices: expected \[N, T\], got \[3\]"),
    ("state_indices", lambda x: x.repeat(1, 5), ShapeError, r"state_indices: T: expected 1 to 16"),
    ("num_accepted", lambda x: x[:2], ShapeError, r"num_accepted: expected \[N=3\], got \[2\]"),
    ("num_accepted", lambda x: x.long(), DtypeError, r"num_accepted: expected int32, got int64"),
    ("state_pool", transposed, StrideError, r"state_pool: .* call \.contiguous\(\)"),
    ("state_pool", lambda x: x[:1].expand(x.shape), StrideError, r"state_pool: expected elements that share no memory"),
    ("out", lambda x: x[:1].expand(x.shape), StrideError, r"out: expected elements that share no memory, .* expanded"),
    ("state_indices", transposed, StrideError, r"state_indices: expected dimensions 1\.\."),
    ("out", lambda x: x[:, :1], ShapeError, r"out: expected \[M=12, H=2, V=32\], got \[12, 1, 32\]"),
    ("state_pool", lambda x: x.double(), DtypeError, r"state_pool: expected float32 or bfloat16, got float64"),
]


@pytest.mark.parametrize(("name", "spoil", "error", "message"), BAD_FULL_STATE)
def test_full_state_verify_names_the_bad_argument(name, spoil, error, message):
    window = Window(FULL, "cpu")
    arguments = verify_arguments(window)
    arguments["state_pool"] = arguments.pop("checkpoint_state")
    del arguments["records"]
    arguments |= {"state_indices": int32([[1, 2, 3, 4]] * 3, "cpu"), "num_accepted": int32([1, 1, 1], "cpu")}
    arguments[name] = spoil(arguments[name])

    with pytest.raises(error, match=message):
        recoverssm.full_state_verify(**arguments)


def test_commit_plan_names_the_bad_argument():
    rows, plan = int32([1, 2], "cpu"), CommitPlan(*(int32([9, 9], "cpu") for _ in range(3)))
    starts = int32([0, 4, 8], "cpu")

    with pytest.raises(DtypeError, match=r"num_sampled: expected int32, got int64"):
        recoverssm.commit_plan(rows.long(), starts, rows, plan, spec_query_len=4)
    with pytest.raises(ShapeError, match=r"plan\.commit_lens: expected \[N=1\], got \[2\]"):
        recoverssm.commit_plan(rows, starts[:2], rows[:1], plan, spec_query_len=4)
    with pytest.raises(ShapeError, match=r"spec_query_len: expected 1 to 16"):
        recoverssm.commit_plan(rows, starts, rows, plan, spec_query_len=17)
    with pytest.raises(ShapeError, match=r"request_indices: expected \[N=2\], got \[1\]"):
        recoverssm.commit_plan(rows, starts, rows, plan, spec_query_len=4, request_indices=rows[:1])
    assert plan.commit_lens.tolist() == [9, 9]


BAD_ALIGN = [
    ("align", {"num_computed": int32([1], "cpu")}, r"align\.num_computed: expected \[N=2\], got \[1\]"),
    ("align", {"block_table": int32([1, 2], "cpu")}, r"align\.block_table: expected \[B=2, C\], got \[2\]"),
    ("align", {"block_table": int32([[1]], "cpu")}, r"align\.block_table: expected \[B=2, C\], got \[1, 1\]"),
    ("align", {"block_table": int32([[1, 2]] * 2, "cpu").t()}, r"align\.block_table: expected dimensions 1\.\."),
    ("align", {"block_table": int32([[1]] * 2, "cpu").long()}, r"align\.block_table: expected int32, got int64"),
    ("align", {"block_size": 1}, r"boundaries\.lens: expected at least 4 boundaries a row .*, got 2"),
    ("plan", {"final_columns": int32([1], "cpu")}, r"plan\.final_columns: expected \[N=2\], got \[1\]"),
]


@pytest.mark.parametrize(("name", "change", "message"), BAD_ALIGN)
def test_align_plan_names_the_bad_argument(name, change, message):
    rows, starts = int32([1, 2], "cpu"), int32([0, 4, 8], "cpu")
    align = AlignInputs(rows, int32([[1, 2], [3, 4]], "cpu"), 3)
    plan = AlignPlan.zeros(2, spec_query_len=4, block_size=3)
    plan.final_columns.fill_(9)
    arguments = {"align": align, "plan": plan}
    arguments[name] = replace(arguments[name], **change)

    with pytest.raises(ArgumentError, match=message):
        recoverssm.align_plan(rows, starts, rows, **arguments, spec_query_len=4)
    assert plan.final_columns.tolist() == [9, 9]


@pytest.mark.parametrize("part", ["lens", "slots"])
def test_align_plan_names_boundaries_that_do_not_fit(part):
    rows, starts = int32([1, 2], "cpu"), int32([0, 4, 8], "cpu")
    align = AlignInputs(rows, int32([[1, 2], [3, 4]], "cpu"), 3)
    plan = AlignPlan.zeros(2, spec_query_len=4, block_size=3)
    good = getattr(plan.boundaries, part)

    for bad, error in ((good[:1], ShapeError), (good.long(), DtypeError), (transposed(good), StrideError)):
        with pytest.raises(error, match=rf"plan\.boundaries\.{part}: expected"):
            recoverssm.align_plan(
                rows, starts, rows, align, replace(plan, boundaries=replace(plan.boundaries, **{part: bad})),
                spec_query_len=4,
            )  # fmt: skip


def test_layers_must_agree():
    first = padded((3, H, V, K), torch.float32, "cpu")

    with pytest.raises(ShapeError, match=r"pool: expected one tensor per layer, got none"):
        LayerTable.of("pool", [])
    with pytest.raises(ShapeError, match=r"pool\[0\]: expected entries along a first dimension, got a single number"):
        LayerTable.of("pool", [torch.tensor(1.0)])
    with pytest.raises(ShapeError, match=r"pool\[1\]: expected \[3, 2, 32, 32\] as in layer 0, got \[2, 2, 32, 32\]"):
        LayerTable.of("pool", [first, first[:2]])
    with pytest.raises(DtypeError, match=r"pool\[1\]: expected torch\.float32 as in layer 0"):
        LayerTable.of("pool", [first, first.bfloat16()])
    with pytest.raises(StrideError, match=r"pool\[1\]: expected inner strides"):
        LayerTable.of("pool", [first, transposed(first)])
    with pytest.raises(DeviceError, match=r"pool\[1\]: expected cpu as layer 0, got meta"):
        LayerTable.of("pool", [first, first.to("meta")])
    with pytest.raises(ArgumentError, match=r"pool\[2\]: expected memory of its own, got that of layer 0"):
        LayerTable.of("pool", [first, padded((3, H, V, K), torch.float32, "cpu"), first])


def test_commit_state_names_the_bad_argument():
    window = Window(FULL, "cpu")
    states = LayerTable.of("s", window.checkpoint_states)
    corrections = LayerTable.of("c", [window.records[0].correction])
    key_gates = LayerTable.of("k", [window.records[0].key_gate])
    plan = window.plan([1, 1, 1])
    before = storage_bits(window.checkpoint_states[0])

    with pytest.raises(ShapeError, match=r"corrections: expected 1 layers like the first table, got 2"):
        recoverssm.commit_state(states, twice(corrections), key_gates, plan, window.gate)
    with pytest.raises(ShapeError, match=r"gate\.A_log: expected \[L=1, H=2\], got \[2\]"):
        recoverssm.commit_state(states, corrections, key_gates, plan, window.layer_gate())
    with pytest.raises(ShapeError, match=r"key_gates: expected 1 layers like the first table, got 2"):
        recoverssm.commit_state(states, corrections, twice(key_gates), plan, window.gate)
    for name in ("checkpoint_states", "corrections", "key_gates"):
        tables = {"checkpoint_states": states, "corrections": corrections, "key_gates": key_gates}
        tables[name] = LayerTable.of(name, [transposed(tables[name].element_type)])
        with pytest.raises(StrideError, match=rf"{name}: expected dimensions 1\.\. to be contiguous"):
            recoverssm.commit_state(**tables, plan=plan, gate=window.gate)
    expanded = LayerTable.of("s", [states.element_type[:1].expand(states.element_type.shape)])
    with pytest.raises(StrideError, match=r"checkpoint_states: expected elements that share no memory"):
        recoverssm.commit_state(expanded, corrections, key_gates, plan, window.gate)
    for name in ("source_slots", "final_slots"):
        with pytest.raises(ShapeError, match=rf"plan\.{name}: expected \[N=3\], got \[2\]"):
            recoverssm.commit_state(states, corrections, key_gates, shortened(plan, name), window.gate)
    with pytest.raises(ShapeError, match=r"corrections: expected at least 5 rows, one per row of the batch, got 4"):
        recoverssm.commit_state(
            states, corrections, key_gates, CommitPlan(*(int32([1] * 5, "cpu") for _ in range(3))), window.gate
        )
    assert torch.equal(storage_bits(window.checkpoint_states[0]), before)


def test_compact_conv_names_the_bad_argument():
    conv = LayerTable.of("conv", [padded((3, 5, 24), torch.bfloat16, "cpu")])
    plan = CommitPlan(*(int32([1], "cpu") for _ in range(3)))

    with pytest.raises(ShapeError, match=r"conv_width: expected 2 to 6 for a window of 5, got 7"):
        recoverssm.compact_conv(conv, plan, conv_width=7)
    with pytest.raises(ShapeError, match=r"conv_states: expected \[P, S, C\]"):
        recoverssm.compact_conv(LayerTable.of("conv", [torch.zeros(3, 5)]), plan, conv_width=4)
    with pytest.raises(StrideError, match=r"conv_states: expected elements that share no memory, got strides"):
        recoverssm.compact_conv(LayerTable.of("conv", [torch.zeros(1, 5, 24).expand(3, 5, 24)]), plan, conv_width=4)
    for name in ("source_slots", "final_slots"):
        with pytest.raises(ShapeError, match=rf"plan\.{name}: expected \[N=1\], got \[0\]"):
            recoverssm.compact_conv(conv, shortened(plan, name), conv_width=4)


def test_commit_context_names_the_bad_argument():
    window = Window(FULL, "cpu")
    make = lambda **change: CommitContext(  # noqa: E731
        **(
            {
                "checkpoint_states": window.checkpoint_states,
                "records": window.records,
                "conv_states": [],
                "gate": window.gate,
                "max_num_rows": 2,
            }
            | change
        )
    )

    with pytest.raises(ShapeError, match=r"records: expected 1 layers, got 2"):
        make(records=window.records * 2)
    with pytest.raises(ShapeError, match=r"max_num_rows: expected 1 to 4, the rows of records, got 0"):
        make(max_num_rows=0)
    with pytest.raises(ShapeError, match=r"max_num_rows: expected 1 to 4, the rows of records, got 5"):
        make(max_num_rows=5)
    with pytest.raises(ShapeError, match=r"state_indices: expected \[N\], got \[\]"):
        make().commit(int32([1], "cpu"), window.query_start_loc[:2], window.state_indices[0])
    with pytest.raises(ShapeError, match=r"state_indices: expected at most max_num_rows=2 rows, got 3"):
        make().commit(int32([1, 1, 1], "cpu"), window.query_start_loc, window.state_indices)


BAD_CONTEXT = [
    ("gate", lambda w: w.layer_gate(), ShapeError, r"gate\.A_log: expected \[L=1, H=2\], got \[2\]"),
    ("records", lambda w: [Records(r.correction, r.key_gate[:, :, :3]) for r in w.records], ShapeError, r"key_gates: "),
    ("conv_states", lambda w: [torch.zeros(7, 5, 24)], ShapeError, r"conv_states: expected windows of at least 6 tok"),
    (
        "conv_states",
        lambda w: [torch.zeros(6, 6, 24)],
        ShapeError,
        r"conv_states: expected \[P=7, S, C\], got \[6, 6, 24",
    ),
    (
        "conv_states",
        lambda w: [torch.zeros(7, 6, 24).double()],
        DtypeError,
        r"conv_states: expected bfloat16 or float16",
    ),
    (
        "conv_states",
        lambda w: [torch.zeros(7, 6, 24, device="meta")],
        DeviceError,
        r"conv_states: expected a CUDA device",
    ),
    ("conv_width", lambda w: 9, ShapeError, r"conv_width: expected 2 to 7 for a window of 6, got 9"),
]


@pytest.mark.parametrize(("name", "bad", "error", "message"), BAD_CONTEXT)
def test_commit_context_refuses_at_construction_what_would_fail_between_launches(name, bad, error, message):
    """Once the state is folded, an error about the conv window comes too late: a repeated commit would fold again."""
    window = Window(FULL, "cpu")
    arguments = {"records": window.records, "conv_states": [torch.zeros(7, 6, 24)], "gate": window.gate}

    with pytest.raises(error, match=message):
        CommitContext(window.checkpoint_states, max_num_rows=3, **(arguments | {name: bad(window)}))


def test_impossible_shapes_and_gates_are_refused_at_construction():
    with pytest.raises(ConfigError, match=r"spec_query_len: expected at most 16"):
        KDAShape(num_heads=12, spec_query_len=17)
    with pytest.raises(ConfigError, match=r"num_heads: expected at least 1, got 0"):
        KDAShape(num_heads=0, spec_query_len=4)
    for lower_bound in (5.0, 0.0, float("nan"), float("-inf")):
        with pytest.raises(ConfigError, match=r"lower_bound: expected a finite negative number, got .* it is None"):
            GateParams(torch.zeros(1), torch.zeros(1, 1), lower_bound)


def test_tables_are_aligned_only_as_the_kernels_are_told():
    storage = torch.zeros(200, dtype=torch.bfloat16)

    def aligned(stride, start=0):
        return LayerTable.of("conv", [storage[start:].as_strided((2, 2, 16), (stride, 16, 1))]).aligned

    assert aligned(32)
    assert aligned(48)
    assert not aligned(40), "16 bytes, but not 16 elements"
    assert not aligned(32, start=1)


def test_public_names_are_exported_and_importable():
    public = {name for name, value in vars(recoverssm).items() if not name.startswith("_") and callable(value)}

    assert public == set(recoverssm.__all__)
