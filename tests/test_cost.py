"""cost.py against the published byte floors (facts of vLLM PR 51855, one request and head, K = V = 128)."""

import ast
from pathlib import Path

import pytest

from recoverssm import cost

FP32 = cost.LayerSizes(num_heads=1, state_itemsize=4)
BF16 = cost.LayerSizes(num_heads=1, state_itemsize=2)
T = 8
BETA_BYTES = T * 2
"""raw beta, bf16: the term that one of the two published tables leaves out."""


@pytest.mark.parametrize(("sizes", "expected"), [(FP32, 83_984), (BF16, 51_216)], ids=["fp32", "bf16"])
def test_verify_moves_one_state_and_the_activations_and_records_of_eight_tokens(sizes, expected):
    assert cost.verify(sizes, num_rows=1, num_tokens=T).total_bytes == expected


@pytest.mark.parametrize(("sizes", "expected"), [(FP32, 600_080), (BF16, 305_168)], ids=["fp32", "bf16"])
def test_full_state_verify_moves_nine_states_and_the_activations_of_eight_tokens(sizes, expected):
    assert cost.full_state_verify(sizes, num_rows=1, num_tokens=T).total_bytes == expected


@pytest.mark.parametrize(
    ("sizes", "verify", "full_state"), [(FP32, 83_968, 600_064), (BF16, 51_200, 305_152)], ids=["fp32", "bf16"]
)
def test_without_raw_beta_the_other_published_table_is_met(sizes, verify, full_state):
    assert cost.verify(sizes, num_rows=1, num_tokens=T).total_bytes - BETA_BYTES == verify
    assert cost.full_state_verify(sizes, num_rows=1, num_tokens=T).total_bytes - BETA_BYTES == full_state


@pytest.mark.parametrize(
    ("sizes", "commit_len", "expected"),
    [(FP32, 4, 135_168), (FP32, 8, 139_264), (BF16, 4, 69_632), (BF16, 8, 73_728)],
)
def test_commit_moves_two_states_and_the_accepted_records(sizes, commit_len, expected):
    assert cost.commit_state(sizes, [commit_len]).total_bytes == expected


def test_verify_writes_no_state():
    written = cost.verify(FP32, num_rows=1, num_tokens=1).write_bytes

    assert written == 128 * 2 + 128 * 4 + 2 * 128 * 2  # output, correction, key and gate


def test_rejected_rows_cost_nothing():
    assert cost.commit_state(FP32, [0, 0]) == cost.Cost(0, 0, 0)
    assert cost.compact_conv(FP32, [0, 0]) == cost.Cost(0, 0, 0)
    assert cost.commit_state(FP32, [0, 5, 0]) == cost.commit_state(FP32, [5])


def test_conv_compaction_moves_one_history_there_and_back():
    assert cost.compact_conv(BF16, [4]).total_bytes == 3 * 384 * 2 * 2


def test_a_row_that_accepts_one_token_has_its_conv_history_in_place_already():
    assert cost.compact_conv(BF16, [1]).total_bytes == 0


def test_plan_reads_and_writes_a_few_integers_a_row():
    assert cost.commit_plan(num_rows=32) == cost.Cost(4 * (32 + 33 + 32), 4 * 3 * 32, 0)
    assert cost.commit_plan(num_rows=32, has_request_indices=True).read_bytes == 4 * (32 + 33 + 32 + 32)


