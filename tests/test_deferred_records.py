"""Records and options of deferred commits that cannot work are refused when a config, a context or a life is made."""

from dataclasses import replace

import pytest
import torch

from recoverssm import (
    ArgumentError,
    CommitContext,
    ConfigError,
    GateParams,
    Records,
    RecoverSSMState,
)
from recoverssm.errors import ShapeError
from tests.test_lifecycle import K, T, V, config_of


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
