"""What the gate promises, and whether the data keep it: yes, no, or nobody can tell yet."""

from collections.abc import Mapping, Sequence

from benchmarks.harness.stats.calibration import exact_upper_pct

from .trust import DisjointGates, IdenticalPairs, Power, ResampledGates, Target

ALARMS_PCT = 1.0  # most gates of the code against itself that may raise any alarm
ENOUGH_GATES = 2000  # resampled, to say so
POWER = {2.0: 85.0, 3.0: 95.0, 5.0: 99.0}  # delay in percent: least share of series and gates that find it
AGREEMENT = 10.0  # points by which real and synthetic delays may be found differently
BLIND = {2.0: 15.0, 3.0: 5.0}  # effect in percent: most of the series that may be blind to it, in percent


def targets(
    disjoint: DisjointGates,
    identical: IdenticalPairs,
    resampled: ResampledGates,
    power: Sequence[Power],
    blind_pct: Mapping[float, float],
) -> list[Target]:
    """One row for each promise."""
    by_delay = {one.delay_pct: one for one in power}
    return [
        _exact(disjoint, identical),
        _resampled(resampled),
        *(_power(pct, least, by_delay.get(pct)) for pct, least in POWER.items()),
        _agreement(power),
        *(_blind(effect, share) for effect, share in blind_pct.items()),
    ]


def _exact(found: DisjointGates, real: IdenticalPairs) -> Target:
    # Nobody measured the suspects of real gates again, as those of the unsettled: they count as alarms in the bound.
    num_gates, unsettled = found.num_gates + len(real.gates), found.num_unsettled + real.num_gates_with_suspects
    upper_pct = exact_upper_pct(found.num_with_alarm + unsettled, num_gates)
    met = None
    if upper_pct is not None and upper_pct <= ALARMS_PCT:
        met = True
    elif found.num_with_alarm > ALARMS_PCT / 100 * num_gates:
        met = False
    said = f"{found.num_with_alarm}{f' and {unsettled} unsettled' if unsettled else ''} of {num_gates} disjoint gates"
    said += f", {len(real.gates)} of them real" if real.gates else ""
    return Target(
        name="false alarms, exact bound",
        wanted=f"at most {ALARMS_PCT:g} % of gates",
        found=said if upper_pct is None else f"{said}: at most {upper_pct:.3g} % with 95 % confidence",
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
