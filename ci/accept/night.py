"""``ci accept night``: later nights are held against a night that did not become a base by itself."""

from msgspec.structs import replace

from benchmarks.harness.ids import utc_now
from benchmarks.harness.records import Acceptance, Night
from benchmarks.harness.store import RECENT_NIGHTS, Store
from ci.exits import Exit, MissingDataError, UsageError

SHOWN = 5


def accept_night(store: Store, name: str, owner: str, reason: str, *, dry_run: bool = False) -> Night:
    """Accept the night whose id is ``name`` or ends so; returns it as stored.

    Raises:
        MissingDataError: no such night; the newest ones are named.
        UsageError: several such nights; one that is accepted already; one whose numbers cannot be believed.
    """
    night = find_night(store, name)
    if night.accepted:
        raise UsageError(f"night {night.id} is accepted already{_by_whom(night)}; nothing was changed")
    if night.exit_code in (Exit.INVALID, Exit.BROKEN):
        why = "; ".join([*_invalid(night), *night.notes][:3]) or "no reason recorded"
        raise UsageError(
            f"night {night.id} is invalid, so its numbers are no base for others: {why}", "repair it and measure again"
        )
    accepted = replace(night, accepted=True, acceptance=Acceptance(owner=owner, reason=reason, at_utc=utc_now()))
    if not dry_run:
        store.accept_night(accepted)
    return accepted


def find_night(store: Store, name: str) -> Night:
    """Raises as ``accept_night``, for want of one night of that name."""
    if not name.strip():
        raise UsageError("NIGHT: expected the id of a night or its end, got nothing")
    found = list[str]()
    for only in (RECENT_NIGHTS, None):  # a listing of years takes long, and is seldom asked for
        ids = store.ids("nights", newest=only)
        if found := [one for one in ids if one.lower().endswith(name.lower())]:
            break
    if not found:
        newest = ", ".join(reversed(ids[-SHOWN:])) or "none"
        raise MissingDataError(f"{store.name}: no night {name!r}; the newest are: {newest}", "--store names another")
    if len(found) > 1:
        raise UsageError(f"{name!r} ends {len(found)} nights: {', '.join(found[:SHOWN])}")
    nights = store.nights(ids=set(found))
    if not nights:
        raise MissingDataError(f"night {found[0]} cannot be read: {'; '.join(store.quarantined)}")
    return nights[0]


def _by_whom(night: Night) -> str:
    return f" by {night.acceptance.owner}: {night.acceptance.reason}" if night.acceptance else ""


def _invalid(night: Night) -> list[str]:
    return [f"{v.op} {v.provider} {v.case}: {v.reason}" for v in night.verdicts if v.verdict == "invalid" and v.gated]
