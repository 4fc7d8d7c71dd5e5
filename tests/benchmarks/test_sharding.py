"""Cases dealt out to shards: all of them, once each, in parts of about equal time."""

import pytest

from benchmarks.cases import SETS
from benchmarks.sharding import ShardOf, deal, seconds


@pytest.mark.parametrize("case_set", ["smoke", "nightly", "league"])
@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_shards_hold_each_case_once_in_the_order_of_the_set(case_set, count):
    cases = list(SETS[case_set])

    shards = [deal(cases, ShardOf(index + 1, count)) for index in range(count)]

    assert sorted(case.name for shard in shards for case in shard) == sorted(case.name for case in cases)
    assert all([cases.index(case) for case in shard] == sorted(cases.index(case) for case in shard) for shard in shards)


def test_shards_take_about_as_long():
    loads = [sum(map(seconds, deal(SETS["nightly"], ShardOf(index, 4)))) for index in (1, 2, 3, 4)]

    assert max(loads) / min(loads) < 1.05


def test_more_shards_than_cases_leave_some_empty():
    assert [len(deal(SETS["smoke"], ShardOf(index, 8))) for index in range(1, 9)] == [1] * 6 + [0] * 2


def test_shard_is_read_as_it_is_written():
    assert str(ShardOf.parse("2/3")) == "2/3"


@pytest.mark.parametrize("text", ["", "0/3", "4/3", "1", "1/0", "a/b", "1/2/3", "-1/3"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(ValueError, match=r"expected I/N with I from 1 to N, as 2/3"):
        ShardOf.parse(text)
