"""Which cases a tree's own program has. That runs the tree's code: a stranger's head is asked by ``gate run`` alone."""

import os
import subprocess
import sys
from pathlib import Path

from ci.exits import Exit, MissingDataError, UsageError
from ci.gpus import CPU, Gpu
from ci.trees import clean_env

LIST_CAP_S = 180


def list_cases(tree: Path, case_set: str, pattern: str) -> list[str]:
    """Names of the chosen cases, as the program of a tree has them.

    Raises:
        UsageError: no such set or case. MissingDataError: nothing selected, or the program cannot say.
    """
    command = [sys.executable, "-m", "benchmarks.run", "--set", case_set, "--case", pattern, "--list"]
    env = Gpu(CPU, "").child_env(clean_env(os.environ))
    try:
        done = subprocess.run(
            command, cwd=tree, env=env, capture_output=True, text=True, timeout=LIST_CAP_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MissingDataError(f"{tree.name} without data: its cases were not listed within {LIST_CAP_S} s") from error
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    if done.returncode == Exit.USAGE:
        raise UsageError(last)
    if done.returncode == Exit.MISSING:
        raise MissingDataError(f"nothing selected: {last}")
    if done.returncode:
        raise MissingDataError(f"{tree.name} without data: its program cannot list cases: {last}")
    return [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
