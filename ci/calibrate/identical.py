"""What real gates say of code that did not change: series whose binaries are the same on both sides."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.harness.stats.calibration import exact_upper_pct
from ci.exits import Exit, UsageError
from ci.gate.result import GateResult, decode

from .trust import IdenticalPairs, rounded


def identical_pairs(paths: Sequence[Path], gpu_model: str) -> IdenticalPairs:
    """From the results of gates (``verdict.json``) on one GPU model, of those in which most series are such ones.

    A gate with few of them has had few occasions for a false alarm, and would make the bound look better than it is.

    Raises:
        UsageError: a file is no result of a gate, or of one that could not tell; a gate is named twice.
    """
    names, num_series, suspects = list[str](), 0, list[int]()
    measured = dict[frozenset[object], Path]()  # where the times of a gate were read first
    for path in paths:
        result = _read(path)
        timed = [v for v in result.verdicts if v.gated and v.n_blocks and v.gpu_model == gpu_model]
        own = [v for v in timed if v.identical]
        if 2 * len(own) > len(timed):
            times = frozenset((v.key, v.base_value, v.head_value) for v in result.verdicts if v.n_blocks)
            if times in measured:
                message = f"--gate {path}: the gate of {measured[times]} again: its times are the same"
                raise UsageError(message, "give each gate once")
            measured[times] = path
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
        result = decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"--gate {path}: no result of a gate: {error}", "give the verdict.json of `ci gate`"
        ) from error
    if result.exit_code not in (Exit.PASS, Exit.REGRESSED):
        raise UsageError(
            f"--gate {path}: expected a gate that ended with 0 or 1, got exit code {result.exit_code}",
            "python -m ci gate judge DIR says why; what an owner has cleared counts",
        )
    return result
