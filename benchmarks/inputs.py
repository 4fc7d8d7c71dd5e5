"""Everything a case needs on a device, from a seed: activations, acceptance, slots, states and records.

What a case *is* (how many tokens each request accepts) depends on the case alone, so that every process measures the
same work; the process's seed decides values and which slot a request owns.
"""

import math
import random
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from recoverssm.types import NULL_SLOT, GateParams, KDAShape, Records

from .cases import BenchCase

ACTIVATION_DTYPE = torch.bfloat16
STATE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

NUM_UNOWNED_SLOTS = 2
"""Slots of every pool that no request owns: the null slot and a spare one, which the checks compare bit for bit."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What one step of one case is called with; shared by all layers, so warm as a model's preceding kernel leaves it.

    Attributes:
        num_sampled: [N] int32, accepted tokens of this step (and, in steady state, of the previous one).
        gate: stacked over the case's layers; layer_gates are its views, one per layer.
        accepted: num_sampled as plain integers, for counting bytes.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    raw_gate: Tensor
    raw_beta: Tensor
    query_start_loc: Tensor
    num_sampled: Tensor
    gate: GateParams
    layer_gates: tuple[GateParams, ...]
    accepted: tuple[int, ...]

    @property
    def activations(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k, v, raw_gate and raw_beta, as every verify takes them."""
        return (self.q, self.k, self.v, self.raw_gate, self.raw_beta)

    @property
    def verify_inputs(self) -> tuple[Tensor, ...]:
        """What every verify of the step reads, whichever its layer's state."""
        return (*self.activations, self.gate.A_log, self.gate.dt_bias, self.query_start_loc)


@dataclass(frozen=True, slots=True)
class LayerSet:
    """RecoverSSM's caches of all layers of one model: checkpoints, records and conv windows."""

    checkpoint_states: tuple[Tensor, ...]  # [P, H, V, K] each
    records: tuple[Records, ...]
    conv_states: tuple[Tensor, ...]  # [P, conv_state_len, 3HD] each

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor of the set."""
        records = [tensor for layer in self.records for tensor in (layer.correction, layer.key_gate)]
        return [*self.checkpoint_states, *records, *self.conv_states]


def accepted_minimum_variance(mean: float, num_requests: int, rng: random.Random) -> list[int]:
    """Accepted counts as serving engines synthesise them: the integer part always, the fraction by chance."""
    whole = math.floor(mean)
    return [whole + (rng.random() < mean - whole) for _ in range(num_requests)]


def accepted_geometric(mean: float, num_requests: int, spec_query_len: int, rng: random.Random) -> list[int]:
    """Accepted counts when each draft is accepted with one probability and the first refusal ends the window."""
    probability = draft_probability(mean, spec_query_len)
    counts = []
    for _ in range(num_requests):
        count = 1  # the bonus token
        while count < spec_query_len and rng.random() < probability:
            count += 1
        counts.append(count)
    return counts


def draft_probability(mean: float, spec_query_len: int) -> float:
    """The per-draft probability p with 1 + p + ... + p^(T-1) equal to ``mean``, to 1e-12."""
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        if sum(middle**position for position in range(spec_query_len)) < mean:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def accepted_counts(case: BenchCase) -> tuple[int, ...]:
    """The counts a case is measured with: minimum variance, the same for all cases of equal batch and window."""
    workload = f"{case.num_requests}/{case.shape.spec_query_len}/{case.mean_accepted:.2f}"
    rng = random.Random(zlib.crc32(workload.encode()))
    return tuple(accepted_minimum_variance(case.mean_accepted, case.num_requests, rng))


def seeded_generator(device: torch.device, seed: int) -> torch.Generator | None:
    """Random numbers from ``seed``; None on the meta device, which holds none."""
    return None if device.type == "meta" else torch.Generator(device).manual_seed(seed)


def build_step(case: BenchCase, device: torch.device, generator: torch.Generator | None) -> StepInputs:
    """Activations, acceptance and gate of one step of a case: every row has a full window of T tokens."""
    shape, num_requests, num_layers = case.shape, case.num_requests, case.num_layers
    num_tokens = num_requests * shape.spec_query_len
    heads, key_dim = shape.num_heads, shape.key_dim

    def normal(*size: int) -> Tensor:
        return torch.randn(size, device=device, generator=generator)

    def uniform(low: float, high: float, *size: int) -> Tensor:
        return torch.rand(size, device=device, generator=generator) * (high - low) + low

    accepted = accepted_counts(case)
    # With the bounded gate this spreads per-token decays from exp(-0.002), nearly nothing, to exp(-3.7).
    gate = GateParams(
        A_log=uniform(-0.5, 0.5, num_layers, heads),
        dt_bias=uniform(-8.0, 1.0, num_layers, heads, key_dim),
        lower_bound=case.lower_bound,
    )
    return StepInputs(
        q=silu(normal(num_tokens, heads, key_dim)).to(ACTIVATION_DTYPE),  # after the short conv's SiLU
        k=silu(normal(num_tokens, heads, key_dim)).to(ACTIVATION_DTYPE),
        v=silu(normal(num_tokens, heads, shape.value_dim)).to(ACTIVATION_DTYPE),
        raw_gate=normal(num_tokens, heads, key_dim).to(ACTIVATION_DTYPE),
        raw_beta=normal(num_tokens, heads).to(ACTIVATION_DTYPE),
        query_start_loc=torch.arange(num_requests + 1, dtype=torch.int32, device=device) * shape.spec_query_len,
        num_sampled=torch.tensor(accepted, dtype=torch.int32, device=device),
        gate=gate,
        layer_gates=tuple(
            GateParams(gate.A_log[layer], gate.dt_bias[layer], gate.lower_bound) for layer in range(num_layers)
        ),
        accepted=accepted,
    )


def shuffled_slots(num_slots: int, num_owned: int, device: torch.device, seed: int) -> Tensor:
    """``num_owned`` distinct slots in random order, int32, never the null slot."""
    slots = list(range(NULL_SLOT + 1, num_slots))
    random.Random(seed).shuffle(slots)
    return torch.tensor(slots[:num_owned], dtype=torch.int32, device=device)


def build_state_pools(
    case: BenchCase, num_layers: int, num_slots: int, device: torch.device, generator: torch.Generator | None
) -> tuple[Tensor, ...]:
    """One pool [P, H, V, K] per layer, standard normal, in the case's state dtype."""
    shape = case.shape
    size = (num_layers, num_slots, shape.num_heads, shape.value_dim, shape.key_dim)
    return torch.empty(size, dtype=STATE_DTYPES[case.state_dtype], device=device).normal_(generator=generator).unbind()


