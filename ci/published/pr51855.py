"""vLLM PR 51855, which brought RecoverSSM for Kimi-K3: times per step over 69 layers, and memory."""

from collections.abc import Iterator

from benchmarks.cases import KIMI_K3_HEADS, BenchCase, kimi_k3
from benchmarks.cases import KIMI_K3_LAYERS as LAYERS

from .recorded import Recorded
from .rows import Quantity, Row, all_layers, compared, exact, ms, not_measured, percent, same_side, times

PR = "vLLM PR 51855, TP8, 32 requests, T = 8"
FORWARD_US = 64_873.0
"""Forward of a steady decode step without RecoverSSM, in the same run (PR 51855). What was published of it is wall time
(65.208 ms with it); here it is what the kernels differ by, for this repository runs no model."""

FIRST_VERSION = {
    "verify": "3.115 to 3.540 ms (+13.66 %)",
    "commit": "4.793 to 1.464 ms (-69.45 %, 3.27 x)",
    "step": "7.989 to 5.085 ms (-36.34 %)",
}

VLLM, NATIVE, OURS, FULL = "vllm_recoverssm", "vllm_native", "recoverssm", "full_state"


def cases() -> list[BenchCase]:
    return [kimi_k3(8, 32, 8, 3.84, dtype) for dtype in ("fp32", "bf16")]


def rows(recorded: Recorded) -> Iterator[Row]:
    for case in cases():
        yield from _times(recorded, case)
    from benchmarks.exact import capacity_gain_pct

    fp32 = cases()[0]
    gain = capacity_gain_pct(fp32)
    assert gain is not None  # of Kimi-K3
    yield exact("tokens that 46.48 GiB hold, against full state", 10.97, "vLLM PR 51855", gain, percent)
    shape = fp32.shape
    state = LAYERS * KIMI_K3_HEADS * shape.value_dim * shape.key_dim * 4
    what = "extra states of full state, 4 requests of 7 drafts, no TP"
    yield exact(what, 12.155, "vLLM PR 51855, GB300", 4 * 7 * state / 1e9, lambda value: f"{value:.3f} GB")
    for what, published in FIRST_VERSION.items():
        yield not_measured(f"{what} of its first version and as merged", published, PR, "the first was never released")


def _times(recorded: Recorded, case: BenchCase) -> Iterator[Row]:
    def row(what: str, published: float, theirs: Quantity, ours: Quantity, holds: bool = True) -> Row:
        check = same_side(1.0 if theirs.write is times else 0.0) if holds else None
        return compared(recorded, f"{what}, {case.state_dtype}", published, PR, theirs, ours, check)

    def layers(provider: str) -> Quantity:
        return Quantity(((provider, "verify", case),), all_layers, ms)

    def whole(provider: str, *ops: str) -> Quantity:
        return Quantity(tuple((provider, op, case) for op in ops), lambda *us: sum(us), ms)

    def over(provider: str, op: str, base: str, base_op: str, scale: float = 1.0) -> Quantity:
        return Quantity(((provider, op, case), (base, base_op, case)), lambda top, low: scale * top / low, times)

    def extra(provider: str, base: str, *more: str) -> Quantity:
        asked = ((provider, "verify", case), (base, "verify", case), *((provider, op, case) for op in more))
        return Quantity(asked, _share_of_forward, percent)

    yield row("verify", 3540.0, layers(VLLM), layers(OURS), False)
    yield row("full-state verify", 2772.0, layers(NATIVE), layers(FULL), False)
    yield row(
        "verify over full state",
        3540 / 2772,
        over(VLLM, "verify", NATIVE, "verify"),
        over(OURS, "verify", FULL, "verify"),
    )
    yield row("commit and auxiliary", 1464.0 + 81.0, whole(VLLM, "commit"), whole(OURS, "commit"), False)
    yield row("auxiliary (plan and conv windows)", 81.0, whole(VLLM, "conv"), whole(OURS, "commit_plan", "conv"), False)
    commit_share = (1464 + 81) / 3540
    of_all = 1 / LAYERS
    yield row(
        "commit and auxiliary over verify",
        commit_share,
        over(VLLM, "commit", VLLM, "verify", of_all),
        over(OURS, "commit", OURS, "verify", of_all),
    )
    yield row("step", 5085.0, whole(VLLM, "step"), whole(OURS, "step"), False)
    yield row("step over full state", 5085 / 2772, over(VLLM, "step", NATIVE, "step"), over(OURS, "step", FULL, "step"))
    yield row("forward, longer by its verify, of 64.873 ms", 0.52, extra(VLLM, NATIVE), extra(OURS, FULL))
    yield row(
        "critical path (2.046 ms, about 3 %), of the same",
        100 * 2046 / FORWARD_US,
        extra(VLLM, NATIVE, "commit"),
        extra(OURS, FULL, "commit"),
    )


def _share_of_forward(verify: float, base: float, *more: float) -> float:
    """What verify of all layers and the rest add to full state, in percent of the published forward."""
    return 100 * (LAYERS * (verify - base) + sum(more)) / FORWARD_US
