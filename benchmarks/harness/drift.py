"""How far the card moved while a process measured, by its controls. Needs no torch."""

from collections.abc import Sequence

from .records import Control


def drift_pct(controls: Sequence[Control]) -> dict[str, float]:
    """By control, how much longer it took at the end of the process than at its start, in percent.

    A control that was not taken at both is left out.
    """
    times = {(control.name, control.when): control.median_us for control in controls}
    return {
        name: 100 * (times[name, "end"] / median_us - 1)
        for (name, when), median_us in times.items()
        if when == "start" and (name, "end") in times
    }
