from collections.abc import Callable

import pytest

from benchmarks.harness.quiet import QuietCard


def card_with(grown: dict[str, int]) -> QuietCard:
    """A card that can have 1980 MHz and whose counters grow by this much until each reading."""
    totals = dict.fromkeys(grown, 0)

    def read() -> dict[str, int]:
        for reason, us in grown.items():
            totals[reason] += us
        return dict(totals)

    card = QuietCard(read)
    card.learn(1980.0)
    return card


def judge(card: QuietCard, sm_mhz: float | None) -> str:
    card.begin()
    return card.end(sm_mhz).held_back


@pytest.mark.parametrize("reason", ["power", "sync_boost", "reliability"])
def test_power_limit_counts_only_with_a_low_clock(reason: str):
    card = card_with({reason: 5000})

    assert judge(card, 1965.0) == ""
    assert judge(card, None) == ""
    assert judge(card, 1905.0) == f"{reason} 5.0 ms, SM clock 1905 of 1980 MHz"


@pytest.mark.parametrize("reason", ["thermal", "board_limit"])
def test_heat_counts_whatever_the_clock(reason: str):
    card = card_with({reason: 700})

    assert judge(card, 1980.0) == f"{reason} 0.7 ms, SM clock 1980 of 1980 MHz"
    assert judge(card, None) == f"{reason} 0.7 ms"


def test_low_clock_without_any_counter_that_grew_is_no_throttle():
    assert judge(card_with({"power": 0, "thermal": 0}), 1500.0) == ""


def test_clock_decides_alone_where_no_counter_is_told():
    card = card_with({})

    assert judge(card, 1500.0) == "SM clock 1500 of 1980 MHz"
    assert judge(card, 1965.0) == ""


def test_growth_is_that_of_the_block_alone():
    readings = iter([{"power": 7}, {"power": 7}, {"power": 90}, {"power": 150}, {"power": 190}])
    card = QuietCard(lambda: next(readings))

    card.begin()
    assert card.end(None).throttle_us == {}
    assert card.end(None).throttle_us == {"power": 83}  # one block ends where the next begins
    card.begin()
    assert card.end(None).throttle_us == {"power": 40}


def test_counter_that_is_told_only_once_says_nothing():
    readings = iter([{}, {"thermal": 900}])
    card = QuietCard(lambda: next(readings))
    card.begin()

    assert card.end(1980.0).held_back == ""


def test_clock_seen_elsewhere_is_one_that_the_card_can_have():
    card = QuietCard()
    card.learn(1980.0)
    card.learn(None)

    assert judge(card, 1500.0) == "SM clock 1500 of 1980 MHz"


def test_recovery_is_a_short_pause():
    pauses: list[float] = []
    sleep: Callable[[float], None] = pauses.append
    QuietCard(sleep=sleep).recover()

    assert pauses == [0.02]


def test_low_clock_to_which_a_load_returns_after_a_rest_is_its_own():
    card = card_with({"power": 5000})
    card.begin()

    assert card.end(1830.0).held_back
    card.recover()
    assert card.end(1760.0).held_back  # not yet where it settles
    card.recover()
    assert card.end(1718.0).held_back == ""
    assert card.end(1650.0).held_back  # a dip of this load as well
    card.begin()
    assert card.end(1650.0).held_back  # and the next load has not been there


def test_heat_is_nobodys_own():
    card = card_with({"thermal": 700})
    card.begin()

    assert card.end(1500.0).held_back
    card.recover()
    assert card.end(1500.0).held_back


def test_growth_during_a_rest_is_not_of_the_next_block():
    readings = iter([{"power": 0}, {"power": 50}, {"power": 90}, {"power": 95}])
    card = QuietCard(lambda: next(readings), sleep=lambda _: None)
    card.begin()
    card.end(None)
    card.recover()

    assert card.end(None).throttle_us == {"power": 5}
