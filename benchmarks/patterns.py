"""How a command line chooses cases by name."""

from fnmatch import fnmatchcase


def globs(pattern: str) -> list[str]:
    """The globs of ``--case``, which are separated by commas."""
    return [part.strip() for part in pattern.split(",")]


def matches(name: str, pattern: str) -> bool:
    """Whether one of the globs fits."""
    return any(fnmatchcase(name, glob) for glob in globs(pattern))
