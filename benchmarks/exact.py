"""Exact figures of a case: bytes of its caches under both schemes, and the capacity that a budget gains."""

from recoverssm import layout, models

from . import inputs
from .cases import KIMI_K3_HEADS, BenchCase
from .providers import PROVIDERS
from .results import Results

CAPACITY_MODEL_LEN = 262_144
"""Tokens of the longest request: the setting of the published +10.97 %."""

CAPACITY_BUDGET_BYTES = round(46.48 * layout.GIB)
"""Cache memory of one rank in the same setting."""


def add_exact_figures(case: BenchCase, results: Results) -> None:
    """Cache bytes of both providers, what RecoverSSM saves, and the capacity gain of the case's model and window."""
    cache_bytes = {provider.name: provider.cache_bytes(case) for provider in PROVIDERS}
    for name, value in cache_bytes.items():
        results.add_exact("cache_bytes", "state", name, case.name, value)
    saved = cache_bytes["full_state"] - cache_bytes["recoverssm"]
    results.add_exact("memory_saved_bytes", "state", "recoverssm", case.name, saved)
    results.add_exact("memory_saved_pct", "state", "recoverssm", case.name, 100 * saved / cache_bytes["full_state"])
    gain = capacity_gain_pct(case)
    if gain is not None:
        results.add_exact("capacity_gain_pct", "capacity", "recoverssm", case.name, gain)


def capacity_gain_pct(case: BenchCase) -> float | None:
    """Tokens that the published budget holds, against full state, with records in pages; None for other models."""
    model = models.MODELS["kimi-k3"]
    if KIMI_K3_HEADS % case.shape.num_heads or (case.shape.key_dim, case.shape.value_dim) != (
        model.key_dim,
        model.value_dim,
    ):
        return None
    plan = layout.plan_capacity(
        model,
        tensor_parallel=KIMI_K3_HEADS // case.shape.num_heads,
        draft_tokens=case.shape.spec_query_len - 1,
        max_model_len=CAPACITY_MODEL_LEN,
        budget_bytes=CAPACITY_BUDGET_BYTES,
        placement="page",
        state_dtype=inputs.STATE_DTYPES[case.state_dtype],
        activation_dtype=inputs.ACTIVATION_DTYPE,
    )
    return plan.capacity_gain_pct
