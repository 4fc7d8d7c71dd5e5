"""Stands in for benchmarks.static.run: writes a report with one kernel, one failure and one problem."""

import json
import os
import sys
from pathlib import Path

FIGURES = {
    "num_warps": 4,
    "dynamic_shared_bytes": 512,
    "registers": 168,
    "stack_bytes": 16,
    "static_shared_bytes": 0,
    "ctas_per_sm": 3,
    "warps_per_sm": 12,
    "occupancy_pct": 18.75,
    "limited_by": ["registers"],
    "code_bytes": 4096,
    "binary_hash": "0123456789abcdef",
    "instructions": None,
    "decoded_as": None,
}
ENTRY = {"constants": {}, "specialisation": "", "launched_by": ["recoverssm/verify"], "cases": ["one", "two"]}

if __name__ == "__main__":
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    if options["--set"] == "unknown":
        sys.exit("--set: expected one of smoke")
    report = {
        "compiler": {"triton": "3.6.0", "ptxas": {"sm_90": "12.8"}},
        "problems": ["nvdisasm is missing from Triton"],
        "kernels": [
            ENTRY | {"arch": "sm_90", "kernel": "verify", "id": "a1", "failure": None, "figures": FIGURES},
            ENTRY | {"arch": "sm_90", "kernel": "conv", "id": "b2", "failure": "SIGABRT: LLVM ERROR", "figures": None},
        ],
        "seen": {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET")} | options,
    }
    Path(options["--out"]).parent.mkdir(parents=True, exist_ok=True)
    Path(options["--out"]).write_text(json.dumps(report))
    sys.exit(5)
