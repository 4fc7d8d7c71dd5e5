import pytest
import torch

from benchmarks.harness.restore import BLOCK, SavedMemory

SIZES = {"one element": (1,), "odd bytes": (3, 5), "a block": (BLOCK,), "blocks and a rest": (7, BLOCK // 2 + 3)}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_every_bit_comes_back(device: str, size: tuple[int, ...], dtype: torch.dtype):
    tensor = (100 * torch.rand(size)).to(dtype).to(device)
    before = tensor.clone()
    saved = SavedMemory([tensor])
    tensor.zero_()
    saved.restore()

    assert torch.equal(tensor, before)


def test_nan_and_negative_zero_come_back(device: str):
    tensor = torch.tensor([torch.nan, -0.0, torch.inf], device=device)
    saved = SavedMemory([tensor])
    tensor.fill_(1.0)
    saved.restore()

    assert tensor[0].isnan()
    assert torch.signbit(tensor[1])
    assert tensor[2].isinf()


def test_views_of_one_memory_are_saved_once(device: str):
    layers = torch.arange(4 * 16, dtype=torch.float32, device=device).view(4, 16)
    before = layers.clone()
    saved = SavedMemory(layers.unbind())
    layers.add_(1)
    saved.restore()

    assert saved.num_bytes == 4 * 16 * 4
    assert torch.equal(layers, before)


def test_memory_of_others_is_left_alone(device: str):
    mine, other = torch.zeros(BLOCK + 1, device=device), torch.zeros(BLOCK, device=device)
    saved = SavedMemory([mine])
    other.fill_(3.0)
    saved.restore()

    assert bool((other == 3.0).all())
