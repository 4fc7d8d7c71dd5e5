"""``python -m benchmarks.agreement``: every kernel under graph-cold and under nvbench-cold, in one process.

The two contracts time different things (docs/measuring.md says which), so each kernel stands beside a plain stream of
the same bytes: what the contracts differ by there has nothing to do with the kernel.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from .harness.closed_pipes import outlive_readers
from .harness.command_line import CommandLine

if TYPE_CHECKING:
    import torch

    from .cases import BenchCase
    from .harness.measure import Samples
    from .providers import Provider, Series

PASS, USAGE, DISAGREE, BROKEN = 0, 2, 4, 5  # as in ci/exits.py, which this program must not import

LIMIT_PCT, LIMIT_US = 3.0, 3.0  # whichever is larger, beyond what isolation costs a launch on this machine
BATCHES = (1, 32)  # of the set `pr`, in both dtypes
TINY_BYTES = 64  # one line of L2: a launch that does next to nothing

EXAMPLE = "Example: python -m benchmarks.agreement --case '*_b32_*' --out build/agreement.json"

app = CommandLine(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel of one case under both contracts.

    Attributes:
        launch_difference_us: what a launch that does next to nothing differs by: isolation, on this machine.
        stream_difference_us: the same difference for a plain stream of as many bytes; None where none can be cold.
        input_bytes: activations, which are warm under both contracts.
    """

    case: str
    provider: str
    op: str
    graph_us: float
    nvbench_us: float
    launch_difference_us: float
    graph_half_width_pct: float | None
    nvbench_half_width_pct: float | None
    stream_difference_us: float | None
    input_bytes: int
    graph_reason: str
    nvbench_reason: str

    @property
    def difference_us(self) -> float:
        return self.nvbench_us - self.graph_us

    @property
    def limit_us(self) -> float:
        return max(LIMIT_US, LIMIT_PCT / 100 * self.graph_us)

    @property
    def agrees(self) -> bool:
        return abs(self.difference_us - self.launch_difference_us) <= self.limit_us

    def to_json(self) -> dict[str, object]:
        """All fields, and what follows from them."""
        derived = {"difference_us": self.difference_us, "limit_us": self.limit_us, "agrees": self.agrees}
        return asdict(self) | derived


