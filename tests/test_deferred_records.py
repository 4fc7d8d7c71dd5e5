"""Records, rows and options of deferred commits that cannot work: with a config, a context, a life, or a verify."""

from dataclasses import replace

import pytest
import torch

from recoverssm import ArgumentError, CommitContext, ConfigError, GateParams, Records, RecoverSSMState, ShapeError
from tests.test_lifecycle import K, T, V, config_of
from tests.waiting import Waiting
from tests.windows import FULL, int32, storage_bits


def test_each_option_that_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="commit: expected 'every_step' or 'deferred', got 'never'"):
        config_of(commit="never")
    with pytest.raises(
        ConfigError, match=r"commit: expected 'every_step' with placement 'page'.*take placement 'scratch'"
    ):
        config_of(commit="deferred", placement="page")
    assert [config_of(commit="deferred", pipeline_parallel=p).num_record_rows for p in (1, 2)] == [6, 12]
    assert config_of(pipeline_parallel=2).num_record_rows == 6
    assert [config_of(commit=commit).history_len for commit in ("every_step", "deferred")] == [0, T]


def context_of(records, max_num_rows=2):
    gate = GateParams(torch.zeros(1, 1), torch.zeros(1, 1, K), -5.0)
    return CommitContext([torch.zeros(3, 1, V, K)], [records], [], gate, max_num_rows=max_num_rows)


def records_of(entries, history_len=T, window=T):
    C = history_len + window
    return Records(torch.zeros(entries, 1, C, V), torch.zeros(entries, 1, C, 2 * K), history_len=history_len)


def test_records_have_room_for_what_waits_and_are_those_of_all_lanes():
    deferred = {"commit": "deferred", "max_num_requests": 2}
    with pytest.raises(ConfigError, match=r"expected history_len=4 as in the config \(T with deferred .*, got 0"):
        RecoverSSMState(config_of(**deferred), [context_of(records_of(2, history_len=0))])
    config, few, shared = config_of(**deferred, pipeline_parallel=2), records_of(2), records_of(4)
    with pytest.raises(ConfigError, match=r"records: expected at least config\.num_record_rows=4 entries.*got 2"):
        RecoverSSMState(config, [context_of(few), context_of(few)])
    with pytest.raises(ConfigError, match="expected the same records in every lane with deferred commits"):
        RecoverSSMState(config, [context_of(shared), context_of(records_of(4))])

    RecoverSSMState(config, [context_of(shared), context_of(shared)])


@pytest.mark.parametrize(
    ("window", "history_len", "message"),
    [
        (17, 0, r"records\.correction: T: expected 1 to 16 tokens .*, got 17"),
        (0, 4, r"records\.correction: T = C - history_len: expected 1 to 16 tokens .*, got 0"),
        (3, 17, r"records\.history_len: expected 0 to 16 tokens that may wait, got 17"),
    ],
)
def test_entries_of_a_length_that_no_verify_has_are_refused_with_the_context(window, history_len, message):
    with pytest.raises(ShapeError, match=message):
        context_of(records_of(2, history_len, window))


def test_layers_that_leave_other_room_for_what_waits_are_refused():
    """One plan commits all of them; with as many positions they would take longer windows in place of history."""
    gate = GateParams(torch.zeros(2, 1), torch.zeros(2, 1, K), -5.0)
    records = [records_of(2), replace(records_of(2), history_len=0)]

    with pytest.raises(ArgumentError, match=r"records\[1\]: expected history_len=4 as in layer 0, got 0"):
        CommitContext([torch.zeros(3, 1, V, K) for _ in range(2)], records, [], gate, max_num_rows=2)


def test_a_batch_of_more_rows_than_the_context_has_is_refused_before_anything_is_launched():
    with pytest.raises(ShapeError, match="expected at most max_num_rows=2 rows, got 3"):
        context_of(records_of(4)).takes_history(3)


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
