"""Program: compiles for sm_90 without a GPU, launches into a stand-in for the driver, prints what reached its launcher.

Run by tests/test_triton_compat.py in a process of its own, as the driver and TRITON_INTERPRET hold for a whole process.
"""

import json
import random
import sys
from types import SimpleNamespace
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime import driver

from recoverssm import (
    Boundaries,
    CaptureError,
    CommitPlan,
    GateParams,
    LayerTable,
    Records,
    checks,
    commit_plan,
    compact_conv,
    launch,
    triton_compat,
    verify,
)
from recoverssm.triton_compat import KernelLaunch

LAUNCH_METADATA_AT = 10 if triton.__version__.startswith("3.6.") else 8  # in the arguments of the C function
reached = []


class Launcher(CudaLauncher):
    """Triton's own, with a stand-in for the C function that it calls with some more arguments."""

    global_scratch_size = profile_scratch_size = 0
    global_scratch_align = profile_scratch_align = num_ctas = 1
    launch_cooperative_grid = gsan_enabled = False
    arg_annotations, kernel_signature = "annotations", "signature"
    by_triton = 0

    def __init__(self, source, metadata):
        self.launch_pdl = metadata.launch_pdl

    def launch(self, *arguments):
        at = LAUNCH_METADATA_AT  # and two hooks after it, which Triton alone passes
        launch_metadata, enter_hook, _ = arguments[at : at + 3]
        if enter_hook is not None:
            enter_hook(launch_metadata)
        reached.append(values([*arguments[:at], *arguments[at + 3 :]]))

    def __call__(self, *arguments):
        Launcher.by_triton += 1
        super().__call__(*arguments)


def values(arguments):
    """Addresses instead of tensors."""
    return [
        a.data_ptr() if isinstance(a, torch.Tensor) else values(a) if isinstance(a, tuple) else a for a in arguments
    ]


class Driver:
    launcher_cls = Launcher
    device = 0
    utils = SimpleNamespace(
        load_binary=lambda name, binary, *_: (name, hash(binary), 0, 0, 1024),
        get_device_properties=lambda _: {"max_shared_mem": 2**20},
    )

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return Driver.device

    def get_current_stream(self, device):
        return 70 + device


class OnDevice:
    """Stands in for torch.cuda.device."""

    def __init__(self, index):
        self.index, self.before = index, Driver.device

    def __enter__(self):
        Driver.device = self.index

    def __exit__(self, *_):
        Driver.device = self.before


def on_device_0(self, kernel, grid, device, **rest):
    original(self, kernel, grid, torch.device("cuda", 0), **rest)


def misaligned(tensor):
    return torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape)


def plan_calls():
    for num_rows in (1, 16, 17):
        rows = torch.zeros(num_rows, dtype=torch.int32)
        for sampled in (rows[:1], torch.zeros(32, dtype=torch.int32), misaligned(rows)):
            plan = CommitPlan(*torch.zeros((3, num_rows), dtype=torch.int32).unbind())
            starts = torch.zeros(num_rows + 1, dtype=torch.int32)
            yield lambda a=(sampled, starts, rows, plan): commit_plan(*a, spec_query_len=4)


