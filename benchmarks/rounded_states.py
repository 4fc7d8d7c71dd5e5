"""``python -m benchmarks.rounded_states``: what the format of a state costs over many steps, on a CPU.

The float64 reference, with states rounded at the end of every step as commit rounds them and in no other place: kernels
cannot do better, whichever they are. Inputs as in long_runs.py, one head that is written as usual and one weakly.
"""

import random
from collections.abc import Callable, Iterable
from typing import Annotated

import torch
import typer
from torch import Tensor
from torch.nn.functional import silu

from recoverssm.reference.recurrence import delta_step, kda_log_decay, scaled_query, unit_key
from recoverssm.types import GateParams

from .harness.command_line import CommandLine
from .inputs import accepted_geometric
from .long_runs import DT_BIAS, WEAK_RAW_BETA

T, MEAN_ACCEPTED = 8, 3.84
HEADS = {"usual": 0.0, "weak": WEAK_RAW_BETA}
"""Added to raw beta, by head."""

app = CommandLine(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def stochastically_rounded(state: Tensor) -> Tensor:
    """To bf16, up or down with the odds of how near each is; draws from torch's global generator."""
    bits = state.float().view(torch.int32)
    return ((bits + torch.randint_like(bits, 1 << 16)) & -(1 << 16)).view(torch.float32)


FORMATS: dict[str, Callable[[Tensor], Tensor]] = {
    "float64": torch.clone,
    "fp32": Tensor.float,
    "bf16": Tensor.bfloat16,
    "fp16": Tensor.half,
    "bf16, stochastic": stochastically_rounded,
}


@app.command(epilog="Example: python -m benchmarks.rounded_states --steps 10000 --unbounded")
def show(
    steps: Annotated[int, typer.Option(min=1, help="Steps of T = 8, 3.84 accepted on average.")] = 10_000,
    unbounded: Annotated[bool, typer.Option("--unbounded", help="The unbounded gate; else the bound is -5.")] = False,
) -> None:
    """Print relative errors of states by format and head, after powers of ten of steps."""
    torch.set_num_threads(1)
    marks = {10**power for power in range(1, 9) if 10**power < steps} | {steps}
    typer.echo(f"{'steps':>6} {'head':>6}  " + "  ".join(f"{name:>16}" for name in list(FORMATS)[1:]))
    for step, errors in rounded_chain(steps, marks, None if unbounded else -5.0):
        for head, row in zip(HEADS, errors.T.tolist(), strict=True):
            typer.echo(f"{step:>6} {head:>6}  " + "  ".join(f"{error:>16.2e}" for error in row))


def rounded_chain(
    num_steps: int, marks: set[int], lower_bound: float | None, size: int = 128
) -> Iterable[tuple[int, Tensor]]:
    """Errors [formats but float64, heads] after each step of ``marks``; states of ``size`` value rows and channels."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    num_heads = len(HEADS)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    gate = GateParams(torch.zeros(num_heads), torch.linspace(*DT_BIAS, size).repeat(num_heads, 1), lower_bound)
    raw_beta_shift = torch.tensor(list(HEADS.values()))
    start = draw(num_heads, size, size).bfloat16().double()
    states = torch.stack([start] * len(FORMATS))  # [formats, H, V, K]
    counts = accepted_geometric(MEAN_ACCEPTED, num_steps, T, random.Random(0))
    for step, accepted in enumerate(counts, start=1):
        k, v = (silu(draw(accepted, num_heads, size)).bfloat16() for _ in range(2))
        key, value = unit_key(k), v.double()
        log_decay = kda_log_decay(draw(accepted, num_heads, size).bfloat16(), gate)
        beta = (draw(accepted, num_heads) + raw_beta_shift).bfloat16().double().sigmoid()
        for t in range(accepted):
            states, _, _ = delta_step(states, log_decay[t], key[t], scaled_query(key[t]), value[t], beta[t])
        states = torch.stack([rounded(state).double() for rounded, state in zip(FORMATS.values(), states, strict=True)])
        if step in marks:
            truth = states[:1]
            yield step, (states[1:] - truth).flatten(2).norm(dim=2) / truth.flatten(2).norm(dim=2)


if __name__ == "__main__":
    app()
