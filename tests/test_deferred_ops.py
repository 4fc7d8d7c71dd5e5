"""Ops of deferred commits: verify behind what waits in the entries that rows name, and its commit."""

from dataclasses import replace

import pytest
import torch

from recoverssm import AlignInputs, CommitContext, CommitPlan, RecordRows, reference, verify
from tests.compile_forms import compile_ahead
from tests.forms import skip_unless_runs, use_form
from tests.test_commit_state import run_commit
from tests.test_commit_state_async import commit as commit_async
from tests.test_records_by_slot import VERIFY_FORMS
from tests.test_verify import run_verify
from tests.test_verify_wgmma import CONSTANTS as WGMMA
from tests.test_verify_wgmma import U_TOL
from tests.waiting import Waiting
from tests.windows import (
    FP32_TOL,
    FULL,
    NULL_SLOTS,
    RAGGED,
    Window,
    WindowCase,
    assert_matches,
    int32,
    storage_bits,
    tol,
)

LARGE = WindowCase((5, 0, 3, 2), (4, 2, 0, 1), spec_query_len=5, num_heads=2, key_dim=128, value_dim=128)
CASES = [FULL, RAGGED, NULL_SLOTS, replace(FULL, state_dtype=torch.bfloat16), replace(RAGGED, lower_bound=None)]


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
