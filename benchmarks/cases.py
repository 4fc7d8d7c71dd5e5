"""Named workloads and the sets that runs choose from; whom each stands for is a field of the case."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from recoverssm.types import KDAShape

from .harness import records
from .patterns import globs, matches

KIMI_K3_HEADS = 96
KIMI_K3_LAYERS = 69  # KDA layers; the other 24 of 93 are MLA
KIMI_K3_LOWER_BOUND = -5.0
STATE_DTYPES = ("fp32", "bf16")

# (spec_query_len, mean accepted tokens with the bonus token) -> the public source of that pair.
_WINDOWS = {
    (1, 1.00): "a step without drafts in an engine set up for speculation",
    (3, 1.00): "2 drafts, none accepted (vLLM PR 56082)",
    (3, 3.00): "2 drafts, all accepted (vLLM PR 56082)",
    (3, 2.73): "2 drafts, per position 0.93 and 0.80 on GSM8K (ROCm ATOM PR 1899)",
    (4, 1.00): "3 drafts, none accepted: the least a commit can have to do",
    (4, 3.00): "DSpark, 3 drafts (InferenceX PR 2795)",
    (4, 4.00): "3 drafts, all accepted: the most a commit of that window can have to do",
    (8, 1.00): "DSpark, 7 drafts, long context of 131k where acceptance collapses (tokenspeed issue 1132)",
    (8, 3.78): "DSpark, 7 drafts, greedy draft (InferenceX golden acceptance length, SPEED-Bench coding)",
    (8, 3.84): "DSpark, 7 drafts, probabilistic draft and block rejection (InferenceX PR 2376)",
    (8, 4.00): "7 drafts at the accepted count for which other projects' commits were measured (reports/peers.toml)",
    (8, 8.00): "7 drafts, all accepted: the most a commit can have to do",
    (9, 1.00): "8 drafts, none accepted: the least a commit can have to do",
    (9, 4.00): "DSpark, 8 drafts (InferenceX PR 2795, vLLM PR 56082)",
    (9, 9.00): "8 drafts, all accepted: the most a commit of that window can have to do",
    (16, 4.00): "15 drafts, the longest window there is",
}
_PLACEMENTS = {
    1: "Kimi-K3 with data and expert parallelism (TP1, as on GB300)",
    8: "Kimi-K3 at TP8 (vLLM PR 51855)",
    16: "Kimi-K3 at TP16",
}


@dataclass(frozen=True, slots=True)
class BenchCase:
    """One workload: the sizes of the model on one rank, the batch, and how many tokens requests accept.

    Attributes:
        mean_accepted: accepted tokens per request and step, the bonus token included; 1 to spec_query_len.
        state_dtype: "fp32" or "bf16", of checkpoints and state pools; activations are bf16.
    """

    name: str
    stands_for: str
    shape: KDAShape
    num_requests: int
    mean_accepted: float
    state_dtype: str
    num_layers: int = KIMI_K3_LAYERS
    lower_bound: float | None = field(default=KIMI_K3_LOWER_BOUND)

    def __post_init__(self) -> None:
        if not 1 <= self.mean_accepted <= self.shape.spec_query_len:
            raise ValueError(
                f"mean_accepted: expected 1 to {self.shape.spec_query_len} (spec_query_len), got {self.mean_accepted}"
            )
        if self.state_dtype not in STATE_DTYPES:
            raise ValueError(f"state_dtype: expected one of {STATE_DTYPES}, got {self.state_dtype!r}")

    def __str__(self) -> str:
        return self.name

    def to_record(self) -> records.Case:
        """The part of the case that readers of a record need."""
        return records.Case(
            name=self.name,
            stands_for=self.stands_for,
            num_requests=self.num_requests,
            spec_query_len=self.shape.spec_query_len,
            num_heads=self.shape.num_heads,
            num_layers=self.num_layers,
            mean_accepted=self.mean_accepted,
            state_dtype=self.state_dtype,
        )


def kimi_k3(
    tp: int,
    num_requests: int,
    spec_query_len: int,
    mean_accepted: float,
    state_dtype: str,
    *,
    bounded: bool = True,
) -> BenchCase:
    """The case of Kimi-K3 on one of ``tp`` tensor-parallel ranks, or what it would be with an unbounded gate."""
    name = f"kimi_k3_tp{tp}_b{num_requests}_t{spec_query_len}_a{mean_accepted:.2f}_{state_dtype}"
    batch = "1 request" if num_requests == 1 else f"{num_requests} requests"
    gate = "" if bounded else ", with the unbounded gate of Kimi-Linear"
    return BenchCase(
        name=name if bounded else f"{name}_unbounded",
        stands_for=f"{_PLACEMENTS[tp]}{gate}, {batch} per rank; {_WINDOWS[spec_query_len, mean_accepted]}",
        shape=KDAShape(num_heads=KIMI_K3_HEADS // tp, spec_query_len=spec_query_len),
        num_requests=num_requests,
        mean_accepted=mean_accepted,
        state_dtype=state_dtype,
        lower_bound=KIMI_K3_LOWER_BOUND if bounded else None,
    )


def _grid(
    tp: int, batches: Iterable[int], windows: Iterable[tuple[int, float]], *, bounded: bool = True
) -> list[BenchCase]:
    windows = tuple(windows)
    return [
        kimi_k3(tp, num_requests, spec_query_len, mean_accepted, state_dtype, bounded=bounded)
        for spec_query_len, mean_accepted in windows
        for num_requests in batches
        for state_dtype in STATE_DTYPES
    ]


_DSPARK = [(8, 3.84)]
_LEAGUE_BATCHES = (1, 8, 32, 128)
_LEAGUE_ENDS = [(4, 1.00), (4, 4.00), (8, 1.00), (8, 8.00), (9, 1.00), (9, 9.00)]

LEAGUE = "league"
"""The set in which other projects' kernels are measured beside ours."""

