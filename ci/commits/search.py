"""Finds the first bad commit of a range by asking about few; some cannot be asked, some give no clear answer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Answer = Literal["good", "bad", "unclear", "skipped"]
SPARE_STEPS = 2  # beyond what halving needs: one for the bad end, one for an unclear answer


class Asked(Protocol):
    """What an oracle says of one commit."""

    @property
    def answer(self) -> Answer:
        """``skipped``: it cannot be measured; ``unclear``: it was, and neither is shown."""

    @property
    def is_measured(self) -> bool:
        """Whether it cost a measurement; what is known of other commits of the same sources does not."""


@dataclass(slots=True)
class Found:
    """Where the change is: after ``good`` up to ``bad``, as places in the range; ``good`` is -1 for its start.

    Attributes:
        is_bad: whether the end of the range is bad at all; if not, nothing was searched.
        open: places between the two that could not be told.
        num_steps: commits that were measured.
    """

    is_bad: bool
    good: int
    bad: int
    num_steps: int
    open: list[int] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        return self.is_bad and self.bad - self.good == 1


def max_steps(count: int) -> int:
    """How many commits may be measured to search so many."""
    return math.ceil(math.log2(count)) + SPARE_STEPS if count > 1 else SPARE_STEPS


def search(count: int, ask: Callable[[int], Asked]) -> Found:
    """Search places 0 to ``count - 1``, of which the last should be bad; what comes before the first one is good.

    A commit that cannot be measured is passed over for its neighbour and costs no step. One that gives no clear answer
    is not asked again: it stays in the answer unless a neighbour settles it.
    """
    steps_left = max_steps(count)
    end = ask(count - 1)
    steps_left -= end.is_measured
    found = Found(end.answer == "bad", -1, count - 1, 0)
    told: set[int] = set()
    while found.is_bad and steps_left:
        middle = _middle([place for place in range(found.good + 1, found.bad) if place not in told])
        if middle is None:
            break
        asked = ask(middle)
        steps_left -= asked.is_measured
        if asked.answer == "good":
            found.good = middle
        elif asked.answer == "bad":
            found.bad = middle
        else:
            told.add(middle)
    found.num_steps = max_steps(count) - steps_left
    found.open = list(range(found.good + 1, found.bad)) if found.is_bad else []
    return found


def _middle(places: Sequence[int]) -> int | None:
    """The place that halves what is left best; None when nothing is."""
    return places[len(places) // 2] if places else None
