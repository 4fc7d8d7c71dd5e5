"""What ``ci tune`` tries: for each op and form the constants, and the grids that it tunes for.

Forms stand with the simplest first: of two that are equally quick, the first is taken. What the launch table holds for
the op is tried as well, on any card that its form fits.
"""

from collections.abc import Mapping
from itertools import product

OPS = ("verify", "full_state_verify", "commit_state")

BATCHES = (1, 8, 32, 128)
"""A row is tuned at the smallest batch that it applies to; the first applies to any."""

WINDOWS = (4, 8, 10, 12, 16)
"""A row is tuned at the longest window of its range: 1 to 4 tokens, 5 to 8, 9 and 10, 11 and 12, 13 and more."""

NUM_HEADS = 12  # Kimi-K3 on one of 8 ranks; rows apply by rows x heads

MEAN_ACCEPTED = {1: 1.0, 3: 2.73, 4: 3.0, 8: 3.84}
"""By window, as in ``cases.py``; others accept 4 tokens, or all of fewer. It matters to commits alone."""

Constant = int | bool | str


CHAINED: Mapping[str, Constant] = {"DEPENDENTS": 0}
"""What only chains of launches (PDL) feel, which nothing here times: a row that is written keeps what the table had."""


def _grid(**axes: tuple[Constant, ...]) -> tuple[Mapping[str, Constant], ...]:
    """Every combination of some values of each constant."""
    return tuple(dict(zip(axes, values, strict=True)) for values in product(*axes.values()))


def _staged(**axes: tuple[Constant, ...]) -> tuple[Mapping[str, Constant], ...]:
    return _grid(**{"UNROLLED": (False,), "MASKED": (False,), "EVICT": (False,)} | axes)


def _wgmma(**axes: tuple[Constant, ...]) -> tuple[Mapping[str, Constant], ...]:
    usual = {"CAUSAL_BLOCKS": (False,), "EVICT": (True,), "STAGED": (False,), "LATE": (False,), "GATE_FIRST": (False,)}
    return _grid(**usual | {name: (value,) for name, value in CHAINED.items()} | {"num_warps": (4,)} | axes)


def _mma(**axes: tuple[Constant, ...]) -> tuple[Mapping[str, Constant], ...]:
    return _grid(**{"CAUSAL_BLOCKS": (False,), "EVICT": (False, True), "num_warps": (4,)} | axes)


SPACES: Mapping[str, Mapping[str, tuple[Mapping[str, Constant], ...]]] = {
    "verify": {
        "recurrence": (
            *_grid(BV=(4, 8, 16, 32), BK=(32,), NUM_STAGES=(3,), num_warps=(1,)),
            *_grid(BV=(16, 32), BK=(32, 64), NUM_STAGES=(1, 2), num_warps=(1,)),
            *_grid(BV=(32, 64), BK=(32,), NUM_STAGES=(3,), num_warps=(2,)),
        ),
        "wgmma": (
            *_wgmma(BV=(64,), KC=(1, 2, 4), AHEAD=(1,), LATE=(False, True), PREFETCH=(0,), GATE_FIRST=(False, True)),
            *_wgmma(BV=(64,), KC=(1, 2), AHEAD=(1,), LATE=(False, True), PREFETCH=(0,), maxnreg=(128, 168)),
            *_wgmma(BV=(128,), KC=(1, 2, 4), AHEAD=(1,), PREFETCH=(0, 1), GATE_FIRST=(False, True)),
            *_wgmma(BV=(128,), KC=(1, 2), AHEAD=(1,), PREFETCH=(0, 1, 2), maxnreg=(128, 168)),
            *_wgmma(BV=(128,), KC=(1, 2), AHEAD=(1,), EVICT=(False,), PREFETCH=(0,), maxnreg=(128, 168)),
            *_wgmma(BV=(128,), KC=(1, 2, 4), AHEAD=(1,), LATE=(True,), PREFETCH=(0, 2), maxnreg=(128, 168)),
            *_wgmma(BV=(128,), KC=(2, 4), AHEAD=(2,), LATE=(False, True), PREFETCH=(0,)),
            *_wgmma(BV=(128,), KC=(2, 4), AHEAD=(1,), PREFETCH=(0,), STAGED=(True,), maxnreg=(168,)),
        ),
        "mma": (
            *_mma(BV=(16, 32, 64), SLICE=(16, 32), AHEAD=(1,)),
            *_mma(BV=(64, 128), SLICE=(16, 32), AHEAD=(2,), maxnreg=(128, 168)),
            *_mma(BV=(128,), SLICE=(16,), AHEAD=(4,), maxnreg=(128, 168)),
        ),
    },
    "full_state_verify": {
        "recurrence": (
            *_grid(BV=(4, 8, 16, 32), BK=(32,), NUM_STAGES=(3,), num_warps=(1,)),
            *_grid(BV=(16, 32), BK=(32, 64), NUM_STAGES=(1, 2), num_warps=(1,)),
            *_grid(BV=(32, 64), BK=(32,), NUM_STAGES=(3,), num_warps=(2, 4)),
        ),
        "staged": (
            *_staged(BV=(16,), LANES=(16,), ROWS=(4,), EVICT=(False, True), num_warps=(1, 2)),
            *_staged(BV=(32, 64), LANES=(16,), ROWS=(4,), EVICT=(False, True), num_warps=(4,)),
            *_staged(BV=(16,), LANES=(8,), ROWS=(1,), UNROLLED=(True,), MASKED=(False, True), num_warps=(4,)),
            *_staged(BV=(32,), LANES=(8,), ROWS=(2,), UNROLLED=(True,), MASKED=(False, True), num_warps=(4,)),
        ),
    },
    "commit_state": {
        "recurrence": (
            *_grid(BV=(8, 16, 32), BK=(32,), NUM_STAGES=(2, 3), num_warps=(1,)),
            *_grid(BV=(16, 32), BK=(32, 64), NUM_STAGES=(1,), num_warps=(1,)),
            *_grid(BV=(32, 64), BK=(32,), NUM_STAGES=(3,), num_warps=(2, 4)),
        ),
        "async": (
            *_grid(BV=(64, 128), CHUNK=(32, 64), KEEP=(False, True), num_warps=(4, 8)),
            *_grid(BV=(128,), CHUNK=(128,), KEEP=(False, True), num_warps=(4, 8)),
            *_grid(BV=(128,), CHUNK=(32, 64), KEEP=(False, True), num_warps=(4,), maxnreg=(128,)),
            *_grid(BV=(128,), CHUNK=(128,), KEEP=(False, True), num_warps=(4,), maxnreg=(168,)),
        ),
    },
}
