"""Ten thousand steps with deferred commits and with commits every step, beside an uninterrupted float64 recurrence."""

import pytest
import torch

from recoverssm import (
    CommitContext,
    GateParams,
    MetadataBuilder,
    Records,
    RecoverSSMConfig,
    RecoverSSMState,
    RequestBatch,
    SampledByRow,
    committer,
    verify,
)
from recoverssm.reference.recurrence import delta_step, kda_log_decay, scaled_query, unit_key
from tests.forms import skip_unless_runs
from tests.windows import relative_error


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.parametrize("commit", ["every_step", "deferred"])
@pytest.mark.parametrize("channels", [(-8.0, 1.0), (-14.0, -8.0)], ids=["mixed", "slow"])
def test_ten_thousand_chained_steps_keep_the_state(channels, commit, record_property, monkeypatch):
    """Against float64 without interruption; rows in another order each time, random numbers of accepted tokens."""
    skip_unless_runs(90, exactly=True)
    monkeypatch.setattr(committer, "MIN_HISTORY_HEADS", 0)  # of these four rows too
    num_rows, num_steps, H, T, D = 4, 10_000, 2, 8, 128
    generator = torch.Generator("cuda").manual_seed(1)
    pick = torch.Generator().manual_seed(2)
    config = RecoverSSMConfig(num_heads=H, draft_tokens=T - 1, max_num_requests=num_rows, commit=commit)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, device="cuda")

    low, high = channels
    dt_bias = torch.rand(1, H, D, generator=generator, device="cuda") * (high - low) + low
    gate = GateParams(draw(1, H) / 2, dt_bias, -5.0)
    layer_gate = GateParams(gate.A_log[0], gate.dt_bias[0], -5.0)
    pool = draw(num_rows + 1, H, D, D)
    entry = (config.num_record_rows, H, T + config.history_len)
    records = Records(
        torch.zeros(*entry, D, device="cuda"),
        torch.zeros(*entry, 2 * D, device="cuda", dtype=torch.bfloat16),
        history_len=config.history_len,
    )
    context = CommitContext([pool], [records], [], gate, max_num_rows=num_rows)
    builder = MetadataBuilder(config, num_state_slots=num_rows + 1, device="cuda")
    life = RecoverSSMState(config, [context])
    expected = pool[1:].double()
    for _ in range(num_steps):
        order = torch.randperm(num_rows, generator=pick).tolist()
        batch = RequestBatch(
            [T] * num_rows, [T - 1] * num_rows, [False] * num_rows, [slot + 1 for slot in order], order
        )
        step = builder.build(batch)
        rows = life.record_step(step)
        q, k, v, raw_gate = (draw(num_rows * T, H, D).bfloat16() for _ in range(4))
        raw_beta = draw(num_rows * T, H).bfloat16()
        layer = (q, k, v, raw_gate, raw_beta, pool, records, layer_gate)
        verify(*layer, step.query_start_loc, step.state_indices, record_rows=rows)
        accepted = torch.randint(0, T + 1, (num_rows,), generator=pick).int().cuda()
        life.commit_step(step, SampledByRow(accepted))
        here = torch.tensor(order, device="cuda").argsort()
        decay, key = kda_log_decay(raw_gate, layer_gate), unit_key(k)
        sequence = [x.view(num_rows, T, *x.shape[1:])[here] for x in (decay, key, scaled_query(q), v.double())]
        beta = raw_beta.double().sigmoid().view(num_rows, T, H)[here]
        for t in range(T):
            after, _, _ = delta_step(expected, *(x[:, t] for x in sequence), beta[:, t])
            expected = torch.where((t < accepted[here])[:, None, None, None], after, expected)
    life.flush()

    error = relative_error(pool[1:], expected)
    record_property("state_error", error)
    assert error <= (1e-6 if channels == (-8.0, 1.0) else 3e-5)