@app.command(epilog=EXAMPLE)
def compare(
    out: Annotated[Path, typer.Option(help="JSON file of the comparison; an older one is replaced.")],
    case: Annotated[str, typer.Option(help="Glob over the cases of 1 and 32 requests of the set pr.")] = "*",
    seed: Annotated[int, typer.Option(help="Of values and slots.")] = 0,
) -> None:
    """Measure every kernel under both cold contracts; agreement is 3 % or 3 us, whichever is larger, beyond what a
    launch that does next to nothing differs by.

    Exit codes: 0 they agree; 2 usage; 4 they disagree; 5 no GPU, no cuda-bench, or a kernel that fails its check.
    """
    import torch

    from .cases import NothingSelectedError, UnknownNameError, select
    from .harness.errors import MeasurementError
    from .harness.nvbench_cold import load_nvbench

    console = Console()
    try:
        cases = [one for one in select("pr", case) if one.num_requests in BATCHES]
    except (NothingSelectedError, UnknownNameError) as error:
        _stop(USAGE, str(error))
    if not torch.cuda.is_available():
        _stop(BROKEN, "no GPU: both contracts need a CUDA device; run `python -m ci doctor`")
    try:
        version = str(load_nvbench().__version__)
        device = torch.device("cuda", torch.cuda.current_device())
        launch_us = launch_difference_us(device)
        rows = []
        for one in cases:
            for row in measure_rows(one, device, seed, launch_us):
                rows.append(row)
                verdict = "agree" if row.agrees else "DISAGREE"
                line = f"{row.case} {row.provider} {row.op}: {row.graph_us:.2f} and {row.nvbench_us:.2f} us: {verdict}"
                console.print(line, markup=False, highlight=False, soft_wrap=True)
    except (MeasurementError, CheckFailedError, torch.OutOfMemoryError) as error:
        _stop(BROKEN, str(error))
    found = {
        "gpu": torch.cuda.get_device_name(device),
        "nvbench": version,
        "launch_difference_us": launch_us,
        "rows": [row.to_json() for row in rows],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
    console.print(table(rows, launch_us), markup=False, highlight=False, soft_wrap=True)
    if apart := [row for row in rows if not row.agrees]:
        limit = f"{LIMIT_PCT:g} % or {LIMIT_US:g} us, whichever is larger, beyond the {launch_us:.2f} us of a launch"
        _stop(DISAGREE, f"{len(apart)} of {len(rows)} rows differ by more than {limit}")


class CheckFailedError(Exception):
    """A kernel is wrong, so its time says nothing."""


def measure_rows(case: "BenchCase", device: "torch.device", seed: int, launch_us: float) -> Iterator[Row]:
    """Every kernel of one case, one provider's memory after the other.

    Args:
        launch_us: from ``launch_difference_us``.
    Raises:
        CheckFailedError: a kernel is wrong.
        MeasurementError: a contract could not be kept.
    """
    from .providers import PROVIDERS

    for provider in PROVIDERS:
        yield from _provider_rows(provider, case, device, seed, launch_us)


def table(rows: Sequence[Row], launch_us: float) -> str:
    """Markdown for docs/measuring.md."""
    lines = [
        "| case | kernel | graph-cold | nvbench-cold | difference | of a stream of its bytes | within |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        stream = "–" if row.stream_difference_us is None else f"{row.stream_difference_us:+.2f} us"
        lines.append(
            f"| `{row.case}` | {row.provider} {row.op} | {row.graph_us:.2f} us | {row.nvbench_us:.2f} us "
            f"| {row.difference_us:+.2f} us ({100 * row.difference_us / row.graph_us:+.1f} %) | {stream} "
            f"| {'yes' if row.agrees else 'NO'}, {row.limit_us:.1f} us |"
        )
    return "\n".join([*lines, "", f"A launch that does next to nothing: {launch_us:+.2f} us."])


def _provider_rows(
    provider: "Provider", case: "BenchCase", device: "torch.device", seed: int, launch_us: float
) -> Iterator[Row]:
    import torch

    from .checks import COMPILED, Checklist, failure_reason
    from .cold_launches import KERNELS
    from .harness.stats.summary import median
    from .providers.base import layer_sizes

    l2_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
    prepared = provider.prepare(case, device, seed, l2_bytes)
    checklist = Checklist(case.name, provider.name, COMPILED)
    prepared.check(checklist)
    if reason := failure_reason(checklist.checks):
        raise CheckFailedError(f"{case.name}: {provider.name}: {reason}")
    num_tokens = case.num_requests * case.shape.spec_query_len
    for series in prepared.series():
        if series.contract == "graph-cold" and series.op in KERNELS:
            input_bytes = num_tokens * layer_sizes(case).input_bytes if series.op == "verify" else 0
            graph, alone = _both(series, device)
            yield Row(
                case=case.name,
                provider=provider.name,
                op=series.op,
                graph_us=median(graph.values_us),
                nvbench_us=median(alone.values_us),
                launch_difference_us=launch_us,
                graph_half_width_pct=_half_width_pct(graph),
                nvbench_half_width_pct=_half_width_pct(alone),
                stream_difference_us=_stream_difference_us(
                    series.cost.read_bytes, series.cost.write_bytes, device, l2_bytes
                ),
                input_bytes=input_bytes,
                graph_reason=graph.stop_reason,
                nvbench_reason=alone.stop_reason,
            )


def _both(series: "Series", device: "torch.device") -> tuple["Samples", "Samples"]:
    from .cold_launches import measure_cold_launches
    from .harness.measure import measure_graph_cold

    graph = measure_graph_cold(series.calls, restore=series.restore, num_kernels=series.num_kernels)
    return graph, measure_cold_launches(series, device)


def _half_width_pct(samples: "Samples") -> float | None:
    from .harness.stats.summary import summarise

    half_width = summarise(samples.values_us).relative_half_width
    return None if half_width is None else 100 * half_width


def launch_difference_us(device: "torch.device") -> float:
    """What the contracts differ by for one program that moves 64 bytes, warm in both: the price of a launch alone."""
    return _difference_us(TINY_BYTES, TINY_BYTES, 1, 1, device)


def _stream_difference_us(read_bytes: int, write_bytes: int, device: "torch.device", l2_bytes: int) -> float | None:
    from .harness.cold_cache import num_rotations
    from .harness.control import BYTES_PER_PROGRAM, MAX_ROTATIONS

    read_bytes, write_bytes = (-(-num_bytes // TINY_BYTES) * TINY_BYTES for num_bytes in (read_bytes, write_bytes))
    rotations = num_rotations(read_bytes + write_bytes, l2_bytes) if read_bytes + write_bytes else MAX_ROTATIONS + 1
    if rotations > MAX_ROTATIONS:
        return None
    num_programs = -(-(read_bytes + write_bytes) // BYTES_PER_PROGRAM)
    return _difference_us(read_bytes, write_bytes, rotations, num_programs, device)


def _difference_us(
    read_bytes: int,
    write_bytes: int,
    rotations: int,
    num_programs: int,
    device: "torch.device",
) -> float:
    import torch

    from recoverssm.cost import Cost

    from .harness.control import BLOCK, stream
    from .harness.stats.summary import median
    from .providers import Series

    num_read, num_write = read_bytes // 4, write_bytes // 4
    src = torch.rand(rotations, max(num_read, 1), device=device)
    dst = torch.zeros(rotations, max(num_write, BLOCK), device=device)
    calls = tuple(partial(stream, src[at], dst[at], num_read, num_write, num_programs) for at in range(rotations))
    series = Series("stream", "graph-cold", calls, Cost(read_bytes, write_bytes, 0))
    graph, alone = _both(series, device)
    return median(alone.values_us) - median(graph.values_us)


def _stop(code: int, message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    outlive_readers()
    app()
