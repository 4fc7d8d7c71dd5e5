"""CommitContext: plan, state and conv of all layers in one call, also from a CUDA graph and past 2^31 elements."""

from dataclasses import replace

import pytest
import torch

from recoverssm import CommitContext, CommitPlan, GateParams, LayerTable, Records, commit_state, reference, verify
from recoverssm.errors import ShapeError
from tests.test_commit_state import fill_records
from tests.windows import FP32_TOL, RAGGED, Window, assert_matches, float64_twin, int32, relative_error


def test_commit_runs_plan_state_and_conv_in_every_layer(device):
    window = Window(replace(RAGGED, num_layers=2), device)
    fill_records(window)
    conv_states = [torch.randn(8, 10, 48, generator=torch.Generator().manual_seed(i)).to(device) for i in range(2)]
    num_sampled = int32([3, 0, 4, 1, 2, 9, 9], device)
    request_indices = int32([2, 3, 0, 1, 4], device)
    plan = window.plan([4, 0, 3, 0, 2])
    expected = [float64_twin(state) for state in window.checkpoint_states]
    reference.commit_state(expected, window.records, plan, window.gate)
    expected_conv = [conv.clone() for conv in conv_states]
    reference.compact_conv(expected_conv, plan, conv_width=4)
    context = CommitContext(window.checkpoint_states, window.records, conv_states, window.gate, max_num_rows=6)

    done = context.commit(num_sampled, window.query_start_loc, window.state_indices, request_indices=request_indices)

    assert done.commit_lens.tolist() == [4, 0, 3, 0, 2]
    assert done.final_slots.tolist() == [2, 0, 6, 0, 5]
    for layer in range(2):
        assert_matches("state", window.checkpoint_states[layer], expected[layer], FP32_TOL)
        assert torch.equal(conv_states[layer], expected_conv[layer])


def test_verify_takes_history_from_four_rows_of_twelve_heads_on():
    pool, gate = torch.zeros(2, 12, 16, 16), GateParams(torch.zeros(1, 12), torch.zeros(1, 12, 16), -5.0)
    records = Records(torch.zeros(16, 12, 4, 16), torch.zeros(16, 12, 4, 32), history_len=2)
    context = CommitContext([pool], [records], [], gate, max_num_rows=16)

    assert [context.takes_history(num_rows) for num_rows in (0, 1, 3, 4, 16)] == [False, False, False, True, True]
    with pytest.raises(ShapeError, match="expected at most max_num_rows=16 rows, got 17"):
        context.takes_history(17)


@pytest.mark.gpu
def test_verify_and_commit_replay_from_a_cuda_graph_with_new_inputs():
    num_rows, spec_query_len, heads, dim = 4, 4, 2, 128
    device = "cuda"
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, device=device, generator=generator)

    tokens = num_rows * spec_query_len
    activations = [random(tokens, heads, dim).bfloat16() for _ in range(4)] + [random(tokens, heads).bfloat16()]
    pool = random(num_rows + 1, heads, dim, dim)
    records = Records(
        torch.zeros(num_rows, heads, spec_query_len, dim, device=device),
        torch.zeros(num_rows, heads, spec_query_len, 2 * dim, device=device, dtype=torch.bfloat16),
    )
    gate = GateParams(random(1, heads), random(1, heads, dim), -5.0)
    layer_gate = GateParams(gate.A_log[0], gate.dt_bias[0], -5.0)
    starts = int32(range(0, tokens + 1, spec_query_len), device)
    slots, sampled = int32([1, 2, 3, 4], device), int32([4, 4, 4, 4], device)
    out = torch.zeros(tokens, heads, dim, device=device, dtype=torch.bfloat16)
    context = CommitContext([pool], [records], [], gate, max_num_rows=num_rows)

    def step():
        verify(*activations, pool, records, layer_gate, starts, slots, out=out)
        context.commit(sampled, starts, slots)

    saved = pool.clone()
    step()  # compiles outside the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    for new_slots, new_sampled, new_lens in [
        ([4, 3, 2, 1], [1, 2, 3, 4], [4, 4, 4, 4]),
        ([2, 0, 1, 0], [3, 1, 0, 2], [2, 0, 4, 0]),  # a smaller batch, padded with null rows
    ]:
        pool.copy_(saved)
        slots.copy_(int32(new_slots, device))
        sampled.copy_(int32(new_sampled, device))
        starts[1:].copy_(int32(new_lens, device).cumsum(0))
        expected = saved.double()
        wide = Records(torch.zeros_like(records.correction, dtype=torch.float64), torch.zeros_like(records.key_gate))
        reference.verify(*activations, expected, wide, layer_gate, starts, slots)
        plan = CommitPlan(*(torch.zeros(num_rows, dtype=torch.int32, device=device) for _ in range(3)))
        reference.commit_plan(sampled, starts, slots, plan, spec_query_len=spec_query_len)
        reference.commit_state([expected], [wide], plan, gate)

        graph.replay()

        assert relative_error(pool, expected) <= FP32_TOL


@pytest.mark.gpu
def test_slots_beyond_two_to_the_31_elements_are_addressed():
    heads, dim, spec_query_len, slot_stride = 1, 16, 2, 1_500_000_000
    device = "cuda"
    storage = torch.full((2 * slot_stride + heads * dim * dim,), float("nan"), device=device)
    pool = storage.as_strided((3, heads, dim, dim), (slot_stride, dim * dim, dim, 1))
    pool[2] = torch.randn(heads, dim, dim, device=device)
    records = Records(
        torch.zeros(1, heads, spec_query_len, dim, device=device),
        torch.zeros(1, heads, spec_query_len, 2 * dim, device=device),
    )
    gate = GateParams(torch.zeros(1, heads, device=device), torch.zeros(1, heads, dim, device=device), -5.0)
    layer_gate = GateParams(gate.A_log[0], gate.dt_bias[0], -5.0)
    activations = [torch.randn(2, heads, dim, device=device) for _ in range(4)] + [torch.randn(2, heads, device=device)]
    starts, slot = int32([0, 2], device), int32([2], device)
    plan = CommitPlan(int32([2], device), slot, slot)
    expected = pool[2:].double()
    twin = Records(records.correction.double(), records.key_gate.double())
    one = int32([1], device)
    padded_pool = torch.cat((torch.zeros_like(expected), expected))
    reference.verify(*activations, padded_pool, twin, layer_gate, starts, one)
    reference.commit_state([padded_pool], [twin], CommitPlan(plan.commit_lens, one, one), gate)

    verify(*activations, pool, records, layer_gate, starts, slot)
    commit_state(
        LayerTable.of("states", [pool]),
        LayerTable.of("corrections", [records.correction]),
        LayerTable.of("key_gates", [records.key_gate]),
        plan,
        gate,
    )

    assert relative_error(pool[2], padded_pool[1]) <= FP32_TOL
