"""Program: compiles kernels that sm_90 launches for sm_103 as well, which lacks an instruction that one of them needs.

Run by test_static_compiling.py in a process of its own, where kernels are compiled and not interpreted.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.cases import kimi_k3
from benchmarks.static.compiling import compile_all, find_tools
from benchmarks.static.planning import plan

KERNELS = ("commit_plan", "verify_wgmma")
jobs = [job for job in plan([kimi_k3(8, 16, 8, 3.84, "bf16")], ["sm_90"]).jobs if job.kernel in KERNELS]
jobs += [replace(job, arch="sm_103") for job in jobs]
no_nvdisasm = replace(find_tools(), nvdisasm=None)
found = [
    [job.arch, job.kernel, outcome.failure, outcome.examined and outcome.examined.figures]
    for some, tools in ((jobs, find_tools()), (jobs[:1], no_nvdisasm))
    for job, outcome in zip(some, compile_all(some, Path(sys.argv[1]), tools, 2, lambda *_: None), strict=True)
]
json.dump(found, sys.stdout)
