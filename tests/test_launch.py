"""The launch table: every op has a row for every launch on any card, and each row says where it comes from."""

import re

import pytest
import torch

from recoverssm import CommitContext, ConfigError, GateParams, Records
from recoverssm.dispatch import describe
from recoverssm.launch import (
    STATE_DTYPES,
    Form,
    LaunchRow,
    Problem,
    can_launch,
    device_arch,
    load_table,
    rows_aligned,
    select,
    tiled_launch,
    with_row,
)
from recoverssm.ops.commit_state import FORMS as COMMIT_STATE
from recoverssm.ops.full_state import FORMS as FULL_STATE
from recoverssm.ops.verify import FORMS as VERIFY
from recoverssm.ops.verify import HISTORY_FORMS, can_take_history

FORMS = {
    "verify": VERIFY,
    "full_state_verify": FULL_STATE,
    "commit_state": COMMIT_STATE,
    "commit_boundaries": COMMIT_STATE,
    "commit_deferred": COMMIT_STATE,
}

ROW = """
[[row]]
op = "verify"
arch = 0
state_dtype = "fp32"
form = "recurrence"
constants = { BV = 16, num_warps = 1 }
source = "not tuned"
"""


def problem(op="verify", arch=90, state_dtype=torch.float32, num_heads=384, **changed):
    sizes = {"spec_query_len": 8, "key_dim": 128, "value_dim": 128, "lower_bound": -5.0, "aligned": True}
    return Problem(op, arch, state_dtype, num_heads, **sizes | changed)


@pytest.mark.parametrize("op", FORMS)
@pytest.mark.parametrize("state_dtype", STATE_DTYPES.values())
@pytest.mark.parametrize("arch", [0, 80, 90, 100, 103])
@pytest.mark.parametrize("num_heads", [1, 12, 384, 100_000])
@pytest.mark.parametrize(
    "changed",
    [{}, {"spec_query_len": 1}, {"spec_query_len": 16}, {"key_dim": 64}, {"lower_bound": None}, {"aligned": 0}],
)
def test_every_launch_of_any_card_has_a_row(op, state_dtype, arch, num_heads, changed):
    asked = problem(op, arch, state_dtype, num_heads, **changed)
    row = select(asked, FORMS[op])

    assert (row.op, row.state_dtype) == (op, state_dtype)
    assert row.arch in (arch, 0)
    assert row.min_heads <= num_heads
    assert row.min_tokens <= asked.spec_query_len
    assert FORMS[op][row.form].fits(asked)


def test_rows_of_the_arch_come_first_then_longer_windows_then_larger_grids(tmp_path, monkeypatch):
    table = tmp_path / "table.toml"
    rows = [ROW, ROW + "min_heads = 96", ROW + "min_tokens = 9", ROW.replace("arch = 0", "arch = 90")]
    table.write_text("".join(rows))
    monkeypatch.setattr("recoverssm.launch.load_table", lambda: load_table(table))
    chosen = [
        select(problem(arch=arch, num_heads=heads, spec_query_len=tokens), FORMS["verify"])
        for arch, heads, tokens in [(80, 12, 8), (80, 96, 8), (80, 96, 9), (90, 96, 9)]
    ]

    assert [(row.arch, row.min_heads, row.min_tokens) for row in chosen] == [
        (0, 0, 1),
        (0, 96, 1),
        (0, 0, 9),
        (90, 0, 1),
    ]


def test_a_form_that_does_not_fit_leaves_the_launch_to_another(tmp_path, monkeypatch):
    table = tmp_path / "table.toml"
    table.write_text(ROW + ROW.replace("recurrence", "special").replace("arch = 0", "arch = 90"))
    monkeypatch.setattr("recoverssm.launch.load_table", lambda: load_table(table))
    forms = {"recurrence": Form(None), "special": Form(None, lambda launch: launch.aligned)}

    assert select(problem(), forms).form == "special"
    assert select(problem(aligned=False), forms).form == "recurrence"


def test_rows_are_unique_of_known_forms_and_state_their_source():
    keys = [(row.arch, row.op, row.state_dtype, row.form, row.min_heads, row.min_tokens) for row in load_table()]

    assert len(set(keys)) == len(keys)
    for row in load_table():
        assert row.form in (FORMS | {"verify_history": HISTORY_FORMS})[row.op]
        assert row.constants["BV"] & (row.constants["BV"] - 1) == 0
        assert re.search(r"Triton \d+\.\d+, \d{4}-\d\d-\d\d|not tuned", row.source)


@pytest.mark.parametrize("broken", [ROW.replace('"fp32"', '"fp8"'), ROW + "warps = 4", ROW.replace("arch = 0\n", "")])
def test_a_broken_row_is_named(tmp_path, broken):
    table = tmp_path / "table.toml"
    table.write_text(broken)

    with pytest.raises(ConfigError, match=r"table\.toml: expected the fields of LaunchRow, got .*'recurrence'"):
        load_table(table)


def test_forms_come_in_their_own_order_whatever_the_grid(tmp_path):
    """Else the bits of a row would depend on how many others there are."""
    path = tmp_path / "table.toml"
    path.write_text(ROW + "min_heads = 96" + ROW.replace("recurrence", "special"))
    forms = {"special": Form(None, lambda launch: launch.aligned), "recurrence": Form(None)}

    assert select(problem(), forms, load_table(path)).form == "special"
    assert select(problem(aligned=False), forms, load_table(path)).form == "recurrence"


