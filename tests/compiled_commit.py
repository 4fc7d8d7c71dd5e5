"""Program: compiles the form "async" of commit_state without a GPU, prints what loads and stores its PTX has.

Run by tests/test_commit_state_async.py in a process of its own, as the driver and TRITON_INTERPRET hold for a process.
"""

import json
import re
import sys

import torch

from recoverssm.kernels.commit_state_async import _commit_state_async_kernel
from tests.absent_card import compile_for


def compiled(arch, state_dtype, num_boundaries, constants):
    compile_for(arch, ptx_alone=True)
    table, plan, gate = (torch.zeros(4, dtype=dtype) for dtype in (torch.int64, torch.int32, torch.float32))
    state, key_gate = torch.zeros(4, dtype=state_dtype), torch.zeros(4, dtype=torch.bfloat16)
    shape = {"H": 12, "T": 8, "K": 128, "V": 128, "BOUNDED": True, "HAS_RECORD_ROWS": False, "ALIGNED": True}
    shape |= {"J": num_boundaries, "enable_fp_fusion": True}
    boundaries = (plan, plan) if num_boundaries else (None, None)
    tensors = (*[table] * 6, state, key_gate, gate, gate, plan, plan, plan, plan, *boundaries)
    return _commit_state_async_kernel.run(*tensors, -5.0, grid=(1,), warmup=True, **shape, **constants)


found = []
for arch, dtype, *rest in json.loads(sys.argv[1]):
    ptx = compiled(arch, getattr(torch, dtype), *rest).asm["ptx"]
    found.append([len(re.findall(rf"\b{op}\.global\S*\.v4\.b32", ptx)) for op in ("ld", "st")])
json.dump(found, sys.stdout)
