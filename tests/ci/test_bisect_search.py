"""The search of a bisection: how many commits it measures, and what it says when some cannot be told."""

import math
import random
from dataclasses import dataclass

import pytest

from ci.commits.search import Answer, max_steps, search


@dataclass(frozen=True)
class Said:
    answer: Answer

    @property
    def is_measured(self):
        return self.answer != "skipped"


def asking(first_bad, **otherwise):
    asked = []

    def ask(place):
        asked.append(place)
        answer = "bad" if place >= first_bad else "good"
        return Said(next((name for name, places in otherwise.items() if place in places), answer))

    return ask, asked


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 31, 100])
def test_every_first_bad_commit_is_found_within_the_steps(count):
    for first_bad in range(count):
        ask, asked = asking(first_bad)

        found = search(count, ask)

        assert found.is_exact
        assert found.bad == first_bad
        assert found.num_steps == len(asked) <= (math.ceil(math.log2(count)) if count > 1 else 0) + 2
        assert len(set(asked)) == len(asked)


def test_end_that_is_not_bad_ends_the_search_at_once():
    ask, asked = asking(99)

    found = search(16, ask)

    assert (found.is_bad, asked, found.open) == (False, [15], [])


def test_commits_that_cannot_be_measured_are_passed_over_and_cost_no_step():
    ask, _ = asking(5, skipped=range(6, 12))

    found = search(16, ask)

    assert found.is_exact
    assert found.bad == 5
    assert found.num_steps <= max_steps(16)


def test_answer_is_between_when_the_first_bad_one_cannot_be_measured():
    ask, _ = asking(5, skipped=(4, 5, 6))

    found = search(16, ask)

    assert not found.is_exact
    assert (found.good, found.bad, found.open) == (3, 7, [4, 5, 6])


def test_one_unclear_answer_is_made_good_by_its_neighbours():
    ask, _ = asking(3, unclear=(8,))

    assert search(16, ask).bad == 3


def test_unclear_answers_use_up_the_steps_and_never_make_one_up():
    ask, asked = asking(8, unclear=range(15))

    found = search(16, ask)

    assert len(asked) == max_steps(16)
    assert not found.is_exact
    assert (found.good, found.bad) == (-1, 15)


def test_end_that_cannot_be_measured_finds_nothing():
    ask, _ = asking(3, skipped=(15,))

    found = search(16, ask)

    assert not found.is_bad
    assert found.num_steps == 0


def test_what_is_said_always_holds_the_first_bad_commit():
    rng = random.Random(3)
    for _ in range(300):
        count = rng.randrange(1, 40)
        first_bad = rng.randrange(count)
        places = {name: {p for p in range(count - 1) if rng.random() < 0.2} for name in ("skipped", "unclear")}
        ask, _ = asking(first_bad, **places)

        found = search(count, ask)

        assert found.good < first_bad <= found.bad
        assert set(found.open) == set(range(found.good + 1, found.bad))