def build_records(
    shape: KDAShape, num_layers: int, num_rows: int, device: torch.device, *, history_len: int = 0
) -> tuple[Records, ...]:
    """Records of each layer, full of NaN: what verify does not write stays recognisable."""
    size = (num_layers, num_rows, shape.num_heads, history_len + shape.spec_query_len)
    correction = torch.full((*size, shape.value_dim), math.nan, device=device)
    key_gate = torch.full((*size, 2 * shape.key_dim), math.nan, dtype=ACTIVATION_DTYPE, device=device)
    pairs = zip(correction.unbind(), key_gate.unbind(), strict=True)
    return tuple(Records(*pair, history_len=history_len) for pair in pairs)


def build_conv_states(
    case: BenchCase, num_layers: int, num_slots: int, device: torch.device, generator: torch.Generator | None
) -> tuple[Tensor, ...]:
    """One conv window pool per layer, [P, conv_state_len, 3HD], token-major."""
    size = (num_layers, num_slots, case.shape.conv_state_len, case.shape.conv_channels)
    return torch.empty(size, dtype=ACTIVATION_DTYPE, device=device).normal_(generator=generator).unbind()


def build_layer_set(case: BenchCase, device: torch.device, generator: torch.Generator | None) -> LayerSet:
    """One model's worth of RecoverSSM caches, a pool per layer."""
    num_slots = case.num_requests + NUM_UNOWNED_SLOTS
    return LayerSet(
        checkpoint_states=build_state_pools(case, case.num_layers, num_slots, device, generator),
        records=build_records(case.shape, case.num_layers, case.num_requests, device),
        conv_states=build_conv_states(case, case.num_layers, num_slots, device, generator),
    )
