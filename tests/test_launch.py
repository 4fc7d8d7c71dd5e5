"""The launch table: every op has a row for every state dtype on any card, and each says where it comes from."""

import pytest
import torch

from recoverssm import ConfigError
from recoverssm.launch import LAUNCH_TABLE, device_arch, select

OPS = ("verify", "full_state_verify", "commit_state")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("arch", [0, 80, 90, 100, 103])
@pytest.mark.parametrize("num_heads", [1, 12, 384, 100_000])
def test_every_op_dtype_arch_and_grid_has_a_row(op, state_dtype, arch, num_heads):
    row = select(arch, op, state_dtype, num_heads)

    assert (row.op, row.state_dtype) == (op, state_dtype)
    assert row.arch in (arch, 0)
    assert row.min_heads <= num_heads


def test_rows_of_the_arch_come_before_portable_ones_and_larger_grids_before_smaller():
    assert select(90, "verify", torch.float32, 12).arch == 90
    assert select(100, "verify", torch.float32, 12).arch == 0
    assert select(90, "verify", torch.float32, 384).min_heads == 384


def test_rows_are_unique_valid_and_state_their_source():
    keys = [(row.arch, row.op, row.state_dtype, row.min_heads) for row in LAUNCH_TABLE]

    assert len(set(keys)) == len(keys)
    for row in LAUNCH_TABLE:
        assert row.block_v & (row.block_v - 1) == 0
        assert row.inner_k & (row.inner_k - 1) == 0
        assert "H200" in row.source or "not tuned" in row.source


def test_an_op_without_a_row_is_an_error():
    with pytest.raises(ConfigError, match="no row for op 'align'"):
        select(90, "align", torch.float32, 1)


def test_the_cpu_has_no_arch():
    assert device_arch(torch.device("cpu")) == 0
