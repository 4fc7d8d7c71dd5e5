"""Many steps in a row: RecoverSSM and full state keep the state of an uninterrupted plain recurrence."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from recoverssm import reference
from recoverssm.types import CommitPlan, Records
from tests.reference import naive
from tests.reference.batches import bits, make_gate, poison

SCHEMES_AGREE = {"rtol": 0, "atol": 1e-12}
"""Both work in float64; direct form and recurrence add in another order, over some twenty steps."""

H, K, V, WIDTH, T = 2, 4, 3, 4, 4
C = H * (2 * K + V)
NUM_REQUESTS = 4
NUM_STEPS = 24


class Chain:
    """Four requests served by three schemes side by side; request i owns slot i + 1, or T slots under full state."""

    def __init__(self, lower_bound):
        self.generator = torch.Generator().manual_seed(11)
        self.gate = make_gate(H, K, lower_bound, self.generator)
        self.weight = self.normal(C, WIDTH)
        state = self.normal(NUM_REQUESTS, H, V, K)
        history = self.normal(NUM_REQUESTS, WIDTH - 1, C)
        self.slots = torch.arange(1, NUM_REQUESTS + 1, dtype=torch.int32)
        self.table = 1 + torch.arange(NUM_REQUESTS * T, dtype=torch.int32).reshape(NUM_REQUESTS, T)
        self.num_accepted = torch.ones(NUM_REQUESTS, dtype=torch.int32)

        self.checkpoint = poison(NUM_REQUESTS + 2, H, V, K)
        self.checkpoint[1:-1] = state
        self.pool = poison(NUM_REQUESTS * T + 2, H, V, K)
        self.pool[self.table[:, 0].long()] = state
        self.conv = poison(NUM_REQUESTS + 2, WIDTH - 2 + T, C)
        self.conv[1:-1, : WIDTH - 1] = history
        self.full_conv = self.conv.clone()
        self.naive_states = state.tolist()
        self.naive_histories = history.tolist()

    def normal(self, *size):
        return torch.randn(*size, generator=self.generator, dtype=torch.float64)

    def split(self, x):
        q, k, v = x.split([H * K, H * K, H * V], dim=1)
        return q.unflatten(1, (H, K)), k.unflatten(1, (H, K)), v.unflatten(1, (H, V))

    def step(self, query_lens, accepted):
        """Verify and commit one window in both schemes; returns both outputs and the accepted plain ones."""
        num_tokens = sum(query_lens)
        x, raw_gate, raw_beta = self.normal(num_tokens, C), self.normal(num_tokens, H, K), self.normal(num_tokens, H)
        starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
        records = Records(poison(NUM_REQUESTS, H, T, V), poison(NUM_REQUESTS, H, T, 2 * K))
        plan = CommitPlan(*torch.full((3, NUM_REQUESTS), -7, dtype=torch.int32).unbind())
        kept = torch.tensor(accepted, dtype=torch.int32)
        refused = (kept == 0).nonzero().squeeze(1)
        before = [self.conv.clone(), self.full_conv.clone(), self.pool.clone()]

        y = reference.update_conv_window(self.conv, x, starts, self.slots, self.weight)
        out = reference.verify(
            *self.split(y), raw_gate, raw_beta, self.checkpoint, records, self.gate, starts, self.slots
        )
        reference.commit_plan(kept, starts, self.slots, plan, spec_query_len=T)
        checkpoint = bits(self.checkpoint)
        stacked = type(self.gate)(self.gate.A_log[None], self.gate.dt_bias[None], self.gate.lower_bound)
        reference.commit_state([self.checkpoint], [records], plan, stacked)
        reference.compact_conv([self.conv], plan, conv_width=WIDTH)
        assert torch.equal(bits(self.checkpoint)[1 + refused], checkpoint[1 + refused])

        full_y = reference.update_conv_window(
            self.full_conv, x, starts, self.slots, self.weight, num_accepted=self.num_accepted
        )
        full_out = reference.full_state_verify(
            *self.split(full_y), raw_gate, raw_beta, self.pool, self.gate, starts, self.table, self.num_accepted
        )
        # A request that keeps nothing takes the step back. RecoverSSM's state needs no undoing; the windows, and
        # every slot of the baseline, have been overwritten.
        self.conv[1 + refused] = before[0][1 + refused]
        self.full_conv[1 + refused] = before[1][1 + refused]
        undone = self.table[refused].flatten().long()
        self.pool[undone] = before[2][undone]
        self.num_accepted = torch.where(kept > 0, kept, self.num_accepted)

        plain = self.plain_step(x, raw_gate, raw_beta, starts.tolist(), accepted)
        return out, full_out, plain

    def plain_step(self, x, raw_gate, raw_beta, starts, accepted):
        """The accepted tokens alone, as if nothing had ever been drafted; returns {token: out}."""
        outs = {}
        for n, a in enumerate(accepted):
            tokens = list(range(starts[n], starts[n] + a))
            y, sequence = naive.conv(self.naive_histories[n], x[tokens].tolist(), self.weight.tolist())
            self.naive_histories[n] = sequence[-(WIDTH - 1) :]
            q, k, v = self.split(torch.tensor(y, dtype=torch.float64).reshape(a, C))
            activations = [z.tolist() for z in (q, k, v, raw_gate[tokens], raw_beta[tokens])]
            out, _, _ = naive.window(self.naive_states[n], *activations, self.gate)
            outs.update(zip(tokens, out, strict=True))
        return outs


def schedules(seed):
    """(query_lens, accepted) of each step: ragged, 0 to T accepted, every fifth step of a row without drafts."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(NUM_STEPS):
        lens = torch.randint(1, T + 1, (NUM_REQUESTS,), generator=generator).tolist()
        lens = [1 if (step + n) % 5 == 0 else max(q, (step + n) % (T + 1)) for n, q in enumerate(lens)]
        accepted = [min(q, (step + n) % (T + 1)) if step % 2 else q - (q > 1) for n, q in enumerate(lens)]
        yield lens, accepted


