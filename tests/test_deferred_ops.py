"""Ops of deferred commits: entries that rows name, what waits folded by verify, and who has to be committed at once."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recoverssm import (
    ArgumentError,
    Boundaries,
    CommitPlan,
    ConfigError,
    LayerTable,
    RecordRows,
    Records,
    ShapeError,
    commit_state,
    defer_plan,
    reference,
    verify,
)
from recoverssm.launch import load_table
from tests.compile_forms import compile_ahead
from tests.forms import skip_unless_runs, use_form
from tests.test_commit_state import run_commit
from tests.test_commit_state_async import commit as commit_async
from tests.test_records_by_slot import VERIFY_FORMS
from tests.test_verify import run_verify
from tests.test_verify_wgmma import CONSTANTS as WGMMA
from tests.windows import (
    FULL,
    NULL_SLOTS,
    RAGGED,
    ROUNDING,
    Window,
    WindowCase,
    assert_matches,
    float64_records,
    int32,
    storage_bits,
    tol,
)

LARGE = WindowCase((5, 0, 3, 2), (4, 2, 0, 1), spec_query_len=5, num_heads=2, key_dim=128, value_dim=128)
CASES = [FULL, RAGGED, NULL_SLOTS, replace(FULL, state_dtype=torch.bfloat16), replace(RAGGED, lower_bound=None)]


class Waiting:
    """A window whose records have room for two of its size; rows write the first entries, and the last ones wait."""

    def __init__(self, case, device, lens, order=None):
        self.window = window = Window(case, device)
        self.records = self.room_for(window, 2)
        num_rows, T = len(case.query_lens), case.spec_query_len
        before = Window(replace(case, query_lens=(T,) * num_rows, slots=tuple(range(1, num_rows + 1))), device, seed=9)
        run_verify(before)
        for name in ("correction", "key_gate"):
            getattr(self.records, name)[num_rows:] = getattr(before.records[0], name)[:num_rows].flip(0)
        where = [2 * num_rows - 1 - row if length is not None else -1 for row, length in enumerate(lens)]
        given = [0 if length is None else length for length in lens]
        self.rows = RecordRows(int32(range(num_rows), device), int32(where, device), int32(given, device))

    @staticmethod
    def room_for(window, times):
        shape = window.records[0].correction.shape
        size = (times * len(window.case.query_lens), *shape[1:3])
        full = {"fill_value": torch.nan, "device": window.device}
        correction = torch.full((*size, shape[3]), **full, dtype=torch.float32)
        return Records(
            correction, torch.full((*size, 2 * window.case.key_dim), **full, dtype=window.case.activation_dtype)
        )

    def verify(self, run=verify, rows=None, **options):
        window = self.window
        return run(
            *window.activations,
            window.checkpoint_states[0],
            self.records,
            window.layer_gate(),
            window.query_start_loc,
            window.state_indices,
            out=window.out,
            record_rows=self.rows if rows is None else rows,
            **options,
        )

    def in_float64(self, states, rows):
        """States, records and outputs by the reference, from these states."""
        window, records = self.window, float64_records(self.records)
        out = reference.verify(
            *(x.double() for x in window.activations),
            states,
            records,
            window.layer_gate(),
            window.query_start_loc,
            window.state_indices,
            out=torch.full_like(window.out, torch.nan, dtype=torch.float64),
            record_rows=rows,
        )
        return states, records, out


def check_fold(held, device="cpu"):
    """States against what waits on top of them; records and outputs against the states as they were stored."""
    window = held.window
    is_16_bit = window.case.state_dtype == torch.bfloat16
    expected, _, _ = held.in_float64(window.checkpoint_states[0].double(), held.rows)
    waiting = held.records.correction[len(window.case.slots) :].clone()

    held.verify()

    assert torch.equal(storage_bits(held.records.correction[len(window.case.slots) :].clone()), storage_bits(waiting))
    states = window.checkpoint_states[0]
    assert_matches("state", states, expected, ROUNDING[torch.bfloat16] * 2 if is_16_bit else 5e-7)
    _, records, out = held.in_float64(states.double(), RecordRows(held.rows.written))
    assert_matches("correction", held.records.correction, records.correction, 2e-6 if is_16_bit else 5e-7)
    assert_matches("key_gate", held.records.key_gate, records.key_gate, 0.0)
    assert_matches("out", window.out, out, tol(window.case.activation_dtype, device))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_verify_first_takes_in_what_waits(case, device):
    """Ragged, all, none, nothing there, more than there can be: in rows of any length, without tokens and slot too."""
    lens = [[2, 4, 0], [None, 1, 99], [3, None, 2, 1, 8]][2 if len(case.slots) == 5 else case is not FULL]
    check_fold(Waiting(case, device, lens), device)


def test_folding_gives_the_bits_of_a_commit_before():
    """In the portable forms, where the order of operations is one."""
    folding, apart = (Waiting(replace(RAGGED, state_dtype=torch.bfloat16), "cpu", [3, 2, None, 1, 8]) for _ in range(2))
    window = apart.window

    folding.verify()
    tables = [
        LayerTable.of("t", [x]) for x in (window.checkpoint_states[0], apart.records.correction, apart.records.key_gate)
    ]
    slots = torch.where((window.query_start_loc.diff() > 0) & (apart.rows.waiting >= 0), window.state_indices, 0)
    plan = CommitPlan(apart.rows.waiting_lens, slots, slots)
    commit_state(*tables, plan, window.gate, record_rows=apart.rows.waiting)
    apart.verify(rows=RecordRows(apart.rows.written))

    for mine, theirs in (
        (folding.window.checkpoint_states[0], window.checkpoint_states[0]),
        (folding.records.correction, apart.records.correction),
        (folding.window.out, window.out),
    ):
        assert torch.equal(storage_bits(mine), storage_bits(theirs))


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", ["wgmma", "wgmma_blocks"])
def test_the_form_for_tensor_cores_takes_in_what_waits(form, state_dtype, monkeypatch):
    held = Waiting(replace(LARGE, state_dtype=state_dtype), "cpu", [3, None, 2, 5])
    constants = WGMMA | {"CAUSAL_BLOCKS": form == "wgmma_blocks"}
    use_form(monkeypatch, "verify_folding", form, "cpu", **constants)

    check_fold(held)


def test_keys_that_stand_in_the_entry_of_their_row_are_read_there(monkeypatch):
    given, recorded = (Waiting(LARGE, "cpu", [3, None, 2, 5]) for _ in range(2))
    use_form(monkeypatch, "verify_folding", "wgmma", "cpu", **WGMMA)
    given.verify()
    recorded.records.key_gate.copy_(given.records.key_gate)
    window = recorded.window
    window.k = window.raw_gate = None

    recorded.verify(key_gate_recorded=True)

    assert torch.equal(storage_bits(window.out), storage_bits(given.window.out))
    assert torch.equal(storage_bits(window.checkpoint_states[0]), storage_bits(given.window.checkpoint_states[0]))


@pytest.mark.parametrize("form", VERIFY_FORMS)
def test_rows_write_the_entries_that_they_are_given(form, monkeypatch):
    if VERIFY_FORMS[form] is not None:
        use_form(monkeypatch, "verify", form, "cpu", **VERIFY_FORMS[form])
    by_row, named = Window(LARGE, "cpu"), Waiting(LARGE, "cpu", [None] * 4)
    entries = [6, -1, 1, 3]

    run_verify(by_row)
    named.records = Waiting.room_for(named.window, 2)
    named.verify(rows=RecordRows(int32(entries, "cpu")))

    assert torch.equal(storage_bits(by_row.out), storage_bits(named.window.out))
    for name in ("correction", "key_gate"):
        expected = torch.full_like(getattr(named.records, name), torch.nan)
        for row in (0, 3):  # the others have no tokens, or no slot
            expected[entries[row]] = getattr(by_row.records[0], name)[row]
        assert torch.equal(getattr(named.records, name).nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("run", ["recurrence", "async"])
def test_commit_reads_the_entries_that_rows_name(run, monkeypatch):
    by_row, named = (Window(LARGE, "cpu") for _ in range(2))
    entries = [3, 0, 4, 1]
    for window in (by_row, named):
        run_verify(window)
    for name in ("correction", "key_gate"):
        held = getattr(named.records[0], name)
        held[entries] = held[:4].clone()
    for window, rows in ((by_row, None), (named, int32(entries, "cpu"))):
        plan = window.plan([4, 0, 0, 2], [2, 0, 0, 1])
        if run == "async":
            commit_async(window, plan, monkeypatch, record_rows=rows)
        else:
            run_commit(window, plan, record_rows=rows)

    assert torch.equal(*(storage_bits(window.checkpoint_states[0]) for window in (by_row, named)))


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 3), st.sampled_from([[0, 0], [1, 0], [1, 3]])),
        max_size=6,
    ),
    has_boundaries=st.booleans(),
    data=st.data(),
)
def test_rows_wait_that_stay_in_their_slot_and_end_no_block(rows, has_boundaries, data):
    lens, sources, finals, crossed = zip(*rows, strict=True) if rows else ([], [], [], [])
    entries = data.draw(st.permutations([-1, *range(8)]))[: len(rows)]
    plan = CommitPlan(*(int32(x, "cpu") for x in (lens, sources, finals)))
    boundaries = Boundaries(*(int32(crossed, "cpu").view(-1, 2) for _ in range(2))) if has_boundaries else None
    results = []
    for run in (defer_plan, reference.defer_plan):
        waiting, now = int32([9] * 8, "cpu"), int32([9] * len(rows), "cpu")
        run(plan, int32(entries, "cpu"), waiting, now, boundaries=boundaries)
        results.append((waiting.tolist(), now.tolist()))

    assert results[0] == results[1]
    waiting, now = results[0]
    for entry, row, left in zip(entries, rows, now, strict=True):
        length, source, final, crossed = row
        waits = entry >= 0 and source == final > 0 and not (has_boundaries and any(crossed))
        assert left == (0 if waits else length)
        assert entry < 0 or waiting[entry] == (length if waits else 0)
    assert all(n == 9 for entry, n in enumerate(waiting) if entry not in entries)


def test_what_torch_traces_of_a_folding_verify_declares_that_states_are_written():
    schema = torch.ops.recoverssm.verify_folding.default._schema
    written = {argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write}
    assert written == {"checkpoint_state", "correction", "key_gate", "out"}


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of itself
@pytest.mark.parametrize("folds", [True, False])
def test_a_compiled_call_does_what_a_direct_one_does(folds):
    direct, compiled = (Waiting(FULL, "cpu", [2, 4, 1]) for _ in range(2))
    for held in (direct, compiled):
        held.rows = held.rows if folds else RecordRows(held.rows.written)

    direct.verify()
    torch.compile(compiled.verify, backend="aot_eager", fullgraph=True)()

    for mine, theirs in (
        (compiled.window.checkpoint_states[0], direct.window.checkpoint_states[0]),
        (compiled.records.correction, direct.records.correction),
        (compiled.window.out, direct.window.out),
    ):
        assert torch.equal(storage_bits(mine), storage_bits(theirs))


def test_entries_by_slot_are_named_by_nobody_else():
    held = Waiting(FULL, "cpu", [1, 1, 1])
    held.records = replace(held.records, by_slot=True)

    with pytest.raises(ConfigError, match="record_rows: expected None with records by slot"):
        held.verify()


@pytest.mark.parametrize("name", ["written", "waiting", "waiting_lens"])
def test_vectors_of_another_length_are_refused(name):
    held = Waiting(FULL, "cpu", [1, 1, 1])

    with pytest.raises(ShapeError, match=rf"record_rows\.{name}: expected \[N=3\], got \[2\]"):
        held.verify(rows=replace(held.rows, **{name: int32([0, 1], "cpu")}))


# --- on a card, with the rows that the table has for small and large batches

COMBINATIONS = [
    (length, dtype, bound, num_heads)
    for length in (1, 8, 9, 16)
    for dtype in (torch.float32, torch.bfloat16)
    for bound in (-5.0, None)
    for num_heads in (2, 24)
]


def ragged(length, state_dtype, lower_bound, num_heads, device):
    case = WindowCase(
        (length, 1, 0, length, length), (4, 2, 6, 0, 1), spec_query_len=length, num_heads=num_heads,
        key_dim=128, value_dim=128, state_dtype=state_dtype, lower_bound=lower_bound,
    )  # fmt: skip
    return Waiting(case, device, [length, None, 1, 1, (length + 1) // 2])


def gpu_calls(device):
    """What the tests below launch."""
    return (lambda each=each: ragged(*each, device).verify() for each in COMBINATIONS)


@pytest.fixture(scope="module")
def sm_90():
    skip_unless_runs(90, exactly=True)
    compile_ahead("tests.test_deferred_ops", 90)


@pytest.mark.gpu
@pytest.mark.usefixtures("sm_90")
@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_what_a_card_takes_for_its_layers_folds(combination):
    check_fold(ragged(*combination, "cuda"), "cuda")


@pytest.mark.gpu
@pytest.mark.usefixtures("sm_90")
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_that_a_card_folds_do_not_depend_on_the_batch(state_dtype):
    """Among 24 rows, which the table gives other tiles than one."""
    number = 24
    slots = tuple(range(1, number + 1))
    case = WindowCase(
        (8,) * number, slots, spec_query_len=8, num_heads=12, key_dim=128, value_dim=128, state_dtype=state_dtype
    )
    many = Waiting(case, "cuda", [(row % 8) + 1 for row in range(number)])
    named = many.rows
    states, window = many.window.checkpoint_states[0].clone(), many.window
    many.verify()

    for row in (0, 7, 23):
        rows = RecordRows(*(x[row : row + 1].clone() for x in (named.written, named.waiting, named.waiting_lens)))
        tokens, out = slice(8 * row, 8 * row + 8), torch.empty_like(window.out[:8])
        single, records = states.clone(), Records(many.records.correction.clone(), many.records.key_gate.clone())
        activations = [x[tokens] for x in window.activations]
        starts, slot = int32([0, 8], "cuda"), window.state_indices[row : row + 1].clone()
        verify(*activations, single, records, window.layer_gate(), starts, slot, out=out, record_rows=rows)
        assert torch.equal(out, window.out[tokens])
        assert torch.equal(single[row + 1], window.checkpoint_states[0][row + 1])
        assert torch.equal(records.correction[row], many.records.correction[row])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("written", [0, 6, 2], r"record_rows\.written\[1\]: expected 0 to 5, an entry of the records, got 6"),
        ("written", [0, -1, 2], r"record_rows\.written\[1\]: expected 0 to 5, an entry of the records, got -1"),
        (
            "written",
            [0, 2, 2],
            r"record_rows\.written\[2\]: expected an entry of its own, got 2, which is written for row 1",
        ),
        ("waiting", [3, -2, -1], r"record_rows\.waiting\[1\]: expected -1 to 5"),
        (
            "waiting",
            [4, 0, -1],
            r"record_rows\.waiting\[1\]: expected an entry of its own, got 0, which is written for row 0",
        ),
    ],
)
def test_debug_names_the_row_whose_entry_is_not_its_own(name, value, message):
    held = Waiting(FULL, "cpu", [1, 1, 1])
    before = storage_bits(held.records.correction)

    with pytest.raises(ArgumentError, match=message):
        held.verify(rows=replace(held.rows, **{name: int32(value, "cpu")}), debug=True)
    assert torch.equal(storage_bits(held.records.correction), before)
    held.verify(debug=True)


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_tiling_of_the_table_folds_to_the_same_bits(state_dtype, monkeypatch):
    """Small and large batches take other rows of it. (The emulator sums long products in an order of its own.)"""
    rows = [
        row
        for row in load_table()
        if (row.op, row.form, row.state_dtype) == ("verify_folding", "wgmma", state_dtype) and row.min_tokens == 1
    ]
    results = []
    for row in rows:
        held = Waiting(replace(LARGE, state_dtype=state_dtype), "cpu", [3, None, 2, 5])
        with monkeypatch.context() as patch:
            constants = {name: x for name, x in row.constants.items() if name not in ("maxnreg", "num_warps")}
            use_form(patch, "verify_folding", "wgmma", "cpu", **constants)
            held.verify()
        results.append(storage_bits(held.window.checkpoint_states[0]))

    assert len(results) == 2
    assert torch.equal(*results)
