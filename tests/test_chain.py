"""Many steps in a row: RecoverSSM keeps the state and conv window that full state keeps."""

import pytest
import torch

from recoverssm import CommitContext, GateParams, Records, full_state_verify, reference, verify
from tests.windows import int32, relative_error

T, H, K, V, LAYERS, WIDTH = 3, 1, 32, 32, 2, 4
STATE_TOL = {
    torch.float32: 1e-6,
    torch.bfloat16: 1e-2,
}  # bf16: roundings of two schemes, truncated in the interpreter; the decays forget them


def random_step(num_rows, device, generator):
    tokens = num_rows * T
    draw = lambda *shape: torch.randn(*shape, generator=generator).to(torch.bfloat16).to(device)  # noqa: E731
    return draw(tokens, H, K), draw(tokens, H, K), draw(tokens, H, V), draw(tokens, H, K), draw(tokens, H)


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_chain_over_all_accepted_counts_equals_full_state(state_dtype, device):
    """Row n accepts (n + step) mod (T + 1) tokens; 0 stands for a request that was filtered: it repeats its step."""
    generator = torch.Generator().manual_seed(0)
    num_rows = T + 1
    query_start_loc = int32(range(0, num_rows * T + 1, T), device)
    slots = int32(range(1, num_rows + 1), device)
    full_slots = int32(range(1, num_rows * T + 1), device).view(num_rows, T)
    gate = GateParams(torch.zeros(LAYERS, H, device=device), torch.zeros(LAYERS, H, K, device=device), -5.0)
    layer_gates = [GateParams(gate.A_log[i], gate.dt_bias[i], -5.0) for i in range(LAYERS)]
    start = torch.randn(num_rows, H, V, K, generator=generator).to(state_dtype).to(device)
    pools = [torch.full((num_rows + 1, H, V, K), float("nan"), device=device, dtype=state_dtype) for _ in range(LAYERS)]
    full_pools = [
        torch.full((num_rows * T + 1, H, V, K), float("nan"), device=device, dtype=state_dtype) for _ in range(LAYERS)
    ]
    records = [
        Records(
            torch.full((num_rows, H, T, V), float("nan"), device=device),
            torch.full((num_rows, H, T, 2 * K), float("nan"), device=device, dtype=torch.bfloat16),
        )
        for _ in range(LAYERS)
    ]
    for pool, full_pool in zip(pools, full_pools, strict=True):
        pool[1:] = start
        full_pool[full_slots[:, 0].long()] = start
    context = CommitContext(pools, records, [], gate, max_num_rows=num_rows)
    num_accepted = int32([1] * num_rows, device)

    for step in range(T + 1):
        activations = random_step(num_rows, device, generator)
        accepted = int32([(row + step) % (T + 1) for row in range(num_rows)], device)
        sources = full_slots.gather(1, (num_accepted.long() - 1)[:, None])[:, 0].long()
        filtered = accepted == 0
        for layer in range(LAYERS):
            kept = full_pools[layer][sources[filtered]].clone()
            out = verify(*activations, pools[layer], records[layer], layer_gates[layer], query_start_loc, slots)
            full_out = full_state_verify(
                *activations, full_pools[layer], layer_gates[layer], query_start_loc, full_slots, num_accepted
            )
            full_pools[layer][full_slots[filtered, 0].long()] = kept
            assert relative_error(out, full_out.double()) <= 5e-3
        context.commit(accepted, query_start_loc, slots)
        num_accepted = accepted.clamp(min=1)

        columns = (num_accepted.long() - 1)[:, None]
        current = full_slots.gather(1, columns)[:, 0].long()
        for pool, full_pool in zip(pools, full_pools, strict=True):
            assert relative_error(pool[1:], full_pool[current].double()) <= STATE_TOL[state_dtype], f"step {step}"
            assert pool[0].isnan().all(), "the null slot was written"


def test_draftless_and_drafted_steps_alternate_with_their_conv_window(device):
    """One request: windows of 3 and 1 tokens in turn; state and conv history equal an uninterrupted recurrence."""
    generator = torch.Generator().manual_seed(1)
    channels = H * (2 * K + V)
    gate = GateParams(torch.zeros(1, H, device=device), torch.zeros(1, H, K, device=device), -5.0)
    pool = torch.zeros(2, H, V, K, device=device)
    conv = torch.zeros(2, WIDTH - 1 + T - 1, channels, device=device, dtype=torch.bfloat16)
    records = Records(
        torch.full((1, H, T, V), float("nan"), device=device),
        torch.full((1, H, T, 2 * K), float("nan"), device=device, dtype=torch.bfloat16),
    )
    context = CommitContext([pool], [records], [conv], gate, max_num_rows=1, conv_width=WIDTH)
    layer_gate = GateParams(gate.A_log[0], gate.dt_bias[0], -5.0)
    slot = int32([1], device)
    weight = torch.randn(channels, WIDTH, generator=generator).to(device)
    accepted_tokens, accepted_projections = [], []

    for query_len, accepted in [(3, 2), (1, 1), (3, 1), (1, 1), (3, 3)]:
        starts = int32([0, query_len], device)
        tokens = [x[:query_len] for x in random_step(1, device, generator)]
        projections = torch.randn(query_len, channels, generator=generator).to(torch.bfloat16).to(device)
        reference.update_conv_window(conv, projections, starts, slot, weight)
        verify(*tokens, pool, records, layer_gate, starts, slot)
        context.commit(int32([accepted], device), starts, slot)
        accepted_tokens.append([x[:accepted] for x in tokens])
        accepted_projections.append(projections[:accepted])

    merged = [torch.cat(parts) for parts in zip(*accepted_tokens, strict=True)]
    total = merged[0].shape[0]
    naive = torch.zeros(total + 1, H, V, K, dtype=torch.float64, device=device)
    reference.full_state_verify(
        *merged,
        naive,
        layer_gate,
        int32([0, total], device),
        int32([range(1, total + 1)], device),
        int32([1], device),
    )
    assert relative_error(pool[1], naive[total]) <= STATE_TOL[torch.float32]
    assert torch.equal(conv[1, : WIDTH - 1], torch.cat(accepted_projections)[-(WIDTH - 1) :])