# Requests, and windows with accepted tokens, of the commits in vLLM PR 56082 (ci/published/pr56082.py).
_PUBLISHED_COMMITS: list[tuple[int, list[tuple[int, float]]]] = [
    (1, [(3, 1.00), (8, 8.00)]),
    (8, [(8, 1.00), (8, 4.00), (8, 8.00)]),
    (48, [(8, 1.00), (8, 4.00), (8, 8.00)]),
    (96, [(3, 1.00), (3, 3.00), (8, 1.00), (8, 4.00), (8, 8.00)]),
]

_PUBLISHED_FOLDS = [
    case
    for num_requests, windows in _PUBLISHED_COMMITS
    for case in _grid(8, [num_requests], windows)
    if case.state_dtype == "fp32"
]

SETS: dict[str, tuple[BenchCase, ...]] = {
    "smoke": tuple(_grid(8, (1, 32), _DSPARK) + _grid(8, (32,), [(3, 2.73)])),
    "pr": tuple(_grid(8, (1, 32, 128), _DSPARK)),
    "nightly": tuple(
        _grid(8, (1, 8, 16, 32, 48, 96, 128), _DSPARK)
        + _grid(8, (32,), [(3, 2.73), (4, 3.00), (9, 4.00)])
        + _grid(8, (32,), [(8, 1.00), (8, 3.78), (8, 8.00)])
        + _grid(16, (1, 32, 128), _DSPARK)
        + _grid(1, (1, 4, 16), _DSPARK)
        + _grid(8, (32,), [(1, 1.00)])
    ),
    # What docs/roofline.md holds against its bars.
    "roofline": tuple(
        _grid(8, (1, 8, 32, 48, 128), [(8, 4.00)])
        + _grid(8, (32,), [(4, 4.00), (9, 4.00), (16, 4.00), (8, 1.00), (8, 8.00)])
        + _grid(8, (1,), [(3, 2.73), (4, 4.00), (9, 4.00)])
        + _grid(16, (64,), [(8, 4.00)])
        + _grid(1, (4,), [(8, 4.00)])
        + _grid(8, (1, 32, 128), [(8, 4.00)], bounded=False)
    ),
    LEAGUE: tuple(_grid(8, _LEAGUE_BATCHES, [(4, 3.00), *_DSPARK, (9, 4.00), *_LEAGUE_ENDS])),
    "published": tuple(_grid(8, _LEAGUE_BATCHES, _DSPARK) + _PUBLISHED_FOLDS),
}

BESIDE = frozenset({LEAGUE, "published"})
"""Sets that are there for other projects' kernels: of ours only device times are taken."""

FOLDS_ALONE = frozenset(case.name for case in [*_grid(8, _LEAGUE_BATCHES, _LEAGUE_ENDS), *_PUBLISHED_FOLDS])
"""Cases of these sets in which only what depends on how many tokens are accepted is measured: commits and steps."""


class UnknownNameError(LookupError):
    """No set or case of that name exists."""


class NothingSelectedError(LookupError):
    """The set exists and the pattern is well formed, but no case matches."""


def select(case_set: str, pattern: str = "*") -> list[BenchCase]:
    """Cases of a set whose names match a glob, or one of several with commas, in the set's order.

    Raises:
        UnknownNameError: no such set, or a glob without wildcards that names no case of the set.
        NothingSelectedError: a glob with wildcards that matches nothing. Both name what is known.
    """
    if case_set not in SETS:
        raise UnknownNameError(f"--set: expected one of {', '.join(SETS)}, got {case_set!r}")
    for glob in globs(pattern):
        _require_match(case_set, glob)
    return [case for case in SETS[case_set] if matches(case.name, pattern)]


def _require_match(case_set: str, pattern: str) -> None:
    if any(matches(case.name, pattern) for case in SETS[case_set]):
        return
    known = ", ".join(case.name for case in SETS[case_set])
    if any(wildcard in pattern for wildcard in "*?["):
        raise NothingSelectedError(f"--case: nothing in set {case_set!r} matches {pattern!r}; known: {known}")
    elsewhere = [name for name, cases in SETS.items() if pattern in (case.name for case in cases)]
    hint = f"; it is in set {', '.join(elsewhere)}" if elsewhere else ""
    raise UnknownNameError(f"--case: set {case_set!r} has no case {pattern!r}{hint}; known: {known}")


def select_by_set(pattern: str = "*") -> dict[str, list[BenchCase]]:
    """Every set with its cases whose names match a glob; a set without one is left out.

    Raises:
        NothingSelectedError: no set has a matching case; the known ones are in the message.
    """
    matching = {name: [case for case in cases if matches(case.name, pattern)] for name, cases in SETS.items()}
    found = {name: cases for name, cases in matching.items() if cases}
    if not found:
        known = ", ".join(dict.fromkeys(case.name for cases in SETS.values() for case in cases))
        raise NothingSelectedError(f"--case: nothing in any set matches {pattern!r}; known: {known}")
    return found
