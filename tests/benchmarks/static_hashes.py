"""Program: compiles what a few-layer case launches on an architecture, without a card, and prints hashes of binaries.

Run by test_static_on_gpu.py in a process of its own, which has not touched CUDA.
"""

import json
import os
import sys
from pathlib import Path

from benchmarks.cases import kimi_k3
from benchmarks.compile_first import small
from benchmarks.static.compiling import compile_all, find_tools
from benchmarks.static.planning import plan

CASES = [small(kimi_k3(8, 1, 8, 3.84, "bf16")), small(kimi_k3(8, 1, 8, 3.84, "fp32"))]

if __name__ == "__main__":
    jobs = plan(CASES, [sys.argv[1]]).jobs
    outcomes = compile_all(jobs, Path(sys.argv[2]), find_tools(), len(os.sched_getaffinity(0)), lambda *_: None)
    found = {
        job.name: outcome.examined.figures["binary_hash"] if outcome.examined else outcome.failure
        for job, outcome in zip(jobs, outcomes, strict=True)
    }
    json.dump(found, sys.stdout)
