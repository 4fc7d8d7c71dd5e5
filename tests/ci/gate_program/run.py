"""Stands in for ``benchmarks.run --list`` in the small repositories of tests/ci/gates.py; CASES is filled in there."""

import sys
from fnmatch import fnmatchcase

CASES = ("one", "two")


def main(arguments: list[str]) -> int:
    named = dict(zip(arguments[::2], arguments[1::2], strict=False))
    if named["--set"] != "pr":
        sys.stderr.write(f"--set: expected pr, got {named['--set']!r}\n")
        return 2
    chosen = [case for case in CASES if any(fnmatchcase(case, glob) for glob in named["--case"].split(","))]
    sys.stdout.write("".join(f"{case}  stands for nobody\n" for case in chosen))
    if not chosen:
        sys.stderr.write(f"--case: nothing in set 'pr' matches {named['--case']!r}\n")
    return 0 if chosen else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
