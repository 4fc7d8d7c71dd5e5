"""Headline tiles and their sparklines."""

import pytest
from msgspec.structs import replace

from reports.text import NBSP
from reports.tiles import Past, sparkline, tiles_of
from tests.reports.golden import HEADLINE, SKIP_REASON, SKIPPED, NightPlan, golden_cases, golden_record, processes_of


def past_of(*plans: NightPlan) -> Past:
    nights = [processes_of([golden_record(plan, index, golden_cases()) for index in range(3)]) for plan in plans]
    return Past(["commit x"] * len(nights), nights, [()] * len(nights))


def test_tiles_show_the_known_headline_figures():
    tiles = {tile.key: tile for tile in tiles_of(HEADLINE, past_of(NightPlan(1)))}

    assert [tile.value.replace(NBSP, " ") for tile in tiles.values()] == ["+20.0 %", "1,201 µs", "85.9 %", "+25.0 %"]
    assert tiles["verify_overhead"].word == "slower than full state"
    assert tiles["memory"].word.replace(NBSP, " ") == "11.12 GiB less than full state"
    assert "3 processes" in tiles["commit"].detail


def test_a_faster_verify_is_called_faster_in_words():
    plan = NightPlan(1, speed=lambda op, provider: 0.5 if provider == "recoverssm" else 1.0)

    tile = tiles_of(HEADLINE, past_of(plan))[0]

    assert (tile.value.replace(NBSP, " "), tile.word, tile.tone) == ("−40.0 %", "faster than full state", "good")


def test_a_tile_without_a_figure_says_why():
    tile = tiles_of(SKIPPED, past_of(NightPlan(1)))[0]

    assert (tile.value, tile.word) == ("–", "no figure")
    assert SKIP_REASON in tile.detail
    assert tile.spark is None


def test_a_sparkline_covers_all_nights_and_says_its_range():
    faster = NightPlan(2, speed=lambda op, provider: 0.9 if op == "commit" else 1.0)

    spark = tiles_of(HEADLINE, past_of(NightPlan(1), faster))[1].spark

    assert spark is not None
    assert spark.caption.replace(NBSP, " ") == "2 nights, 1,081 µs to 1,201 µs"


def test_a_night_whose_processes_disagree_on_an_exact_value_is_no_point_of_a_sparkline():
    records = [golden_record(NightPlan(1), index, golden_cases()) for index in range(2)]
    records[1].measurements[:] = [
        replace(item, value=item.value + 1) if item.metric == "memory_saved_pct" else item
        for item in records[1].measurements
    ]
    nights = [processes_of(records), processes_of(records[:1])]

    tile = tiles_of(HEADLINE, Past(["commit x"] * 2, nights, [()] * 2))[2]

    assert tile.spark.nights == 1


@pytest.mark.parametrize(
    ("values", "breaks", "moves"),
    [([1.0, 2.0, 3.0], set(), 1), ([1.0, None, 3.0], set(), 2), ([1.0, 2.0, 3.0, 4.0], {2}, 2), ([5.0], set(), 1)],
)
def test_a_sparkline_lifts_its_pen_where_a_night_is_missing_or_the_environment_changed(values, breaks, moves):
    path, x, _ = sparkline(values, breaks)

    assert path.count("M") == moves
    assert x == 128.0


def test_a_higher_value_lies_higher():
    _, _, up = sparkline([1.0, 2.0])
    _, _, down = sparkline([2.0, 1.0])

    assert up < down
