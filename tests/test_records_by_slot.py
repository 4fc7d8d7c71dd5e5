"""Records that lie beside the states, by state slot: every form of verify and commit gives the bits it gives by row."""

import importlib
from dataclasses import replace

import pytest
import torch

from recoverssm import ArgumentError, CommitContext, LayerTable, Records, ShapeError, commit_state, reference
from tests.forms import use_form
from tests.test_commit_state import run_commit
from tests.test_commit_state_async import commit as commit_async
from tests.test_verify import run_verify
from tests.test_verify_wgmma import CONSTANTS as WGMMA
from tests.windows import NULL_SLOTS, Window, WindowCase, int32, storage_bits

MMA = {"BV": 64, "CAUSAL_BLOCKS": False, "SLICE": 32, "AHEAD": 1, "EVICT": False}
VERIFY_FORMS = {
    "recurrence": None,
    "wgmma": WGMMA,
    "wgmma_blocks": WGMMA | {"CAUSAL_BLOCKS": True},
    "mma": MMA,
    "mma_blocks": MMA | {"CAUSAL_BLOCKS": True},
}
CASE = WindowCase((5, 0, 3, 2), (4, 2, 0, 1), spec_query_len=5, num_heads=2, key_dim=128, value_dim=128, num_layers=2)


def twins(case, device="cpu"):
    """Equal windows, the first with records by row, the second by slot."""
    return Window(case, device), Window(replace(case, by_slot=True), device)


def assert_same_records(by_row, by_slot):
    """Every live row's entry lies at its slot, and nothing else has been written."""
    live = [(row, slot) for row, slot in enumerate(by_row.case.slots) if slot > 0]
    for layer in range(by_row.case.num_layers):
        for name in ("correction", "key_gate"):
            rows, slots = (getattr(window.records[layer], name) for window in (by_row, by_slot))
            expected = torch.full_like(slots, float("nan"))
            for row, slot in live:
                expected[slot] = rows[row]
            assert torch.equal(slots.nan_to_num(7.0), expected.nan_to_num(7.0))


def test_every_form_of_verify_is_tried():
    assert set(VERIFY_FORMS) == set(importlib.import_module("recoverssm.ops.verify").FORMS)


@pytest.mark.parametrize("form", VERIFY_FORMS)
def test_verify_records_a_row_at_its_slot(form, monkeypatch):
    if VERIFY_FORMS[form] is not None:
        use_form(monkeypatch, "verify", form, "cpu", **VERIFY_FORMS[form])
    by_row, by_slot = twins(replace(CASE, num_layers=1))

    for window in (by_row, by_slot):
        run_verify(window)

    assert_same_records(by_row, by_slot)
    assert torch.equal(storage_bits(by_row.out), storage_bits(by_slot.out))


@pytest.mark.parametrize("run", ["recurrence", "async"])
def test_commit_reads_the_records_of_the_source_slot_wherever_the_final_state_goes(run, monkeypatch):
    windows = twins(CASE)
    for window in windows:
        for layer, records in enumerate(window.records):
            arguments = (window.checkpoint_states[layer], records, window.layer_gate(layer))
            rows = (window.query_start_loc, window.state_indices)
            reference.verify(*window.activations, *arguments, *rows, out=window.out)
        plan = window.plan([4, 0, 0, 2], [2, 0, 0, 1])  # slot 2 has no records: its row had no tokens
        commit_async(window, plan, monkeypatch) if run == "async" else run_commit(window, plan)

    by_row, by_slot = windows
    assert not by_slot.checkpoint_states[0][2].isnan().any()
    for layer in range(2):
        assert torch.equal(*(storage_bits(window.checkpoint_states[layer]) for window in (by_row, by_slot)))


def test_a_context_commits_records_by_slot(device):
    by_row, by_slot = twins(NULL_SLOTS, device)
    for window in (by_row, by_slot):
        run_verify(window)
        context = CommitContext(window.checkpoint_states, window.records, [], window.gate, max_num_rows=3)
        context.commit(int32([2, 3, 3], device), window.query_start_loc, window.state_indices)

    assert torch.equal(*(storage_bits(window.checkpoint_states[0]) for window in (by_row, by_slot)))


def test_there_must_be_records_for_every_slot_however_small_the_batch():
    window = Window(replace(NULL_SLOTS, by_slot=True), "cpu")
    few = replace(
        window.records[0], correction=window.records[0].correction[:4], key_gate=window.records[0].key_gate[:4]
    )

    with pytest.raises(ShapeError, match=r"records\.correction: expected at least 5 slots, one per slot of the states"):
        run_verify(window, records=few)
    tables = [LayerTable.of("t", [x]) for x in (window.checkpoint_states[0], few.correction, few.key_gate)]
    with pytest.raises(ShapeError, match=r"corrections: expected at least 5 slots, one per slot of the states, got 4"):
        commit_state(*tables, window.plan([1, 1, 1]), window.gate, by_slot=True)


def test_layers_have_one_order_of_records():
    window = Window(replace(NULL_SLOTS, num_layers=2, by_slot=True), "cpu")
    first, second = window.records
    mixed = [first, Records(second.correction, second.key_gate)]

    with pytest.raises(ArgumentError, match=r"records\[1\]: expected by_slot=True as in layer 0, got False"):
        CommitContext(window.checkpoint_states, mixed, [], window.gate, max_num_rows=3)
