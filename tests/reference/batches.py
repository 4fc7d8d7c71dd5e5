"""Small ragged batches for the reference's tests: everything that no row owns is poison."""

import itertools
from types import SimpleNamespace

import torch

from recoverssm.types import GateParams, Records

POISON_BITS = {torch.float64: 0x7FF8_0000_DEAD_BEEF, torch.float32: 0x7FC0_BEEF, torch.bfloat16: 0x7FEB}
INT_OF = {torch.float64: torch.int64, torch.float32: torch.int32, torch.bfloat16: torch.int16}


def bits(x):
    """A copy of the bits of ``x``, so that NaN compares with NaN."""
    return x.detach().clone().view(INT_OF[x.dtype])


def poison(*shape, dtype=torch.float64):
    """NaN with a mark in it."""
    return torch.full(shape, POISON_BITS[dtype], dtype=INT_OF[dtype]).view(dtype)


def is_poison(x):
    return bits(x) == POISON_BITS[x.dtype]


def make_gate(num_heads, key_dim, lower_bound, generator, num_layers=None):
    lead = (num_heads,) if num_layers is None else (num_layers, num_heads)
    return GateParams(
        A_log=torch.rand(lead, generator=generator, dtype=torch.float64) - 0.5,
        dt_bias=torch.randn(*lead, key_dim, generator=generator, dtype=torch.float64),
        lower_bound=lower_bound,
    )


def make_batch(
    query_lens,
    slots,
    *,
    num_heads=2,
    key_dim=6,
    value_dim=5,
    spec_query_len=4,
    num_slots=9,
    lower_bound=-5.0,
    dtype=torch.float64,
    state_dtype=torch.float64,
    record_dtype=torch.float64,
    seed=0,
):
    """A batch with one row per query_len; slots that no row names, outputs, records and spare tokens are poison."""
    generator = torch.Generator().manual_seed(seed)
    num_rows, num_tokens = len(query_lens), sum(query_lens)

    def tokens(*size):
        spare = poison(3, *size, dtype=dtype)  # tokens behind the last row
        return torch.cat((torch.randn(num_tokens, *size, generator=generator, dtype=torch.float64).to(dtype), spare))

    states = poison(num_slots, num_heads, value_dim, key_dim, dtype=state_dtype)
    for slot in slots:
        if slot > 0:
            states[slot] = torch.randn(num_heads, value_dim, key_dim, generator=generator, dtype=torch.float64)
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    return SimpleNamespace(
        q=tokens(num_heads, key_dim),
        k=tokens(num_heads, key_dim),
        v=tokens(num_heads, value_dim),
        raw_gate=tokens(num_heads, key_dim),
        raw_beta=tokens(num_heads),
        states=states,
        records=Records(
            poison(num_rows + 1, num_heads, spec_query_len, value_dim, dtype=record_dtype),
            poison(num_rows + 1, num_heads, spec_query_len, 2 * key_dim, dtype=dtype),
        ),
        gate=make_gate(num_heads, key_dim, lower_bound, generator),
        query_start_loc=starts,
        state_indices=torch.tensor(slots, dtype=torch.int32),
        out=poison(num_tokens + 3, num_heads, value_dim, dtype=dtype),
        rows=[range(int(a), int(b)) for a, b in itertools.pairwise(starts)],
        activations=lambda b, row: [x[list(row)].tolist() for x in (b.q, b.k, b.v, b.raw_gate, b.raw_beta)],
    )
