"""compact_conv against the reference: a copy, so every bit counts."""

import pytest
import torch

from recoverssm import CommitPlan, LayerTable, compact_conv, reference
from tests.windows import int32, padded, storage_bits


def make_conv_states(num_layers, window_len, num_channels, dtype, device, layout="SD"):
    generator = torch.Generator().manual_seed(0)
    if layout == "SD":
        states = [padded((7, window_len, num_channels), dtype, device) for _ in range(num_layers)]
    else:
        states = [padded((7, num_channels, window_len), dtype, device).transpose(1, 2) for _ in range(num_layers)]
    for state in states:
        state[1:].copy_(torch.randn(6, window_len, num_channels, generator=generator))
    return states


@pytest.mark.parametrize(
    ("spec_query_len", "num_channels", "conv_width"), [(8, 96, 4), (1, 40, 4), (4, 1100, 4), (16, 33, 2), (3, 24, 6)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", ["SD", "DS"])
def test_compact_conv_matches_reference(spec_query_len, num_channels, conv_width, dtype, layout, device):
    states = make_conv_states(2, conv_width - 1 + spec_query_len - 1, num_channels, dtype, device, layout)
    slots = [2, 5, 0, 1, 6]
    lens = [spec_query_len, 1, 0, (spec_query_len + 1) // 2, min(2, spec_query_len)]
    plan = CommitPlan(int32(lens, device), int32(slots, device), int32(slots, device))
    expected = [state.clone() for state in states]
    reference.compact_conv(expected, plan, conv_width=conv_width)
    gaps = [storage_bits(state) for state in states]

    compact_conv(LayerTable.of("conv_states", states), plan, conv_width=conv_width)

    for state, want, before in zip(states, expected, gaps, strict=True):
        assert torch.equal(state[1:], want[1:])
        outside = torch.ones_like(before, dtype=torch.bool)
        outside.as_strided(state.shape, state.stride()).fill_(False)
        assert torch.equal(storage_bits(state)[outside], before[outside])


def test_history_moves_to_another_slot_without_touching_the_source(device):
    states = make_conv_states(1, 6, 32, torch.bfloat16, device)
    source = states[0][3].clone()
    plan = CommitPlan(int32([3], device), int32([3], device), int32([4], device))

    compact_conv(LayerTable.of("conv_states", states), plan, conv_width=4)

    assert torch.equal(states[0][3], source)
    assert torch.equal(states[0][4, :3], source[2:5])


@pytest.mark.parametrize("plan", [([2], [0], [3]), ([2], [3], [0]), ([2], [-1], [3]), ([2], [3], [-1])], ids=str)
def test_rows_without_source_or_final_slot_leave_every_window_untouched(plan, device):
    states = make_conv_states(1, 6, 32, torch.bfloat16, device)
    before = storage_bits(states[0])

    compact_conv(LayerTable.of("conv_states", states), CommitPlan(*(int32(x, device) for x in plan)), conv_width=4)

    assert torch.equal(storage_bits(states[0]), before)


def test_layers_may_lie_apart_by_different_strides(device):
    states = make_conv_states(2, 6, 32, torch.bfloat16, device)
    states[1] = states[1].clone()
    expected = [state[:, 2:5].clone() for state in states]
    plan = CommitPlan(*(int32([x], device) for x in (3, 5, 5)))

    compact_conv(LayerTable.of("conv_states", states), plan, conv_width=4)

    for state, history in zip(states, expected, strict=True):
        assert torch.equal(state[5, :3], history[5])


def test_tokens_beyond_two_to_the_31_elements_are_addressed(device):
    """A pool may be [conv_state_len, P, C] in memory; only what is touched is ever backed by real pages on a CPU."""
    window_len, num_channels, token_stride = 18, 16, 144_000_000
    storage = torch.empty((window_len - 1) * token_stride + 2 * num_channels, dtype=torch.bfloat16, device=device)
    state = storage.as_strided((2, window_len, num_channels), (num_channels, token_stride, 1))
    state[1] = torch.arange(window_len * num_channels).view(window_len, num_channels) % 251
    history = state[1, 15:18].clone()
    plan = CommitPlan(*(int32([x], device) for x in (16, 1, 1)))

    compact_conv(LayerTable.of("conv_states", [state]), plan, conv_width=4)

    assert torch.equal(state[1, :3], history)
