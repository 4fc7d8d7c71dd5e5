"""The ops under pytest-benchmark: ``make bench``, or ``pytest benchmarks/test_ops.py --benchmark-only``.

On a GPU each op of each provider under ``graph-cold``; without one, the reference under ``cpu-reference`` on shrunken
twins. ``make test`` does not collect this file: it checks, and does not time.
"""

import os

import pytest
import torch

from . import one_series
from .pytest_plugin import GpuBenchmark

REQUESTS, DTYPES = (1, 32, 128), ("fp32", "bf16")
SPEC_QUERY_LEN = 8
DEVICE_OPS = (
    ("verify", "recoverssm"),
    ("verify", "full_state"),
    ("step", "recoverssm"),
    ("step", "full_state"),
    ("commit", "recoverssm"),
    ("conv", "recoverssm"),
)
REFERENCE_OPS = ("verify", "step", "commit", "conv")


def has_gpu() -> bool:
    """Whether torch sees a CUDA device and kernels are compiled for it."""
    return torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    device = has_gpu()
    ops = DEVICE_OPS if device else tuple((op, "torch") for op in REFERENCE_OPS)
    metafunc.parametrize(("op", "provider"), ops, ids=[f"{op}-{provider}" for op, provider in ops])
    metafunc.parametrize("dtype", DTYPES)
    metafunc.parametrize("num_requests", REQUESTS if device else (2,), ids=lambda count: f"b{count}")


def test_op(gpu_benchmark: GpuBenchmark, op: str, provider: str, dtype: str, num_requests: int) -> None:
    case = one_series.case_of(num_requests, SPEC_QUERY_LEN, dtype)
    if provider == "torch":
        torch.set_num_threads(1)  # tiny tensors: more threads only get in each other's way
        series = one_series.reference_series(op, case)
    else:
        gpu_benchmark.hold_gpu()
        series = one_series.device_series(op, provider, case)
    gpu_benchmark.measured_by(series.measure, series.contract, otherwise=series.launches[0])