def test_a_boundary_costs_the_state_and_the_history_that_are_written_there():
    plain, crossing = cost.commit_state(FP32, [4, 3]), cost.commit_state(FP32, [4, 3], [[2], []])

    assert crossing == plain + cost.Cost(0, 65_536, 0)
    history = 3 * 384 * 2
    # Of histories after 2 and after 4 tokens one token is the same; after 1 and after 4 tokens none is.
    assert cost.compact_conv(BF16, [4], [[2]]) == cost.Cost(history * 5 // 3, 2 * history, 0)
    assert cost.compact_conv(BF16, [4], [[1]]) == cost.Cost(2 * history, 2 * history, 0)


def test_a_boundary_at_the_last_token_is_the_final_state_and_costs_nothing():
    assert cost.commit_state(FP32, [4, 0], [[4], []]) == cost.commit_state(FP32, [4, 0])
    assert cost.compact_conv(FP32, [4, 1], [[4], [1]]) == cost.compact_conv(FP32, [4, 1])


def test_an_align_plan_reads_blocks_and_writes_boundaries_and_columns():
    plain = cost.commit_plan(num_rows=3)

    plan = cost.align_plan([4, 0, 1], [[2, 4], [], []], num_places=2)

    assert plan == plain + cost.Cost(4 * (3 + 2 + 2), 4 * (3 * 5 + 2), 0)


def test_a_commit_in_align_mode_is_the_sum_of_its_parts():
    lens, crossed = [4, 0, 3], [[2], [], [3]]

    whole = cost.commit(FP32, lens, num_layers=5, crossed=crossed)

    parts = (cost.commit_state(FP32, lens, crossed) + cost.compact_conv(FP32, lens, crossed)).times(5)
    assert whole == parts + cost.align_plan(lens, crossed, num_places=1)


def test_everyone_crossing_once_moves_about_half_as_much_again():
    sizes, lens = cost.LayerSizes(num_heads=12), [4, 3] * 16

    plain, crossing = (cost.commit(sizes, lens, num_layers=69, crossed=[m] * 32) for m in ([], [2]))

    assert crossing.total_bytes / plain.total_bytes == pytest.approx(1.495, abs=1e-3)


def test_flops_of_batch_32_at_tp8_are_24_and_10_gigaflops():
    sizes = cost.LayerSizes(num_heads=12)

    verifies = cost.verify(sizes, num_rows=32, num_tokens=32 * T).times(69)

    assert verifies.flops == 7 * 16_384 * 32 * T * 12 * 69
    assert round(verifies.flops / 1e9, 1) == 24.3
    assert round(cost.commit_state(sizes, [T] * 32).times(69).flops / 1e9, 1) == 10.4


def test_batch_32_at_tp8_moves_the_published_gigabytes():
    sizes = cost.LayerSizes(num_heads=12)
    full_state = cost.full_state_step(sizes, num_rows=32, num_tokens=256, num_layers=69)
    verifies = cost.verify(sizes, num_rows=32, num_tokens=256).times(69)
    commits = cost.commit_state(sizes, [8] * 32).times(69)

    assert round(full_state.total_bytes / 1e9, 2) == 15.90
    assert round(verifies.total_bytes / 1e9, 3) == 2.225
    assert round(commits.total_bytes / 1e9, 2) == 3.69


@pytest.mark.parametrize(("t", "ratio"), [(8, 2.69), (4, 1.59), (3, 1.29), (2, 0.98)])
def test_full_state_over_recoverssm_traffic_when_every_token_is_accepted(t, ratio):
    verify = cost.verify(FP32, num_rows=1, num_tokens=t).total_bytes
    commit = cost.commit_state(FP32, [t]).total_bytes
    full_state = cost.full_state_verify(FP32, num_rows=1, num_tokens=t).total_bytes

    assert full_state / (verify + commit) == pytest.approx(ratio, abs=0.006)


def test_a_step_is_the_sum_of_its_parts():
    sizes = cost.LayerSizes(num_heads=3, state_itemsize=2)
    lens = [0, 1, 4]

    whole = cost.step(sizes, lens, num_rows=3, num_tokens=11, num_layers=5)

    parts = cost.commit_plan(num_rows=3)
    for _ in range(5):
        parts += cost.verify(sizes, num_rows=3, num_tokens=11)
        parts += cost.commit_state(sizes, lens) + cost.compact_conv(sizes, lens)
    assert whole == parts


def test_a_verify_that_takes_history_reads_its_records_and_writes_no_state():
    sizes = cost.LayerSizes(num_heads=3, key_dim=64, value_dim=32, state_itemsize=2)

    behind = cost.verify_history(sizes, [0, 1, 4], [2, 8, 1])

    plain = cost.verify(sizes, num_rows=3, num_tokens=11)
    assert behind.read_bytes - plain.read_bytes == 5 * sizes.record_bytes
    assert behind.write_bytes == plain.write_bytes
    assert behind.flops - plain.flops == (1 * 8 + 4 * 1) * 3 * (2 * 2 * 64 + 2 * 2 * 32)
    assert cost.verify_history(sizes, [0, 0, 0], [2, 8, 1]) == plain


def test_a_deferred_commit_costs_the_states_of_those_who_do_not_wait():
    sizes, lens = cost.LayerSizes(num_heads=3, state_itemsize=2), [0, 1, 4]

    waiting, some = (cost.commit_deferred(sizes, lens, now, num_layers=5) for now in ((), [0, 7, 0]))

    plans = cost.commit_plan(num_rows=3).total_bytes + 7 * 3 * 4
    assert waiting.total_bytes == plans + cost.compact_conv(sizes, lens).times(5).total_bytes
    assert some == waiting + cost.commit_state(sizes, [7]).times(5)


def test_ragged_rows_cost_what_their_tokens_cost():
    sizes = cost.LayerSizes(num_heads=2, key_dim=64, value_dim=32, state_itemsize=2)

    ragged = cost.verify(sizes, num_rows=2, num_tokens=1 + 6)

    one, six = (cost.verify(sizes, num_rows=1, num_tokens=q) for q in (1, 6))
    assert ragged == one + six


def test_cost_imports_only_the_standard_library():
    tree = ast.parse(Path(cost.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    assert imported == {"collections.abc", "dataclasses"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
