"""The second witness: one request, one head, one channel at a time in plain Python floats. Shares no code with the
library, neither the windows nor the algebra."""

import math


def gate(raw, a_log, bias, lower_bound):
    """Log decay of one channel."""
    x = raw + bias
    if lower_bound is not None:
        return lower_bound / (1 + math.exp(-math.exp(a_log) * x))
    return -math.exp(a_log) * (x if x > 20 else math.log1p(math.exp(x)))


def unit(x):
    norm = math.sqrt(sum(c * c for c in x) + 1e-6)
    return [c / norm for c in x]


def token(state, q, k, v, raw_gate, raw_beta, a_log, bias, lower_bound):
    """One token of one head; ``state`` is a list of V rows of K floats, changed in place.

    Returns the output and the correction, V floats each.
    """
    num_k, num_v = len(k), len(v)
    k_unit = unit(k)
    q_unit = [c * num_k**-0.5 for c in unit(q)]
    beta = 1 / (1 + math.exp(-raw_beta))
    out, correction = [], []
    for i in range(num_v):
        row = state[i]
        for j in range(num_k):
            row[j] *= math.exp(gate(raw_gate[j], a_log, bias[j], lower_bound))
        u = beta * (v[i] - sum(row[j] * k_unit[j] for j in range(num_k)))
        for j in range(num_k):
            row[j] += u * k_unit[j]
        correction.append(u)
        out.append(sum(row[j] * q_unit[j] for j in range(num_k)))
    return out, correction


def window(state, q, k, v, raw_gate, raw_beta, gate_params):
    """The tokens of one request, all heads; ``state`` [H][V][K] nested lists, changed in place.

    Returns out [q][H][V], correction [q][H][V] and the state after each token [q][H][V][K].
    """
    a_log, bias = gate_params.A_log.tolist(), gate_params.dt_bias.tolist()
    outs, corrections, states = [], [], []
    for t in range(len(q)):
        pairs = [
            token(
                state[h], q[t][h], k[t][h], v[t][h], raw_gate[t][h], raw_beta[t][h],
                a_log[h], bias[h], gate_params.lower_bound,
            )
            for h in range(len(state))
        ]  # fmt: skip
        outs.append([out for out, _ in pairs])
        corrections.append([u for _, u in pairs])
        states.append([[list(row) for row in head] for head in state])
    return outs, corrections, states


def conv(history, x, weight):
    """One request: history [width - 1][C], x [q][C], weight [C][width]. Returns out [q][C] and all raw tokens."""
    sequence = [list(h) for h in history] + [list(row) for row in x]
    out = []
    for t in range(len(x)):
        sums = [sum(w * sequence[t + i][c] for i, w in enumerate(taps)) for c, taps in enumerate(weight)]
        out.append([y / (1 + math.exp(-y)) for y in sums])
    return out, sequence
