"""What the headline figures are to reach, at one case on one GPU model; docs/roofline.md says where each comes from."""

from typing import NamedTuple

CASE, GPU_MODEL = "kimi_k3_tp8_b32_t8_a3.84_fp32", "nvidia-h200"


class Target(NamedTuple):
    at_most: float
    unit: str  # as tiles have it: "pct" | "us"
    of: str  # what it is made of


TARGETS = {  # by key of the tile
    "commit": Target(915.0, "us", "870 of the state, 45 of plan and conv windows"),
    "step_overhead": Target(-58.0, "pct", "69 verifies and the commit in one graph"),
}


def target_of(tile: str, case: str, gpu_model: str) -> Target | None:
    return TARGETS.get(tile) if (case, gpu_model) == (CASE, GPU_MODEL) else None
