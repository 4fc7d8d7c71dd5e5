"""How far states drift from float64 over thousands of chained steps: RecoverSSM and full state on the same tokens.

Deterministic: seeds are fixed, so processes of one night agree to the last digit, and a difference is a finding.
"""

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

from recoverssm import CommitContext, GateParams, full_state_verify, verify
from recoverssm.types import NULL_SLOT

from .cases import BenchCase
from .checks import relative_error
from .float64_chain import advance_states
from .harness.clock import Launch
from .harness.records import Check
from .inputs import ACTIVATION_DTYPE, STATE_DTYPES, accepted_geometric, build_records, seeded_generator
from .results import Results

Capture = Callable[[Sequence[Launch], int], Launch]
Errors = dict[tuple[str, str], float | None]

CASES: dict[str, frozenset[str]] = {
    "nightly": frozenset({"kimi_k3_tp8_b1_t8_a3.84_fp32", "kimi_k3_tp8_b1_t8_a3.84_bf16"}),
}
"""By set: cases that are also followed over a long run."""

BOUNDS = {"chain": -5.0, "chain_unbounded": None}
"""Gate form by op."""

NUM_STEPS, CHUNK_STEPS = 10_000, 100
"""All steps, and those of one CUDA graph: what is drawn at once, and when errors are looked at early."""

WEAK_RAW_BETA = -5.0
"""Added to raw beta in the second half of the heads: a token then writes 1 % of its value, and errors live long."""

DT_BIAS = (-12.0, 1.0)
"""From the slowest channel, e^-3e-5 per token, to the fastest, e^-3.7."""

LIMITS = {
    ("state_error", "fp32"): 1e-5,
    ("state_error", "bf16"): 3e-2,
    ("slow_state_error", "fp32"): 1e-3,
    ("slow_state_error", "bf16"): 10.0,
}
"""Largest errors that pass. Rounding alone leaves 1.4e-7 and 9e-3 in heads written as usual (docs/algorithm.md section
6); an approximate exponential adds its bias once per step for as long as a channel remembers. A bf16 state that
stagnates is off by its own size, which is a property of the format: all that is asked there is a number."""


def add_long_runs(case: BenchCase, device: torch.device, capture: Capture, results: Results) -> None:
    """Errors after all steps, and how much they grew since the first hundred, of both schemes and gate forms."""
    for op, lower_bound in BOUNDS.items():
        early, final = Chain(case, lower_bound, device).run(capture)
        for (metric, provider), value in final.items():
            limit = LIMITS[metric, case.state_dtype]
            results.checks.append(
                Check(
                    case=case.name,
                    op=op,
                    provider=provider,
                    metric=metric,
                    value=value,
                    limit=limit,
                    passed=value is not None and value <= limit,
                    detail=f"after {NUM_STEPS} steps",
                )
            )
            first = early[metric, provider]
            if value is not None and first:
                results.add_exact(metric, op, provider, case.name, value)
                results.add_exact(f"{metric}_growth", op, provider, case.name, _rounded(value / first))


def launch_once(case: BenchCase, device: torch.device) -> None:
    """Every kernel of a long run, specialised as there, on a few steps: for compiling ahead."""
    for lower_bound in BOUNDS.values():
        Chain(case, lower_bound, device, num_steps=2, chunk_steps=2).run(lambda launches, _: launches[0])


