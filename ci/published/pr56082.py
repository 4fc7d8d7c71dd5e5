"""vLLM PR 56082 (draft): a faster commit on a B200, by requests, window and accepted tokens, in µs.

How many layers a launch had, and the state dtype, are not stated, and every request crossed a block boundary. So only
ratios are held against ours, at fp32 states and without boundaries.
"""

from collections.abc import Iterator

from benchmarks.cases import BenchCase, kimi_k3

from .recorded import Recorded
from .rows import EMPTY, Quantity, Row, compared, micros, not_measured, same_side, times

PR = "vLLM PR 56082, B200"
COMMITS_US = {  # (requests, T, accepted): before, after
    (1, 3, 1): (8.16, 7.73),
    (1, 8, 8): (11.70, 11.09),
    (8, 8, 1): (26.37, 18.29),
    (8, 8, 4): (37.18, 22.41),
    (8, 8, 8): (58.17, 33.28),
    (48, 8, 1): (150.86, 104.19),
    (48, 8, 4): (234.30, 128.17),
    (48, 8, 8): (351.53, 176.57),
    (96, 3, 1): (292.31, 200.17),
    (96, 3, 3): (409.24, 224.56),
    (96, 8, 1): (294.10, 200.53),
    (96, 8, 4): (467.65, 244.39),
    (96, 8, 8): (700.85, 340.40),
}
CHAINS = "B1 T8 A8 82.85 to 82.20, B4 T8 A8 105.42 to 95.84, B8 T3 A3 83.84 to 72.07, B8 T2 A2 70.23 to 60.13 us"
SNAPSHOTS = "B1 T8 about 60, B4 T8 about 119, B96 T3 about 325, B96 T8 731 to 736 us, whatever is accepted"


def cases() -> list[BenchCase]:
    return [_case(*key) for key in COMMITS_US]


def rows(recorded: Recorded) -> Iterator[Row]:
    for (requests, window, accepted), (before, after) in COMMITS_US.items():
        yield _faster(recorded, _case(requests, window, accepted), before, after)
    for requests in (8, 48, 96):
        one, all_ = (COMMITS_US[requests, 8, accepted] for accepted in (1, 8))
        released, ours = (_growth(provider, requests) for provider in ("vllm_recoverssm", "recoverssm"))
        what = f"commit, 8 accepted over 1, B = {requests}, T = 8"
        before, after = (all_[side] / one[side] for side in (0, 1))
        yield compared(recorded, f"released {what}", before, PR, released, ours, same_side(1.0))
        yield compared(recorded, f"faster {what}", after, PR, None, ours)
    yield not_measured("conv, verify, norm and commit in one", CHAINS, PR, "conv and norm are not this library's")
    yield not_measured("the same of a native snapshot", SNAPSHOTS, PR, "conv and norm are not this library's")
    serving = "+2.36 % tokens/s at concurrency 16, +0.90 % at 96"
    yield not_measured("serving, TP8 and PP2", serving, PR, "it takes the model and 16 GPUs")


def _faster(recorded: Recorded, case: BenchCase, before: float, after: float) -> Row:
    """Their draft against the released commit there, ours against it here."""
    what = f"commit, B = {case.num_requests}, T = {case.shape.spec_query_len}, {case.mean_accepted:g} accepted"
    published = f"{before:.2f} to {after:.2f} us ({times(after / before)})"
    found = recorded.of(("vllm_recoverssm", "commit", case), ("recoverssm", "commit", case))
    if found is None:
        return Row(what, published, PR, EMPTY, EMPTY, "not measured")
    released, ours = found.us
    said = f"{micros(ours)} ({times(ours / released)})"
    return Row(
        what, published, PR, micros(released), said, "holds" if ours < released else "does not hold", found.night
    )


def _growth(provider: str, requests: int) -> Quantity:
    asked = tuple((provider, "commit", _case(requests, 8, accepted)) for accepted in (8, 1))
    return Quantity(asked, _over, times)


def _over(top: float, bottom: float) -> float:
    return top / bottom


def _case(requests: int, window: int, accepted: int) -> BenchCase:
    return kimi_k3(8, requests, window, float(accepted), "fp32")