@pytest.mark.parametrize("lower_bound", [-5.0, None], ids=["bounded", "unbounded"])
def test_recoverssm_full_state_and_plain_recurrence_agree_after_every_step(lower_bound):
    chain = Chain(lower_bound)
    seen = set()
    for lens, accepted in schedules(seed=5):
        out, full_out, plain = chain.step(lens, accepted)
        seen.update(zip(lens, accepted, strict=True))

        assert_close(out, full_out, **SCHEMES_AGREE)
        for token, expected in plain.items():
            assert_close(out[token], torch.tensor(expected, dtype=torch.float64), **SCHEMES_AGREE)
        states = torch.tensor(chain.naive_states, dtype=torch.float64)
        histories = torch.tensor(chain.naive_histories, dtype=torch.float64)
        rows = torch.arange(NUM_REQUESTS)
        column = chain.num_accepted.long() - 1
        assert_close(chain.checkpoint[1:-1], states, **SCHEMES_AGREE)
        assert_close(chain.pool[chain.table[rows, column].long()], states, **SCHEMES_AGREE)
        assert torch.equal(chain.conv[1:-1, : WIDTH - 1], histories)
        offsets = column[:, None] + torch.arange(WIDTH - 1)
        assert torch.equal(chain.full_conv[chain.slots.long()[:, None], offsets], histories)

    assert {a for _, a in seen} == set(range(T + 1))
    assert {q for q, _ in seen} == set(range(1, T + 1))


@pytest.mark.parametrize("accepted", list(itertools.product(range(T + 1), repeat=2)), ids=str)
def test_every_accepted_count_after_every_other_gives_the_plain_state(accepted):
    chain = Chain(-5.0)

    for a in accepted:
        chain.step([T] * NUM_REQUESTS, [a] * NUM_REQUESTS)

    assert_close(chain.checkpoint[1:-1], torch.tensor(chain.naive_states, dtype=torch.float64), **SCHEMES_AGREE)
    histories = torch.tensor(chain.naive_histories, dtype=torch.float64)
    assert torch.equal(chain.conv[1:-1, : WIDTH - 1], histories)


def test_slots_of_nobody_survive_a_whole_chain_bit_for_bit():
    chain = Chain(-5.0)
    nobody = [0, -1]
    before = [bits(x[nobody]) for x in (chain.checkpoint, chain.pool, chain.conv, chain.full_conv)]

    for lens, accepted in schedules(seed=6):
        chain.step(lens, accepted)

    after = [bits(x[nobody]) for x in (chain.checkpoint, chain.pool, chain.conv, chain.full_conv)]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