class Chain:
    """Requests that go on step after step under both schemes, and the float64 states that they should hold.

    In the first half of the heads tokens write as usual, in the second weakly; decays per token spread over channels
    from nearly 1 to nearly 0, the first quarter of them slow.
    """

    def __init__(
        self,
        case: BenchCase,
        lower_bound: float | None,
        device: torch.device,
        *,
        num_steps: int = NUM_STEPS,
        chunk_steps: int = CHUNK_STEPS,
    ) -> None:
        shape, rows = case.shape, case.num_requests
        T, H, K, V = shape.spec_query_len, shape.num_heads, shape.key_dim, shape.value_dim
        state_dtype = STATE_DTYPES[case.state_dtype]
        self._device, self._num_steps, self._chunk_steps = device, num_steps, chunk_steps
        self._generator: torch.Generator | None = None

        def activations(*size: int) -> Tensor:
            return torch.empty(chunk_steps, rows * T, H, *size, dtype=ACTIVATION_DTYPE, device=device)

        self._q, self._k, self._v, self._raw_gate = activations(K), activations(K), activations(V), activations(K)
        self._raw_beta, self._out = activations(), torch.empty_like(self._v[0])
        self._activations = (self._q, self._k, self._v, self._raw_gate, self._raw_beta)
        self._gate = GateParams(
            A_log=torch.linspace(-0.5, 0.5, H, device=device),
            dt_bias=torch.linspace(*DT_BIAS, K, device=device).repeat(H, 1),
            lower_bound=lower_bound,
        )
        self._pool = torch.empty(1 + rows, H, V, K, dtype=state_dtype, device=device)
        self._full_pool = torch.empty(1 + rows * T, H, V, K, dtype=state_dtype, device=device)
        self._truth = torch.empty(rows, H, V, K, dtype=torch.float64, device=device)
        first_slot = NULL_SLOT + 1
        self._slots = torch.arange(first_slot, first_slot + rows, dtype=torch.int32, device=device)
        self._full_slots = torch.arange(first_slot, first_slot + rows * T, dtype=torch.int32, device=device).view(
            rows, T
        )
        self._query_start_loc = torch.arange(rows + 1, dtype=torch.int32, device=device) * T
        self._records = build_records(shape, 1, rows, device)[0]
        stacked = GateParams(self._gate.A_log[None], self._gate.dt_bias[None], lower_bound)
        self._context = CommitContext([self._pool], [self._records], [], stacked, max_num_rows=rows)
        counts = accepted_geometric(case.mean_accepted, num_steps * rows, T, random.Random(0))
        self._all_accepted = torch.tensor(counts, dtype=torch.int32, device=device).view(num_steps, rows)
        # Entry s is what step s - 1 accepted. Entries lie 16 bytes apart, so that kernels find all aligned alike.
        self._accepted = torch.ones(chunk_steps + 1, -(-rows // 4) * 4, dtype=torch.int32, device=device)[:, :rows]

    def run(self, capture: Capture) -> tuple[Errors, Errors]:
        """Errors by metric and provider after the first chunk and after the last; ``capture`` as a timer's."""
        self._start()
        self._draw(0)
        chunk = capture([self._run_chunk], 1)
        self._start()
        early: Errors = {}
        for first in range(0, self._num_steps, self._chunk_steps):
            self._draw(first)
            chunk()
            _, k, v, raw_gate, raw_beta = self._activations
            advance_states(self._truth, k, v, raw_gate, raw_beta, self._gate, self._accepted[1:])
            early = early or self.errors()
        return early, self.errors()

    def errors(self) -> Errors:
        """Relative Frobenius errors by metric and provider, three digits; None where a state is not finite."""
        last = self._full_slots.gather(1, self._accepted[-1:].T.long() - 1)[:, 0]
        _, num_heads, _, key_dim = self._truth.shape
        parts = {
            "state_error": (slice(None), slice(num_heads // 2)),
            "slow_state_error": (slice(None), slice(num_heads // 2, None), slice(None), slice(key_dim // 4)),
        }
        states = {"recoverssm": self._pool[self._slots.long()], "full_state": self._full_pool[last.long()]}
        found: Errors = {}
        for metric, part in parts.items():
            for provider, state in states.items():
                error = relative_error(state[part], self._truth[part])
                found[metric, provider] = None if error is None else _rounded(error)
        return found

    def _start(self) -> None:
        self._generator = seeded_generator(self._device, 0)
        start = self._normal(*self._truth.shape).to(self._pool.dtype)
        self._truth.copy_(start)
        self._pool[self._slots.long()] = start
        self._full_pool[self._full_slots[:, 0].long()] = start
        self._accepted[-1] = 1

    def _draw(self, first: int) -> None:
        """Activations and acceptance of the steps from ``first`` on."""
        for x in (self._q, self._k, self._v):
            x.copy_(silu(self._normal(*x.shape)))
        self._raw_gate.copy_(self._normal(*self._raw_gate.shape))
        raw_beta = self._normal(*self._raw_beta.shape)
        raw_beta[..., raw_beta.shape[-1] // 2 :] += WEAK_RAW_BETA
        self._raw_beta.copy_(raw_beta)
        self._accepted[0] = self._accepted[-1]
        self._accepted[1:] = self._all_accepted[first : first + self._chunk_steps]

    def _run_chunk(self) -> None:
        gate, starts, slots, out = self._gate, self._query_start_loc, self._slots, self._out
        for step in range(self._chunk_steps):
            q, k, v, raw_gate, raw_beta = (x[step] for x in self._activations)
            verify(q, k, v, raw_gate, raw_beta, self._pool, self._records, gate, starts, slots, out=out)
            self._context.commit(self._accepted[step + 1], starts, slots)
            previous = self._accepted[step]
            full_state_verify(
                q, k, v, raw_gate, raw_beta, self._full_pool, gate, starts, self._full_slots, previous, out=out
            )

    def _normal(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self._generator, device=self._device)


def _rounded(value: float) -> float:
    return float(f"{value:.2e}")
