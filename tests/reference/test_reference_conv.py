"""reference.update_conv_window and compact_conv against plain loops, and what they must not touch."""

import pytest
import torch
from torch.testing import assert_close

from recoverssm import reference
from recoverssm.types import CommitPlan
from tests.reference import naive
from tests.reference.batches import bits, is_poison, poison

EXACT = {"rtol": 0, "atol": 1e-13}
C = 6
T = 4


def make_conv(query_lens, slots, *, width=4, starts=None, num_slots=7, dtype=torch.float64):
    """A pool of poison where each row's history lies at its start, tokens and taps; spare tokens are poison."""
    generator = torch.Generator().manual_seed(3)

    def normal(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    pool = poison(num_slots, width - 2 + T, C, dtype=dtype)
    for slot, start in zip(slots, starts or [0] * len(slots), strict=True):
        if slot > 0:
            pool[slot, start : start + width - 1] = normal(width - 1, C).to(dtype)
    x = torch.cat((normal(sum(query_lens), C).to(dtype), poison(2, C, dtype=dtype)))
    query_start_loc = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    return pool, x, query_start_loc, torch.tensor(slots, dtype=torch.int32), normal(C, width)


@pytest.mark.parametrize("width", [2, 3, 4, 5])
@pytest.mark.parametrize(("query_lens", "slots"), [([T, T], [2, 1]), ([1, 0, 3], [3, 1, 5])], ids=["full", "ragged"])
def test_outputs_match_plain_loops_and_the_window_is_rolled(query_lens, slots, width):
    pool, x, query_start_loc, state_indices, weight = make_conv(query_lens, slots, width=width)
    before, out = pool.clone(), poison(*x.shape)

    reference.update_conv_window(pool, x, query_start_loc, state_indices, weight, out=out)

    first = 0
    for q, slot in zip(query_lens, slots, strict=True):
        expected, sequence = naive.conv(
            before[slot, : width - 1].tolist(), x[first : first + q].tolist(), weight.tolist()
        )
        if q:
            assert_close(out[first : first + q], torch.tensor(expected, dtype=torch.float64), **EXACT)
            assert pool[slot, : width - 2 + q].tolist() == sequence[1:]
        else:
            assert torch.equal(bits(pool[slot]), bits(before[slot]))
        assert is_poison(pool[slot, max(width - 2 + q, width - 1) :]).all()
        first += q
    assert is_poison(out[first:]).all()
    assert is_poison(pool[[s for s in range(7) if s not in slots]]).all()


def test_history_starts_at_the_accepted_position_of_an_uncompacted_window():
    pool, x, query_start_loc, state_indices, weight = make_conv([T, 2], [2, 1], starts=[3, 1])
    histories = [pool[2, 3:6].clone(), pool[1, 1:4].clone()]

    out = reference.update_conv_window(
        pool, x, query_start_loc, state_indices, weight, num_accepted=torch.tensor([4, 2], dtype=torch.int32)
    )

    expected, sequence = naive.conv(histories[0].tolist(), x[:T].tolist(), weight.tolist())
    assert_close(out[:T], torch.tensor(expected, dtype=torch.float64), **EXACT)
    assert pool[2].tolist() == sequence[1:]
    expected, sequence = naive.conv(histories[1].tolist(), x[T : T + 2].tolist(), weight.tolist())
    assert_close(out[T : T + 2], torch.tensor(expected, dtype=torch.float64), **EXACT)
    assert pool[1, :4].tolist() == sequence[1:]


@pytest.mark.parametrize("null", [0, -2])
def test_a_row_without_a_slot_outputs_zeros_and_writes_no_window(null):
    pool, x, query_start_loc, state_indices, weight = make_conv([3, 2], [null, 4])
    out = poison(*x.shape)

    reference.update_conv_window(pool, x, query_start_loc, state_indices, weight, out=out)

    assert out[:3].tolist() == [[0.0] * C] * 3
    assert not out[3:5].isnan().any()
    assert is_poison(pool[[0, 1, 2, 3, 5, 6]]).all()


def test_the_window_keeps_the_bits_of_a_16_bit_projection():
    pool, x, query_start_loc, state_indices, weight = make_conv([T], [1], dtype=torch.bfloat16)

    reference.update_conv_window(pool, x, query_start_loc, state_indices, weight)

    assert torch.equal(bits(pool[1, 2:]), bits(x[:T]))


def make_plan(lens, sources, finals):
    return CommitPlan(*(torch.tensor(x, dtype=torch.int32) for x in (lens, sources, finals)))


def numbered_pools(num_layers=2, width=4):
    """Every entry of every slot its own number."""
    size = (5, width - 2 + T, C)
    count = 5 * (width - 2 + T) * C
    return [torch.arange(count, dtype=torch.float64).reshape(size) + 1000 * layer for layer in range(num_layers)]


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("commit_len", range(1, T + 1))
def test_compaction_moves_the_accepted_history_to_the_front_in_every_layer(commit_len, width):
    pools = numbered_pools(width=width)
    before = [pool.clone() for pool in pools]

    reference.compact_conv(pools, make_plan([commit_len], [3], [3]), conv_width=width)

    for pool, old in zip(pools, before, strict=True):
        assert torch.equal(pool[3, : width - 1], old[3, commit_len - 1 : commit_len - 1 + width - 1])
        assert torch.equal(pool[3, width - 1 :], old[3, width - 1 :])
        assert torch.equal(pool[[0, 1, 2, 4]], old[[0, 1, 2, 4]])


def test_compaction_reads_every_source_before_it_writes():
    (pool,) = numbered_pools(num_layers=1)
    old = pool.clone()

    reference.compact_conv([pool], make_plan([2, 4], [1, 2], [2, 1]), conv_width=4)

    assert torch.equal(pool[2, :3], old[1, 1:4])
    assert torch.equal(pool[1, :3], old[2, 3:6])


def test_rows_that_keep_nothing_or_have_no_slot_move_nothing():
    (pool,) = numbered_pools(num_layers=1)
    old = pool.clone()

    reference.compact_conv([pool], make_plan([0, 2, 2], [1, 0, 3], [1, 2, 0]), conv_width=4)

    assert torch.equal(pool, old)