@pytest.mark.parametrize("constants", [{"BV": 8, "num_warps": 2}, {"BV": 256, "BK": 256, "STEPS": 4}])
def test_a_launch_with_another_row_is_what_that_row_would_have_made(tmp_path, monkeypatch, constants):
    state = describe(torch.zeros(3, 12, 128, 64))
    cpu, forms = torch.device("cpu"), {"recurrence": Form("portable"), "special": Form("special")}
    sizes, options = (2, 8, -5.0, 0.5), {"aligned": True, "num_layers": 3, "ALIGNED": True}
    row = LaunchRow("verify", 0, torch.float32, "special", 0, 1, constants, "being tuned")
    made = with_row(tiled_launch("verify", forms, state, *sizes, **options), forms, row, cpu)
    monkeypatch.setattr("recoverssm.launch.load_table", lambda: (row,))
    expected = tiled_launch("verify", forms, state, *sizes, **options)

    for name in ("kernel", "grid", "scalars", "constants"):
        assert getattr(made, name) == getattr(expected, name)


def test_an_op_without_a_row_is_an_error():
    with pytest.raises(ConfigError, match=r"no row for .*op='align'"):
        select(problem("align"), FORMS["verify"])


def test_rows_are_aligned_when_address_and_stride_are():
    memory = torch.zeros(64, 24, dtype=torch.bfloat16)

    assert rows_aligned(describe(memory))
    assert not rows_aligned(describe(memory[:, 1:]))
    assert not rows_aligned(describe(memory.view(-1)[: 64 * 20].view(128, 10)))


def test_the_cpu_has_no_arch():
    assert device_arch(torch.device("cpu")) == 0


@pytest.mark.parametrize("state_dtype", STATE_DTYPES.values(), ids=str)
@pytest.mark.parametrize("lower_bound", [-5.0, None])
def test_whether_verify_takes_history_depends_on_card_and_layer_alone(state_dtype, lower_bound):
    """Not on the batch: else the bits of a row would."""
    for arch, changed, is_able in [
        (0, {}, True),
        (90, {}, True),
        (90, {"aligned": False}, True),
        (80, {}, False),
        (100, {}, False),
        (100, {"key_dim": 64}, True),
    ]:
        for num_heads in (1, 384):
            for spec_query_len in (1, 8, 16):
                asked = {"lower_bound": lower_bound, "spec_query_len": spec_query_len} | changed
                able = can_launch(problem("verify_history", arch, state_dtype, num_heads, **asked), HISTORY_FORMS)
                is_long = arch == 90 and spec_query_len > 8 and "aligned" not in changed
                assert able == (is_able and not is_long), (arch, num_heads, asked)


@pytest.mark.parametrize(("room", "is_able"), [(0, False), (4, True), (8, True), (9, False), (16, False)])
def test_history_that_no_program_holds_is_committed_before(room, is_able, monkeypatch):
    """On sm_90 eight tokens, however short the window is."""
    monkeypatch.setitem(can_take_history.__globals__, "device_arch", lambda device: 90)
    monkeypatch.setattr("recoverssm.triton_compat.IS_TESTED", True)
    records = Records(torch.zeros(1, 1, room + 4, 128), torch.zeros(1, 1, room + 4, 256), history_len=room)

    assert can_take_history(torch.zeros(1, 1, 128, 128), records, -5.0) == is_able


def shifted(tensor):
    """The same values from an address that is no multiple of 16 bytes on."""
    return torch.cat((tensor.new_zeros(1), tensor.flatten()))[1:].view_as(tensor)


@pytest.mark.parametrize("name", [None, "correction", "key_gate"])
def test_history_between_two_multiples_of_16_bytes_is_read_by_the_portable_kernel(name, monkeypatch):
    """The other copies 16 bytes at a time, of corrections too, which a verify without history only writes."""
    monkeypatch.setattr("recoverssm.launch.device_arch", lambda device: 90)
    monkeypatch.setattr("recoverssm.triton_compat.IS_TESTED", True)
    tokens, vector = torch.zeros(4, 1, 128).bfloat16(), torch.zeros(1, dtype=torch.int32)
    held = {"correction": torch.zeros(1, 1, 8, 128), "key_gate": torch.zeros(1, 1, 8, 256).bfloat16()}
    held |= {} if name is None else {name: shifted(held[name])}
    layer = (*[tokens] * 4, tokens[:, :, 0].clone(), torch.zeros(1), torch.zeros(1, 128), torch.zeros(1, 1, 128, 128))
    rows = (torch.zeros(2, dtype=torch.int32), vector, vector, vector)
    tensors = (*layer, *held.values(), tokens.clone(), *rows)

    launch = can_take_history.__globals__["_verify_history"].prepare(
        list(map(describe, tensors)), -5.0, False, False, 4
    )

    assert launch.kernel is HISTORY_FORMS["wgmma" if name is None else "recurrence"].kernel


def test_a_context_takes_history_where_every_layer_does(monkeypatch):
    """Of sm_80 those alone whose records no kernel for tensor cores can read."""
    monkeypatch.setattr("recoverssm.committer.MIN_HISTORY_HEADS", 0)
    monkeypatch.setitem(can_take_history.__globals__, "device_arch", lambda device: 80)
    monkeypatch.setattr("recoverssm.triton_compat.IS_TESTED", True)
    gate = GateParams(torch.zeros(2, 1), torch.zeros(2, 1, 128), -5.0)
    takes = []
    for places in ([shifted, shifted], [shifted, torch.clone], [torch.clone, shifted]):
        records = [
            Records(place(torch.zeros(1, 1, 8, 128)), torch.zeros(1, 1, 8, 256), history_len=4) for place in places
        ]
        states = [torch.zeros(2, 1, 128, 128) for _ in places]
        takes.append(CommitContext(states, records, [], gate, max_num_rows=1).takes_history(1))

    assert takes == [True, False, False]
