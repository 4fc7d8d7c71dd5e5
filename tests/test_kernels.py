"""What holds for all kernels together."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KERNELS = {
    "verify": "_verify_kernel",
    "verify_mma": "_verify_mma_kernel",
    "verify_wgmma": "_verify_wgmma_kernel",
    "full_state": "_full_state_verify_kernel",
    "full_state_staged": "_full_state_staged_kernel",
    "commit_state": "_commit_state_kernel",
    "commit_state_async": "_commit_state_async_kernel",
    "commit_plan": "_commit_plan_kernel",
    "align_plan": "_align_plan_kernel",
    "conv": "_compact_conv_kernel",
}
RENAMED = ("gl.thread_barrier", "gl.barrier", "async_copy_global_to_shared", "._reinterpret", ".reinterpret")
"""Gluon's, before or after Triton 3.9."""


@cache
def cache_keys(*order):
    """Keys of the kernels in Triton's cache, in a process that first needs them in this order."""
    program = (
        "import importlib, json\n"
        f"named = {KERNELS!r}\n"
        "find = lambda stem: getattr(importlib.import_module('recoverssm.kernels.' + stem), named[stem])\n"
        f"print(json.dumps({{stem: find(stem).cache_key for stem in {order!r}}}, sort_keys=True))"
    )
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=env, check=True, text=True, capture_output=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("first", ["full_state", "commit_state"])
def test_a_kernels_cache_key_does_not_depend_on_what_was_launched_before(first):
    """Else each process that launches in another order compiles everything again."""
    others = [stem for stem in KERNELS if stem != first]

    assert cache_keys(first, *others) == cache_keys(*KERNELS)


@pytest.mark.parametrize("stem", KERNELS)
def test_names_that_differ_between_versions_of_triton_come_from_one_module(stem):
    source = (ROOT / f"recoverssm/kernels/{stem}.py").read_text()

    assert [name for name in RENAMED if name in source] == []
