"""What one budget holds over context lengths, windows and tensor parallel sizes: the table that the pages show.

Pages import no library, so the figures stand in reports/capacity.json; ``python -m benchmarks.capacity_grid`` writes
it, and a test holds it against the library.
"""

import json
from pathlib import Path
from typing import Any

from recoverssm import layout, models

from .exact import CAPACITY_BUDGET_BYTES, CAPACITY_MODEL_LEN
from .inputs import ACTIVATION_DTYPE, STATE_DTYPES

CAPACITY_FILE = Path(__file__).parent.parent / "reports" / "capacity.json"
MODEL = "kimi-k3"
CONTEXT_LENS = tuple(1 << power for power in range(13, 21))  # 8 Ki to 1 Mi tokens
WINDOWS = (2, 3, 4, 8, 9, 16)  # T
TENSOR_PARALLEL = (1, 2, 4, 8, 16)
WINDOW, TP = 8, 8  # of the published setting: what the other axis is held at


def capacity_grid() -> dict[str, Any]:
    """Gains by context length and T, and by context length and TP; bytes of one request's states by T and TP."""
    points = sorted({(window, TP) for window in WINDOWS} | {(WINDOW, tp) for tp in TENSOR_PARALLEL})
    return {
        "model": MODEL,
        "source": models.MODELS[MODEL].source,
        "budget_bytes": CAPACITY_BUDGET_BYTES,
        "published": {"context_len": CAPACITY_MODEL_LEN, "spec_query_len": WINDOW, "tensor_parallel": TP},
        "context_lens": list(CONTEXT_LENS),
        "points": [_point(window, tp, dtype) for dtype in STATE_DTYPES for window, tp in points],
    }


def _point(window: int, tp: int, dtype: str) -> dict[str, Any]:
    model = models.MODELS[MODEL]
    shape = model.layer_shape(tensor_parallel=tp, draft_tokens=window - 1)
    state_dtype = STATE_DTYPES[dtype]

    def held(scheme: layout.Scheme) -> int:
        return layout.state_bytes(
            shape, 1, model.num_kda_layers, state_dtype, scheme=scheme, activation_dtype=ACTIVATION_DTYPE
        ).total

    plans = [
        layout.plan_capacity(
            model,
            tensor_parallel=tp,
            draft_tokens=window - 1,
            max_model_len=length,
            budget_bytes=CAPACITY_BUDGET_BYTES,
            placement="page",
            state_dtype=state_dtype,
            activation_dtype=ACTIVATION_DTYPE,
        )
        for length in CONTEXT_LENS
    ]
    return {
        "state_dtype": dtype,
        "spec_query_len": window,
        "tensor_parallel": tp,
        "full_state_bytes": held("full_state"),
        "recoverssm_bytes": held("recoverssm"),
        "capacity_gain_pct": [round(plan.capacity_gain_pct, 6) for plan in plans],
    }


if __name__ == "__main__":
    CAPACITY_FILE.write_text(json.dumps(capacity_grid(), indent=1) + "\n", encoding="utf-8")
