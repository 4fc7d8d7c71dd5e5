"""vLLM PR 52993 (open): what a forward recurrence in the commit and a tuned verify save of a step."""

from collections.abc import Iterator

from benchmarks.cases import BenchCase, kimi_k3

from .recorded import Asked, Recorded
from .rows import EMPTY, Row, ms, not_measured, times

PR = "vLLM PR 52993, T = 8"
SAVED_US = {1: 500.0, 8: 500.0, 32: 500.0, 128: 3000.0}
"""By requests: "about 0.5 ms" and "about 3 ms" of a step."""


def cases() -> list[BenchCase]:
    return [kimi_k3(8, num_requests, 8, 3.84, "fp32") for num_requests in SAVED_US]


def rows(recorded: Recorded) -> Iterator[Row]:
    """Its kernels are in no release: what is saved here of the released step is saved by ours."""
    for case in cases():
        yield _saved(recorded, case)
    yield _growth(recorded)
    yield not_measured("the step with its own kernels", "see above", PR, "they are in no release")


def _steps(case: BenchCase) -> tuple[Asked, Asked]:
    return ("vllm_recoverssm", "step", case), ("recoverssm", "step", case)


def _saved(recorded: Recorded, case: BenchCase) -> Row:
    what, published = f"step, B = {case.num_requests}", f"{ms(SAVED_US[case.num_requests])} saved"
    found = recorded.of(*_steps(case))
    if found is None:
        return Row(what, published, PR, EMPTY, EMPTY, "not measured")
    released, ours = found.us
    said = f"{ms(ours)} ({ms(released - ours)} saved)"
    return Row(what, published, PR, ms(released), said, "holds" if released > ours else "does not hold", found.night)


def _growth(recorded: Recorded) -> Row:
    what, published = "saved at B = 128 over B = 32", SAVED_US[128] / SAVED_US[32]
    found = recorded.of(*(step for case in cases()[2:] for step in _steps(case)))
    if found is None:
        return Row(what, times(published), PR, EMPTY, EMPTY, "not measured")
    released_32, ours_32, released_128, ours_128 = found.us
    saved_32, saved_128 = released_32 - ours_32, released_128 - ours_128
    growth = times(saved_128 / saved_32) if min(saved_32, saved_128) > 0 else f"{ms(saved_32)}, then {ms(saved_128)}"
    verdict = "holds" if saved_128 > saved_32 > 0 else "does not hold"
    return Row(what, times(published), PR, EMPTY, growth, verdict, found.night)
