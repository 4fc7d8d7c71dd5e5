"""What the gate promises, and whether the data keep it: yes, no, or nobody can tell yet."""

from collections.abc import Mapping, Sequence

from .trust import DisjointGates, Power, ResampledGates, Target

ALARMS_PCT = 1.0  # most gates of the code against itself that may raise any alarm
ENOUGH_GATES = 2000  # resampled, to say so
POWER = {2.0: 85.0, 3.0: 95.0, 5.0: 99.0}  # delay in percent: least share of series and gates that find it
AGREEMENT = 10.0  # points by which real and synthetic delays may be found differently
BLIND = {2.0: 15.0, 3.0: 5.0}  # effect in percent: most of the series that may be blind to it, in percent


def targets(
    disjoint: DisjointGates, resampled: ResampledGates, power: Sequence[Power], blind_pct: Mapping[float, float]
) -> list[Target]:
    """One row for each promise."""
    by_delay = {one.delay_pct: one for one in power}
    return [
        _exact(disjoint),
        _resampled(resampled),
        *(_power(pct, least, by_delay.get(pct)) for pct, least in POWER.items()),
        _agreement(power),
        *(_blind(effect, share) for effect, share in blind_pct.items()),
    ]


def _exact(found: DisjointGates) -> Target:
    met = None
    if found.upper_pct is not None and found.upper_pct <= ALARMS_PCT:
        met = True
    elif found.num_with_alarm > ALARMS_PCT / 100 * found.num_gates:
        met = False
    bound = "" if found.upper_pct is None else f": at most {found.upper_pct:.3g} % with 95 % confidence"
    unsettled = f" and {found.num_unsettled} unsettled" if found.num_unsettled else ""
    return Target(
        name="false alarms, exact bound",
        wanted=f"at most {ALARMS_PCT:g} % of gates",
        found=f"{found.num_with_alarm}{unsettled} of {found.num_gates} disjoint gates{bound}",
        met=met,
    )


def _resampled(found: ResampledGates) -> Target:
    enough = found.rate_pct is not None and found.num_gates >= ENOUGH_GATES
    return Target(
        name="false alarms, resampled (model estimate)",
        wanted=f"at most {ALARMS_PCT:g} % of at least {ENOUGH_GATES} gates",
        found=f"{found.num_with_alarm} of {found.num_gates} gates",
        met=found.rate_pct <= ALARMS_PCT if enough and found.rate_pct is not None else None,
    )


def _power(delay_pct: float, least_pct: float, found: Power | None) -> Target:
    return Target(
        name=f"delays of {delay_pct:g} % found, all series",
        wanted=f"at least {least_pct:g} %",
        found="not collected" if found is None else f"{found.real_pct:.1f} %",
        met=None if found is None else found.real_pct >= least_pct,
    )


def _agreement(power: Sequence[Power]) -> Target:
    apart = max((one.points_apart for one in power), default=None)
    return Target(
        name="real and synthetic delays",
        wanted=f"found alike within {AGREEMENT:g} points",
        found="not collected" if apart is None else f"{apart:.1f} points apart at most",
        met=None if apart is None else apart <= AGREEMENT,
    )


def _blind(effect_pct: float, share_pct: float) -> Target:
    return Target(
        name=f"series blind to {effect_pct:g} %",
        wanted=f"at most {BLIND[effect_pct]:g} %",
        found=f"{share_pct:.1f} %",
        met=share_pct <= BLIND[effect_pct],
    )
