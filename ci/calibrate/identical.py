"""What real gates say of code that did not change: series whose binaries are the same on both sides."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.harness.stats.calibration import exact_upper_pct
from ci.exits import UsageError
from ci.gate.result import GateResult, decode

from .trust import IdenticalPairs, rounded


def identical_pairs(paths: Sequence[Path], gpu_model: str) -> IdenticalPairs:
    """From the results of gates (``verdict.json``) on one GPU model, of those in which most series are such ones.

    A gate with few of them has had few occasions for a false alarm, and would make the bound look better than it is.

    Raises:
        UsageError: a file is no result of a gate.
    """
    names, num_series, suspects = list[str](), 0, list[int]()
    for result in map(_read, paths):
        timed = [v for v in result.verdicts if v.gated and v.n_blocks and v.gpu_model == gpu_model]
        own = [v for v in timed if v.identical]
        if 2 * len(own) > len(timed):
            names.append(f"{result.base.commit[:12]}..{result.head.commit[:12]}")
            num_series += len(own)
            suspects.append(sum(verdict.suspected for verdict in own))
    having = sum(count > 0 for count in suspects)
    upper = exact_upper_pct(having, len(names))
    return IdenticalPairs(
        gates=names,
        num_series=num_series,
        num_suspects=sum(suspects),
        num_gates_with_suspects=having,
        upper_pct=None if upper is None else rounded(upper),
    )


def _read(path: Path) -> GateResult:
    try:
        return decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"--gate {path}: no result of a gate: {error}", "give the verdict.json of `ci gate`"
        ) from error
