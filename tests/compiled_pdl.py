"""Program: compiles verify's form for sm_90 with and without PDL, prints what its PTX reads and writes when.

Run by tests/test_pdl.py in a process of its own, as the driver and TRITON_INTERPRET hold for a process.
"""

import json
import re
import sys
from collections import Counter

import torch

from recoverssm import GateParams, Records, checks, launch, verify
from recoverssm.triton_compat import KernelLaunch
from tests.absent_card import compile_for

ARITHMETIC = re.compile(
    r"\b(?:fma|mul|add|sub|ex2|rsqrt|div|cvt|wgmma|mma|min|max|lg2)(?:\.[\w:]+)*\.(?:f32|bf16|tf32)\w*"
)
WAIT = "griddepcontrol.wait"
WORD = re.compile(r"\bgriddepcontrol\.(\w+)|\bld\.global(\S*)|\b(st|red|atom|cp)\.\S*global")
CASES = ((torch.float32, -5.0, 32), (torch.bfloat16, None, 1), (torch.float32, -5.0, 8))  # state, bound, rows
compiled = []


def compile_only(self, tensors, addresses):
    kernel = self.kernel.run(*tensors, *self.scalars, grid=(1,), warmup=True, **self.constants)
    # Of a state, 64 value rows are read before anything else.
    found = facts(kernel.asm["ptx"], 64 * 128 * tensors[7].element_size())
    compiled.append(found | {"dependents": self.constants["DEPENDENTS"]})


def facts(ptx, state_bytes):
    """Accesses of a compiled kernel between its waits; of the state, and of nothing else, whole lines are asked for."""
    found = {"arithmetic": sorted(Counter(ARITHMETIC.findall(ptx)).items()), "waits": ptx.count(WAIT)}
    if WAIT in ptx:
        # Rows without work branch off after the first loads and stand first: a wait, zeros, a jump to the end.
        head, middle, rest = ptx.split(WAIT)
        idle, work = middle.split("bra.uni", 1)
        found |= {"head": accesses(head), "idle": accesses(idle), "work": accesses(work), "rest": accesses(rest)}
        found["state_loads"] = state_bytes // 16 // 128  # 16 bytes a thread
    return found


def accesses(ptx):
    return [word[1] or word[3] or ("state" if "L2::128B" in word[2] else "load") for word in WORD.finditer(ptx)]


def call(dtype, bound, num_rows, enable_pdl):
    x = torch.zeros(num_rows * 8, 12, 128, dtype=torch.bfloat16)
    gate = GateParams(torch.zeros(12), torch.zeros(12, 128), bound)
    records = Records(torch.zeros(num_rows, 12, 8, 128), torch.zeros(num_rows, 12, 8, 256, dtype=torch.bfloat16))
    starts, slots = (torch.zeros(num_rows + more, dtype=torch.int32) for more in (1, 0))
    states = torch.zeros(2, 12, 128, 128, dtype=dtype)
    verify(x, x, x, x, x[..., 0].contiguous(), states, records, gate, starts, slots, enable_pdl=enable_pdl)


if __name__ == "__main__":
    compile_for(90, ptx_alone=True)
    checks.check_device = lambda name, device: None
    launch.device_arch = lambda device: 90
    KernelLaunch.__call__ = compile_only
    for case in CASES:
        for enable_pdl in (False, True):
            call(*case, enable_pdl)
    sys.stdout.write(json.dumps([compiled[i : i + 2] for i in range(0, len(compiled), 2)]))
