"""How numbers, times and identities are written on pages and in tables. Every number gets its unit here."""

import hashlib
import re
from datetime import UTC, datetime

from reports.derive import Figure

MISSING = "–"
MAX_NAME = 150  # characters of a file name that are kept; file systems take 255 bytes, with what is put around it
NBSP = "\N{NO-BREAK SPACE}"  # keeps a number and its unit on one line
MINUS = "\N{MINUS SIGN}"


def number(value: float | None, digits: int = 1) -> str:
    """Fixed digits, commas every three, a real minus sign; ``–`` for None."""
    if value is None:
        return MISSING
    return f"{value:,.{digits}f}".replace("-", MINUS)


def time_digits(value: float | None) -> int:
    """Digits after the point for a time in µs: about four significant ones."""
    size = abs(value or 0)
    return 2 if size < 10 else 1 if size < 1000 else 0


def micros(value: float | None) -> str:
    """A time without its unit, for columns headed µs."""
    return number(value, time_digits(value))


def percent(value: float | None, *, signed: bool = False, digits: int = 1) -> str:
    """``+13.7 %`` where signed; a value that rounds to zero carries no sign."""
    if value is None:
        return MISSING
    text = number(value, digits)
    if float(f"{value:.{digits}f}") == 0:
        return f"{number(0.0, digits)}{NBSP}%"
    return f"{'+' if signed and value > 0 else ''}{text}{NBSP}%"


def size(value: float | None) -> str:
    """Bytes in a binary unit, with fewer than 1000 of it where there is a larger one."""
    if value is None:
        return MISSING
    scaled = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(scaled) < 1000 or unit == "GiB":
            break
        scaled /= 1024
    return f"{number(scaled, 0 if unit == 'B' else 2)}{NBSP}{unit}"


def value_with_unit(value: float | None, unit: str) -> str:
    """A stored value of any metric, by its record's unit."""
    if value is None:
        return MISSING
    if unit in ("us", "µs"):
        return f"{micros(value)}{NBSP}µs"
    if unit in ("bytes", "B"):
        return size(value)
    if unit in ("pct", "%", "percent"):
        return percent(value, digits=2)
    return f"{value:.4g} {unit}".rstrip().replace("-", MINUS)


def span(figure: Figure, unit: str) -> str:
    """Smallest to largest process, with unit; empty for fewer than two processes."""
    low, high = figure.low, figure.high
    if figure.n < 2 or low is None or high is None:
        return ""
    if low == high:
        return "same in every process"
    if unit == "pct":
        return f"{percent(low, signed=True)} to {percent(high, signed=True)}"
    return f"{value_with_unit(low, unit)} to {value_with_unit(high, unit)}"


def scientific(value: float | None) -> str:
    """Small errors such as 1.2e-3; integers stay integers."""
    if value is None:
        return "not finite"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", MINUS)


def utc(stamp: str | None) -> str:
    """``2026-11-29 14:07 UTC`` from a record's stamp; the stamp itself when it is none of ours."""
    if not stamp:
        return "unknown time"
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return stamp
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def age(stamp: str, now: datetime) -> str:
    """``5 hours`` or ``12 days`` from a record's stamp until ``now``."""
    hours = max(0, int((now - datetime.fromisoformat(stamp)).total_seconds() // 3600))
    count, unit = (hours, "hour") if hours < 48 else (hours // 24, "day")
    return f"{count} {unit}{'' if count == 1 else 's'}"


def short_hash(identity: str | None) -> str:
    """Eight hex digits that tell two cards or hosts apart without naming them."""
    return MISSING if not identity else f"#{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def short_commit(commit: str | None, dirty: bool | None = None) -> str:
    if commit is None:
        return "no commit recorded"
    return commit[:10] + (" + local changes" if dirty else "")


def gpu_name(slug: str) -> str:
    """``nvidia-h200`` as ``NVIDIA H200``."""
    return " ".join(part.upper() if len(part) <= 6 else part.capitalize() for part in slug.split("-"))


def file_slug(name: str) -> str:
    """A file name for a case or GPU model; a name that had to be changed gets a hash, so that two never meet."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name).strip(".") or "_"
    return (
        safe
        if safe == name and len(name) <= MAX_NAME
        else f"{safe[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    )


def natural_key(name: str) -> list[tuple[int, float, str]]:
    """Sorts b8 before b32."""
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return [(1, float(part), "") if index % 2 else (0, 0.0, part) for index, part in enumerate(parts)]
