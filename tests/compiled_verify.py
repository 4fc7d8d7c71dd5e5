"""Program: compiles a form of verify without a GPU, prints how many products its PTX has, fused with sums and not.

Run by tests in a process of its own, as the driver and TRITON_INTERPRET hold for a whole process.
"""

import json
import re
import sys

import torch

from recoverssm.ops.verify import FORMS
from tests.absent_card import compile_for


def compiled(arch, form, state_dtype, spec_query_len, constants):
    compile_for(arch, ptx_alone=True)
    tokens, state = torch.zeros(4, dtype=torch.bfloat16), torch.zeros(4, dtype=state_dtype)
    vector, rows = torch.zeros(4), torch.zeros(4, dtype=torch.int32)
    tensors = (*[tokens] * 5, vector, vector, state, vector, tokens, tokens, rows, rows, rows)
    shape = {
        "H": 12,
        "T": spec_query_len,
        "C": spec_query_len,
        "K": 128,
        "V": 128,
        "BOUNDED": True,
        "HAS_RECORD_ROWS": False,
        "RECORDED": False,
    }
    shape["enable_fp_fusion"] = True
    scalars = (None, -5.0, 0.5, *[1544] * 6, *[1536] * 3)  # tokens begin at multiples of 16 bytes, and of no more
    return FORMS[form].kernel.run(*tensors, *scalars, grid=(1,), warmup=True, **shape, **constants)


found = []
for arch, form, dtype, spec_query_len, constants in json.loads(sys.argv[1]):
    ptx = compiled(arch, form, getattr(torch, dtype), spec_query_len, constants).asm["ptx"]
    found.append([len(re.findall(rf"\b{op}\.f32", ptx)) for op in (r"fma\.rn", "mul")])
json.dump(found, sys.stdout)
