"""What records and nights are called: by time, commit and chance, without a counter; and how time is written."""

import re
from datetime import UTC, datetime
from secrets import token_hex

COMMIT_HASH = re.compile(r"[0-9A-Fa-f]{7,40}")
"""A commit, whole or shortened; a name or an option that a shell put in its place is none."""

COMMIT_DIGITS = 8  # of a commit, in an id


def utc_now() -> str:
    """Now, to the second, as ``2026-11-29T14:00:00Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def new_id(commit: str | None) -> str:
    """A name for a record or night: UTC time, short commit, microsecond, 24 random bits; sorts by time."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%dT%H%M%SZ}-{(commit or 'nocommit')[:COMMIT_DIGITS]}-{now.microsecond:05x}{token_hex(3)}"


def commit_of(id_: str) -> str:
    """The short commit in a record's or night's id; no commit is ``nocommit``."""
    return id_.partition("-")[2][:COMMIT_DIGITS]
