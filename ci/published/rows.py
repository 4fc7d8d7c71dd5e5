"""A row of a published table: their figure, what stands for it on this card, and whether the trend holds."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.cases import KIMI_K3_LAYERS as LAYERS

from .recorded import Asked, Found, Recorded

EMPTY = "–"


@dataclass(frozen=True, slots=True)
class Row:
    """``theirs`` is of the published project's kernels as released, ``ours`` of this repository, both on this card.

    Attributes:
        verdict: holds, does not hold, exact, differs, shown (another card's time: nothing to hold) or not measured,
            with the reason where it is not plain.
        nights: that the recorded times are from.
    """

    what: str
    published: str
    source: str
    theirs: str
    ours: str
    verdict: str
    nights: str = EMPTY


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something formed from recorded times in µs, and how it is written."""

    asked: tuple[Asked, ...]
    form: Callable[..., float]
    write: Callable[[float], str]

    def of(self, found: Found | None) -> tuple[float, Found] | None:
        return (self.form(*found.us), found) if found else None


def compared(
    recorded: Recorded,
    what: str,
    published: float,
    source: str,
    theirs: Quantity | None,
    ours: Quantity,
    holds: Callable[[float, float], bool] | None = None,
) -> Row:
    """A row of two quantities, of one night where one has both.

    Args:
        theirs: None where what was published is in no release.
        holds: whether theirs here follows what was published; None where there is nothing to follow.
    """
    here, own = _sides(recorded, theirs, ours)
    if (own if theirs is None else here) is None:
        verdict = "not measured"
    elif here is None or holds is None:
        verdict = "shown"
    else:
        verdict = "holds" if holds(published, here[0]) else "does not hold"
    their_text, our_text = (ours.write(found[0]) if found else EMPTY for found in (here, own))
    nights = nights_of(*(found[1] for found in (here, own) if found))
    return Row(what, ours.write(published), source, their_text, our_text, verdict, nights)


def _sides(
    recorded: Recorded, theirs: Quantity | None, ours: Quantity
) -> tuple[tuple[float, Found] | None, tuple[float, Found] | None]:
    if theirs is None:
        return None, ours.of(recorded.of(*ours.asked))
    if both := recorded.of(*theirs.asked, *ours.asked):
        count = len(theirs.asked)
        return theirs.of(Found(both.us[:count], both.night)), ours.of(Found(both.us[count:], both.night))
    return theirs.of(recorded.of(*theirs.asked)), ours.of(recorded.of(*ours.asked))


def nights_of(*found: Found) -> str:
    """Each once, the older first."""
    return ", ".join(sorted({one.night for one in found})) or EMPTY


def exact(what: str, published: float, source: str, computed: float, write: Callable[[float], str]) -> Row:
    """A figure that is computed: it is the published one, as far as that was written out, or it is not."""
    verdict = "exact" if write(published) == write(computed) else "differs"
    return Row(what, write(published), source, EMPTY, write(computed), verdict)


def not_measured(what: str, published: str, source: str, why: str) -> Row:
    return Row(what, published, source, EMPTY, EMPTY, f"not measured: {why}")


def same_side(of: float) -> Callable[[float, float], bool]:
    """Both above ``of``, or both below."""
    return lambda published, here: (published > of) == (here > of)


def ms(us: float) -> str:
    return f"{us / 1e3:.3f} ms"


def micros(us: float) -> str:
    return f"{us:.1f} us"


def times(ratio: float) -> str:
    return f"{ratio:.2f} x"


def percent(value: float) -> str:
    return f"{value:+.2f} %"


def all_layers(*us: float) -> float:
    """Of one layer's time that of all."""
    return LAYERS * us[0]
