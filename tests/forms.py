"""Lets an op take one form with given constants, on the CPU in the emulator of Gluon kernels."""

import importlib
from typing import Any

import numpy as np
import pytest
import torch

from recoverssm import triton_compat
from recoverssm.dispatch import Prepared
from recoverssm.launch import Form, LaunchRow, device_arch
from tests.gluon_interpreter import Emulated


def _only_for_the_cache(addresses: np.ndarray) -> np.ndarray:
    return np.zeros(addresses.shape, np.int32)


ASSEMBLY = {
    "applypriority.global.L2::evict_normal [$1], 128; mov.b32 $0, 0;": _only_for_the_cache,
    "prefetch.global.L2 [$1]; mov.b32 $0, 0;": _only_for_the_cache,
    "cvt.rn.bf16x2.f32 $0, $2, $1;": np.asarray,  # the emulator rounds to the type
    "mul.rn.f32 $0, $1, $2;": np.multiply,
}


READ_EARLY = {"A_log_ptr", "dt_bias_ptr", "state_ptr", "state_indices_ptr", "query_start_loc_ptr"}
"""What verify may read before the kernel before it is complete: nothing that is written during a step."""

HISTORY = {"record_rows_ptr", "history_lens_ptr", "correction_ptr", "key_gate_ptr"}
"""What it may read as well where it takes history: positions of earlier steps, which this one does not write."""


def use_form(monkeypatch: pytest.MonkeyPatch, op: str, form: str, device: str, **constants: Any) -> None:
    """From here on ``op`` runs ``form``."""
    stem = op.removesuffix("_verify").removesuffix("_history")  # of full_state_verify and verify_history
    forms = "HISTORY_FORMS" if op == "verify_history" else "FORMS"
    module = importlib.import_module(f"recoverssm.ops.{stem}")
    name = f"{stem}_{form.removesuffix('_blocks')}"
    kernel = getattr(importlib.import_module(f"recoverssm.kernels.{name}"), f"_{name}_kernel")
    rows = [
        LaunchRow(op, 0, dtype, form, 0, 1, {"num_warps": 4} | constants, "a test")
        for dtype in (torch.float32, torch.bfloat16)
    ]
    taken = Emulated(kernel, asm=ASSEMBLY, read_early=READ_EARLY | HISTORY) if device == "cpu" else kernel
    monkeypatch.setattr(module, forms, {form: Form(taken, has_pdl="PDL" in kernel.arg_names)})
    monkeypatch.setattr("recoverssm.launch.load_table", lambda: rows)
    monkeypatch.setattr(module, f"_{op}", Prepared(getattr(module, f"_{op}").prepare))


def skip_unless_runs(arch: int, *, exactly: bool = False) -> None:
    """For tests marked `gpu`: a Gluon form needs a card of ``arch`` or, unless ``exactly``, a later one."""
    here = device_arch(torch.device("cuda", 0))
    if not triton_compat.IS_TESTED:
        pytest.skip("Gluon kernels were not tested with this Triton")
    if here < arch or (exactly and here != arch):
        pytest.skip(f"needs sm_{arch}, this is sm_{here}")
