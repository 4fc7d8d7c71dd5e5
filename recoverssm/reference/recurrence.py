"""The KDA recurrence in float64: gate, norms and one token. Formulas: docs/algorithm.md section 1."""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from recoverssm.types import GateParams

NORM_EPS = 1e-6
"""Added to the sum of squares before the square root."""

SOFTPLUS_LINEAR = 20.0
"""softplus(x) is taken as x above this, as the kernels do."""


def unit_key(k: Tensor) -> Tensor:
    """The key over its norm, k / sqrt(sum k^2 + eps)."""
    k = k.double()
    return k * (k.square().sum(-1, keepdim=True) + NORM_EPS).rsqrt()


def scaled_query(q: Tensor) -> Tensor:
    """The normalised query times K^-0.5."""
    return unit_key(q) / math.sqrt(q.shape[-1])


def kda_log_decay(raw_gate: Tensor, gate: GateParams) -> Tensor:
    """The log decay g <= 0 of each key channel, [..., H, K] as raw_gate; decay is exp(g)."""
    x = raw_gate.double() + gate.dt_bias.double()
    gate_scale = gate.A_log.double().exp()[..., None]
    if gate.lower_bound is not None:
        return gate.lower_bound * torch.sigmoid(gate_scale * x)
    return -gate_scale * softplus(x, threshold=SOFTPLUS_LINEAR)


def delta_step(
    state: Tensor, log_decay: Tensor, key: Tensor, query: Tensor, value: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One token of every row and head: S <- S diag(e^g); u = beta (v - S k); S <- S + u k^T; o = S q.

    Args:
        state: S [..., V, K]; log_decay g, key k, query q: [..., K]; value v: [..., V]; beta: [...]. All float64.
    Returns:
        The new state, the correction u [..., V] and the output o [..., V]; ``state`` itself is left alone.
    """
    state = state * log_decay.exp().unsqueeze(-2)
    correction = beta.unsqueeze(-1) * (value - (state @ key.unsqueeze(-1)).squeeze(-1))
    state += correction.unsqueeze(-1) * key.unsqueeze(-2)
    output = (state @ query.unsqueeze(-1)).squeeze(-1)
    return state, correction, output