def verify_calls():
    for num_heads, bound in ((1, -5.0), (2, None)):
        x = torch.zeros(4, num_heads, 16, dtype=torch.bfloat16)
        gate = GateParams(torch.zeros(num_heads), torch.zeros(num_heads, 16), bound)
        records = Records(torch.zeros(1, num_heads, 4, 16), torch.zeros(1, num_heads, 4, 32, dtype=torch.bfloat16))
        starts, slots = torch.tensor([0, 4], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
        states, out = torch.zeros(2, num_heads, 16, 16), x.clone()
        for q in (x, misaligned(x)):
            arguments = (q, x, x, x, x[..., 0].contiguous(), states, records, gate, starts, slots)
            yield lambda a=arguments, o=out: verify(*a, out=o)


def conv_calls():
    """With boundaries and without, where the launch lacks two of the kernel's tensors."""
    table = LayerTable.of("conv_states", [torch.zeros(2, 6, 24, dtype=torch.bfloat16)])
    rows, boundaries = torch.zeros(1, dtype=torch.int32), torch.zeros((2, 1, 1), dtype=torch.int32)
    for crossed in (None, Boundaries(*boundaries.unbind())):
        yield lambda b=crossed: compact_conv(table, CommitPlan(rows, rows, rows), conv_width=4, boundaries=b)


def chained_verify_calls():
    """Of the form for sm_90: the second begins while the first is still running."""
    x = torch.zeros(4, 1, 128, dtype=torch.bfloat16)
    gate = GateParams(torch.zeros(1), torch.zeros(1, 128), -5.0)
    records = Records(torch.zeros(1, 1, 4, 128), torch.zeros(1, 1, 4, 256, dtype=torch.bfloat16))
    starts, slots = torch.tensor([0, 4], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    arguments = (x, x, x, x, x[..., 0].contiguous(), torch.zeros(2, 1, 128, 128), records, gate, starts, slots)
    out = x.clone()
    for chained in (False, True) if triton_compat.IS_TESTED else (False,):
        yield lambda c=chained: verify(*arguments, out=out, enable_pdl=c)


def random_verifies(number):
    """Calls of few shapes and strides, so that many look alike, at addresses of every kind."""
    pick = random.Random(0).choice
    for _ in range(number):
        num_heads, num_tokens = pick((1, 2)), pick((1, 16, 17))

        def tokens(*size, dtype=torch.bfloat16, count=num_tokens, heads=num_heads):
            entry = heads * torch.Size(size).numel()
            stride, start = entry + pick((*[0] * 20, 1, 16)), pick((*[0] * 20, 1, 8))
            room = torch.zeros(start + count * stride, dtype=dtype)
            inner = torch.empty(heads, *size, device="meta").stride()
            return room[start:].as_strided((count, heads, *size), (stride, *inner))

        gate = GateParams(torch.zeros(num_heads), torch.zeros(num_heads, 16), pick((None, -5.0, -5)))
        records = Records(tokens(4, 16, dtype=torch.float32), tokens(4, 32))
        starts, slots = torch.tensor([0, num_tokens], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
        states = tokens(16, 16, dtype=pick((torch.float32, torch.bfloat16)))
        verify(tokens(16), tokens(16), tokens(16), tokens(16), tokens(), states, records, gate, starts, slots)


def specialisations():
    """For every launch kept: on how many calls it was used, and how many kernels Triton takes them to want."""
    wanted, launches = {}, {}

    def note(launch, tensors, addresses):
        *_, bind = launch.kernel.device_caches[0]
        _, specialisation, options = bind(*tensors, *launch.scalars, **launch.constants)
        wanted.setdefault(id(launch), []).append(str((specialisation, options)))
        launches[id(launch)] = launch  # alive, so that no other gets its id

    with patch.object(KernelLaunch, "__call__", note):
        random_verifies(4000)
    return [(len(each), len(set(each))) for each in wanted.values()]


def captures():
    """For every call: what a first launch in a capture says, whether one did in another, and who reached the driver."""
    found = []
    for call in (*plan_calls(), *verify_calls(), *chained_verify_calls()):
        reached.clear()
        refusal = None
        with patch("torch.cuda.is_current_stream_capturing", lambda: True):
            try:
                call()
            except CaptureError as error:
                refusal = str(error)
        in_capture = len(reached)
        call()
        with patch("torch.cuda.is_current_stream_capturing", lambda: True):
            call()
        found.append({"refusal": refusal, "in_capture": in_capture, "afterwards": len(reached) - in_capture})
    return found


def run():
    """For every call: what Triton's own path passed, then what the next call passed, and who launched."""
    found = []
    for call in (*plan_calls(), *verify_calls(), *conv_calls(), *chained_verify_calls()):
        reached.clear()
        Launcher.by_triton = 0
        call()
        call()
        (expected, actual), through_triton = reached, Launcher.by_triton
        reached.clear()
        Driver.device = 1
        with patch("torch.cuda.device", OnDevice):
            call()
        Driver.device = 0
        seen = []
        triton.knobs.runtime.launch_enter_hook.add(seen.append)
        call()
        triton.knobs.runtime.launch_enter_hook.remove(seen.append)
        found.append(
            {
                "same": expected == actual == reached[0],
                "through_triton": through_triton,
                "hook_calls": len(seen),
                "stream": actual[3],
                "launch_pdl": actual[6],
                "num_arguments": len(actual),
            }
        )
    return found


if __name__ == "__main__":
    driver.set_active(Driver())
    original = KernelLaunch.__init__
    KernelLaunch.__init__ = on_device_0
    checks.DEVICE_TYPES = ("cuda", "cpu")
    launch.device_arch = lambda _: 90
    torch.cuda.is_current_stream_capturing = lambda: False
    if sys.argv[1:] == ["--unknown-version"]:
        triton_compat.IS_TESTED = False
    program = {"--specialisations": specialisations, "--captures": captures}.get(sys.argv[-1], run)
    sys.stdout.write(json.dumps(program()))
