"""Ops of deferred commits: entries that rows name, verify behind what waits there, and who is committed now."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recoverssm import (
    AlignInputs,
    ArgumentError,
    CommitContext,
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
from tests.compile_forms import compile_ahead
from tests.forms import skip_unless_runs, use_form
from tests.test_commit_state import run_commit
from tests.test_commit_state_async import commit as commit_async
from tests.test_records_by_slot import VERIFY_FORMS
from tests.test_verify import run_verify
from tests.test_verify_wgmma import CONSTANTS as WGMMA
from tests.test_verify_wgmma import U_TOL
from tests.windows import (
    FP32_TOL,
    FULL,
    NULL_SLOTS,
    RAGGED,
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
    """A window, and records with twice the entries and twice the room that it needs; in front of it tokens wait."""

    def __init__(self, case, device, lens):
        self.window = window = Window(case, device)
        num_rows, T = len(case.query_lens), case.spec_query_len
        self.records = self.room_for(window, 2 * num_rows)
        before = Window(replace(case, query_lens=(T,) * num_rows, slots=tuple(range(1, num_rows + 1))), device, seed=9)
        run_verify(before)
        entries = [2 * num_rows - 1 - row for row in range(num_rows)]
        for row, (entry, length) in enumerate(zip(entries, lens, strict=True)):
            for name in ("correction", "key_gate"):
                getattr(self.records, name)[entry, :, : min(length, T)] = getattr(before.records[0], name)[
                    row, :, :length
                ]
        self.rows = RecordRows(int32(entries, device), int32(lens, device))

    @staticmethod
    def room_for(window, entries):
        """Records of nobody, NaN, with room for a window and as many tokens before it."""
        _, H, T, V = window.records[0].correction.shape
        size, device = (entries, H, 2 * T), window.device
        correction = torch.full((*size, V), torch.nan, device=device)
        dtype = window.case.activation_dtype
        key_gate = torch.full((*size, 2 * window.case.key_dim), torch.nan, device=device, dtype=dtype)
        return Records(correction, key_gate, history_len=T)

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

    def commit(self):
        """What waits, into the states of rows with tokens."""
        window = self.window
        tables = [
            LayerTable.of("t", [x])
            for x in (window.checkpoint_states[0], self.records.correction, self.records.key_gate)
        ]
        slots = torch.where(window.query_start_loc.diff() > 0, window.state_indices, 0)
        lens = self.rows.history_lens.clamp(max=self.records.history_len)
        commit_state(*tables, CommitPlan(lens, slots, slots), window.gate, record_rows=self.rows.written)

    def in_float64(self):
        """Records and outputs by the reference."""
        window, records = self.window, replace(float64_records(self.records), history_len=self.records.history_len)
        out = reference.verify(
            *(x.double() for x in window.activations),
            window.checkpoint_states[0].double(),
            records,
            window.layer_gate(),
            window.query_start_loc,
            window.state_indices,
            out=torch.full_like(window.out, torch.nan, dtype=torch.float64),
            record_rows=self.rows,
        )
        return records, out


def check_history(held, device="cpu"):
    """Records and outputs against float64; states, and what waits, bit for bit as before."""
    window = held.window
    records, out = held.in_float64()
    states = storage_bits(window.checkpoint_states[0])

    held.verify()

    assert torch.equal(storage_bits(window.checkpoint_states[0]), states)
    assert_matches("correction", held.records.correction, records.correction, U_TOL[window.case.state_dtype])
    assert_matches("key_gate", held.records.key_gate, records.key_gate, 0.0)
    assert_matches("out", window.out, out, tol(window.case.activation_dtype, device))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_verify_goes_on_from_what_waits_and_leaves_states_alone(case, device):
    """Ragged, all, none, nothing there, more than there can be: in rows of any length, without tokens and slot too."""
    lens = [[2, 4, 0], [0, 1, 99], [3, 0, 2, 1, 8]][2 if len(case.slots) == 5 else case is not FULL]
    check_history(Waiting(case, device, lens), device)


def test_history_gives_the_bits_of_a_commit_before():
    """In the portable forms, where the order of operations is one, and where nothing is rounded when it is stored."""
    behind, apart = (Waiting(RAGGED, "cpu", [3, 2, 0, 1, 8]) for _ in range(2))

    behind.verify()
    apart.commit()
    apart.verify(rows=RecordRows(apart.rows.written))

    assert torch.equal(storage_bits(behind.window.out), storage_bits(apart.window.out))
    for row, (entry, length, query_len) in enumerate(
        zip(*(x.tolist() for x in (*vars_of(behind.rows), behind.window.query_start_loc.diff())), strict=True)
    ):
        for name in ("correction", "key_gate"):
            mine, theirs = (getattr(held.records, name)[entry] for held in (behind, apart))
            if RAGGED.slots[row] > 0:
                assert torch.equal(mine[:, length : length + query_len], theirs[:, :query_len])


def vars_of(rows):
    return rows.written, rows.history_lens


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", ["wgmma", "wgmma_blocks"])
def test_the_form_for_tensor_cores_goes_on_from_what_waits(form, state_dtype, monkeypatch):
    held = Waiting(replace(LARGE, state_dtype=state_dtype), "cpu", [3, 0, 2, 5])
    constants = WGMMA | {"CAUSAL_BLOCKS": form == "wgmma_blocks"}
    use_form(monkeypatch, "verify_history", form, "cpu", **constants)

    check_history(held)


@pytest.mark.parametrize("form", ["recurrence", "wgmma"])
def test_keys_that_stand_behind_what_waits_are_read_there(form, monkeypatch):
    given, recorded = (Waiting(LARGE, "cpu", [3, 0, 2, 5]) for _ in range(2))
    if form == "wgmma":
        use_form(monkeypatch, "verify_history", "wgmma", "cpu", **WGMMA)
    given.verify()
    recorded.records.key_gate.copy_(given.records.key_gate)
    window = recorded.window
    window.k = window.raw_gate = None

    recorded.verify(key_gate_recorded=True)

    assert torch.equal(storage_bits(window.out), storage_bits(given.window.out))
    for name in ("correction", "key_gate"):
        mine, theirs = (storage_bits(getattr(held.records, name)) for held in (recorded, given))
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("form", VERIFY_FORMS)
def test_rows_write_the_entries_that_they_are_given(form, monkeypatch):
    if VERIFY_FORMS[form] is not None:
        use_form(monkeypatch, "verify", form, "cpu", **VERIFY_FORMS[form])
    by_row, named = Window(LARGE, "cpu"), Waiting(LARGE, "cpu", [0] * 4)
    entries, T = [6, -1, 1, 3], LARGE.spec_query_len

    run_verify(by_row)
    named.verify(rows=RecordRows(int32(entries, "cpu")))

    assert torch.equal(storage_bits(by_row.out), storage_bits(named.window.out))
    for name in ("correction", "key_gate"):
        expected = torch.full_like(getattr(named.records, name), torch.nan)
        for row in (0, 3):  # the others have no tokens, or no slot
            expected[entries[row], :, :T] = getattr(by_row.records[0], name)[row]
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


ROWS = st.tuples(
    st.integers(0, 4),  # accepted
    st.integers(0, 4),  # waited before
    st.sampled_from([(1, 1), (2, 2), (1, 3), (0, 0)]),  # source and final slot
    st.sampled_from([[0, 0], [1, 0], [1, 3]]),  # boundaries
)


@given(rows=st.lists(ROWS, max_size=6), has_boundaries=st.booleans(), has_history=st.booleans(), data=st.data())
def test_rows_wait_that_stay_in_their_slot_and_end_no_block_and_have_room(rows, has_boundaries, has_history, data):
    """Up to four tokens; else these and what waited are committed, and boundaries lie as much further on."""
    rows = [(a, h * has_history, slots if a else (0, 0), ends if a else [0, 0]) for a, h, slots, ends in rows]
    lens, waited, slots, crossed = zip(*rows, strict=True) if rows else ([], [], [], [])
    entries = data.draw(st.permutations([-1, *range(8)]))[: len(rows)]
    plan = CommitPlan(
        int32(lens, "cpu"), *(int32(side, "cpu") for side in (zip(*slots, strict=True) if rows else [[]] * 2))
    )
    record_rows = RecordRows(int32(entries, "cpu"), int32(waited, "cpu") if has_history else None)
    results = []
    for run in (defer_plan, reference.defer_plan):
        waiting, now, ends_now = (int32([9] * size, "cpu") for size in (8, len(rows), 2 * len(rows)))
        options = {"history_len": 4}
        if has_boundaries:
            ends = int32(crossed, "cpu").view(-1, 2)
            options |= {"boundary_lens": ends, "boundary_lens_now": ends_now.view(-1, 2)}
        run(plan, record_rows, waiting, now, **options)
        results.append((waiting.tolist(), now.tolist(), ends_now.view(-1, 2).tolist()))

    assert results[0] == results[1]
    waiting, now, ends_now = results[0]
    for entry, (a, h, (source, final), ends), left, ends_left in zip(entries, rows, now, ends_now, strict=True):
        stays = source == final > 0 and not (has_boundaries and any(ends))
        waits = a == 0 or (stays and a + h <= 4)
        if entry >= 0:
            assert (waiting[entry], left) == ((a + h, 0) if waits else (0, a + h))
        assert entry >= 0 or left == 0
        assert ends_left == ([length and length + h for length in ends] if has_boundaries else [9, 9])
    assert all(n == 9 for entry, n in enumerate(waiting) if entry not in entries)


def test_half_of_what_boundaries_need_is_refused_and_so_is_room_that_no_verify_has():
    one = int32([1], "cpu")
    call = (CommitPlan(one, one, one), RecordRows(one), one, one.clone())
    for name in ("boundary_lens", "boundary_lens_now"):
        with pytest.raises(ArgumentError, match="boundary_lens, boundary_lens_now: expected both or neither"):
            defer_plan(*call, history_len=4, **{name: one[:, None]})
    with pytest.raises(ShapeError, match="history_len: expected 0 to 16 tokens that may wait, got 17"):
        defer_plan(*call, history_len=17)
    held = Waiting(FULL, "cpu", [0, 0, 0])
    held.records = replace(held.records, history_len=17)
    with pytest.raises(ShapeError, match=r"records\.history_len: expected 0 to 16 tokens that may wait, got 17"):
        held.verify()


def test_a_verify_that_takes_history_declares_that_it_writes_no_states():
    schema = torch.ops.recoverssm.verify_history.default._schema
    written = {argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write}
    assert written == {"correction", "key_gate", "out"}


def test_a_commit_now_takes_in_what_waited_and_leaves_the_states_at_the_ends_of_blocks(device):
    """Of three rows behind 2, 4 and 1 tokens: two boundaries, one of them final; no room left; the end of a block."""
    held = Waiting(FULL, device, [2, 4, 1])
    window, pool = held.window, held.window.checkpoint_states[0]
    held.verify()
    expected = pool.double()
    for row, lens in enumerate([{2: 3, 3: 6}, {1: 6}, {5: 3}]):  # tokens of the entry, by slot
        for slot, length in lens.items():
            source = window.state_indices[row : row + 1].clone()
            states = pool.double()
            plan = CommitPlan(int32([length], device), source, int32([slot], device))
            entry = held.rows.written[row : row + 1]
            reference.commit_state([states], [held.records], plan, window.gate, record_rows=entry)
            expected[slot] = states[slot]
    context = CommitContext([pool], [held.records], [], window.gate, max_num_rows=3, block_size=3)
    align = AlignInputs(int32([2, 0, 1], device), int32([[2, 3], [1, 0], [5, 0]], device), 3)
    waiting = int32([9] * 6, device)

    rows = (int32([4, 2, 2], device), window.query_start_loc, window.state_indices)
    context.commit(*rows, align=align, record_rows=held.rows, waiting_lens=waiting)

    assert_matches("states", pool, expected, FP32_TOL)
    assert waiting.tolist() == [9, 9, 9, 0, 0, 0]


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of itself
@pytest.mark.parametrize("has_history", [True, False])
def test_a_compiled_call_does_what_a_direct_one_does(has_history):
    direct, compiled = (Waiting(FULL, "cpu", [2, 4, 1]) for _ in range(2))
    for held in (direct, compiled):
        held.rows = held.rows if has_history else RecordRows(held.rows.written)

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
    with pytest.raises(ConfigError, match="history_len: expected 0 with records by slot, got 4; tokens that wait"):
        replace(held.records, by_slot=True)
    held.records = replace(held.records, by_slot=True, history_len=0)

    with pytest.raises(ConfigError, match="record_rows: expected None with records by slot"):
        held.verify()


@pytest.mark.parametrize("name", ["written", "history_lens"])
def test_vectors_of_another_length_are_refused(name):
    held = Waiting(FULL, "cpu", [1, 1, 1])

    with pytest.raises(ShapeError, match=rf"record_rows\.{name}: expected \[N=3\], got \[2\]"):
        held.verify(rows=replace(held.rows, **{name: int32([0, 1], "cpu")}))


# --- on a card, with the rows that the table has for small and large batches

COMBINATIONS = [
    (length, dtype, bound, num_heads)
    for length in (1, 3, 5, 8)
    for dtype in (torch.float32, torch.bfloat16)
    for bound in (-5.0, None)
    for num_heads in (2, 24)
]


def ragged(length, state_dtype, lower_bound, num_heads, device):
    case = WindowCase(
        (length, 1, 0, length, length), (4, 2, 6, 0, 1), spec_query_len=length, num_heads=num_heads,
        key_dim=128, value_dim=128, state_dtype=state_dtype, lower_bound=lower_bound,
    )  # fmt: skip
    return Waiting(case, device, [length, 0, 1, 1, (length + 1) // 2])


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
def test_what_a_card_takes_for_its_layers_goes_on_from_what_waits(combination):
    check_history(ragged(*combination, "cuda"), "cuda")


@pytest.mark.gpu
@pytest.mark.usefixtures("sm_90")
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_behind_what_waits_do_not_depend_on_the_batch(state_dtype):
    """Among 24 rows, which the table gives other tiles than one."""
    number = 24
    slots = tuple(range(1, number + 1))
    case = WindowCase(
        (8,) * number, slots, spec_query_len=8, num_heads=12, key_dim=128, value_dim=128, state_dtype=state_dtype
    )
    many = Waiting(case, "cuda", [(row % 8) + 1 for row in range(number)])
    named, window = many.rows, many.window
    many.verify()

    for row in (0, 7, 23):
        rows = RecordRows(*(x[row : row + 1].clone() for x in vars_of(named)))
        tokens, out = slice(8 * row, 8 * row + 8), torch.empty_like(window.out[:8])
        records = replace(many.records, correction=many.records.correction.clone())
        activations = [x[tokens] for x in window.activations]
        starts, slot = int32([0, 8], "cuda"), window.state_indices[row : row + 1].clone()
        layer = (window.checkpoint_states[0], records, window.layer_gate())
        verify(*activations, *layer, starts, slot, out=out, record_rows=rows)
        assert torch.equal(out, window.out[tokens])
        entry = int(named.written[row])
        assert torch.equal(*(storage_bits(x[entry].clone()) for x in (records.correction, many.records.correction)))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("written", [0, 6, 2], r"record_rows\.written\[1\]: expected 0 to 5, an entry of the records, got 6"),
        ("written", [0, -1, 2], r"record_rows\.written\[1\]: expected 0 to 5, an entry of the records, got -1"),
        ("written", [0, 2, 2], r"record_rows\.written\[2\]: expected an entry of its own, got 2, which row 1 has"),
        ("history_lens", [1, -1, 1], r"record_rows\.history_lens\[1\]: expected 0 to 4.*got -1"),
        ("history_lens", [1, 1, 5], r"record_rows\.history_lens\[2\]: expected 0 to 4.*got 5"),
    ],
)
def test_debug_names_the_row_whose_entry_is_not_its_own(name, value, message):
    held = Waiting(FULL, "cpu", [1, 1, 1])
    before = storage_bits(held.records.correction)

    with pytest.raises(ArgumentError, match=message):
        held.verify(rows=replace(held.rows, **{name: int32(value, "cpu")}), debug=True)
    assert torch.equal(storage_bits(held.records.correction), before)
    held.verify(debug=True)
