"""The nights of a store as series: one value per night, cut where the environment changed, not at card or code."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.harness.records import Night, Record
from benchmarks.harness.stats.change_point import adjusted, night_value
from ci.config import EXACT_CONTRACTS, Key
from ci.exits import Exit
from ci.policy import Policy
from ci.series import HOST_CONTRACTS

CONTROL = "copy"


@dataclass(frozen=True, slots=True)
class Measured:
    """A night with its records that count."""

    night: Night
    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class Point:
    """One night of a series; ``value`` is the median of its process medians as they are, adjusted by nothing."""

    night: str
    created_utc: str
    commit: str | None
    source_hash: str
    value: float
    n_processes: int


@dataclass(frozen=True, slots=True)
class NightlySeries:
    """The nights of one environment, oldest first, at least one.

    Attributes:
        values: of the nights, adjusted by the control where that was found to help.
        coefficient: of that adjustment; 0 where there is none.
        num_cut: nights of other environments, which are not here.
    """

    key: Key
    unit: str
    num_requests: int
    points: Sequence[Point]
    values: Sequence[float]
    coefficient: float = 0.0
    num_cut: int = 0


def nightly_series(nights: Sequence[Measured], policy: Policy) -> list[NightlySeries]:
    """Every timed series of one GPU model that the newest night has, in the newest night's environment, by key.

    Other projects' kernels are left out: their changes are theirs.

    A night counts for a series where five processes have it; one that was judged invalid counts for none. An
    environment that comes back goes on where it was.

    Args:
        nights: in order of time; renamed cases go on under their new names.
    """
    used = [
        Measured(one.night, [policy.aliases.renamed(record) for record in one.records])
        for one in nights
        if one.records and one.night.exit_code != Exit.INVALID and not one.night.is_static
    ]
    if not used:
        return []
    newest, tables = used[-1], [_values(one) for one in used]
    units = {m.key: m.unit for record in newest.records for m in record.measurements}
    num_requests = {case.name: case.num_requests for record in newest.records for case in record.cases}
    same = {host: [_is_same(one, newest, host=host) for one in used] for host in (False, True)}
    found = []
    for key in sorted(tables[-1]):
        counts = same[key[4] in HOST_CONTRACTS]
        own = [
            (one, table[key])
            for one, table, is_same in zip(used, tables, counts, strict=True)
            if is_same and key in table
        ]
        points = [_point(one, values) for one, values in own]
        values, coefficient = _adjusted([one for one, _ in own], [point.value for point in points])
        cut = len(used) - sum(counts)
        found.append(NightlySeries(key, units[key], num_requests.get(key[3], 0), points, values, coefficient, cut))
    return found


def environment(one: Measured, *, host: bool = False) -> tuple[object, ...]:
    """What cuts its series."""
    return one.records[0].environment.cut_key(host=host)


def _is_same(one: Measured, newest: Measured, *, host: bool) -> bool:
    return environment(one, host=host) == environment(newest, host=host)


def _values(one: Measured) -> dict[Key, list[float]]:
    """Process medians of each timed series that enough processes of this night have."""
    table: dict[Key, list[float]] = {}
    own = ((record.peer_names, m) for record in one.records for m in record.measurements)
    for m in (m for others, m in own if m.provider not in others):
        if m.contract not in EXACT_CONTRACTS and m.status == "ok" and m.value is not None and m.value > 0:
            table.setdefault(m.key, []).append(m.value)
    return {key: values for key, values in table.items() if night_value(values) is not None}


def _point(one: Measured, values: Sequence[float]) -> Point:
    subject, night, value = one.records[0].subject, one.night, night_value(values)
    assert value is not None  # or the series would not be in the table
    return Point(night.id, night.created_utc, subject.commit, subject.source_hash, value, len(values))


def _adjusted(nights: Sequence[Measured], values: Sequence[float]) -> tuple[Sequence[float], float]:
    controls = [
        [
            control.median_us
            for record in one.records
            for control in record.controls
            if (control.name, control.when) == (CONTROL, "start") and control.median_us > 0
        ]
        for one in nights
    ]
    if not all(controls):
        return values, 0.0
    return adjusted(values, [median(own) for own in controls])
