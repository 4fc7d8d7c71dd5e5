"""``python -m benchmarks.launch_once``: one launch of each op of some cases between profiler marks, for Nsight Compute.

Each op is called once before, so that it is compiled and its inputs are as a step leaves them; then once more between
cudaProfilerStart and cudaProfilerStop. A listing says which launch was which op's, and what it should read and write.
"""

import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from .cases import BenchCase, kimi_k3, select
from .compile_first import small
from .harness.command_line import CommandLine
from .providers import PROVIDERS, Provider, Series

ONE_KERNEL_OPS = ("verify", "commit_plan", "commit_state", "conv")
"""Ops that launch one kernel; the others are made of these."""

COUNTED_L2S = 4
"""Modelled and counted reads are compared where an op reads at least so many times the L2."""

_NAME = re.compile(r"kimi_k3_tp(\d+)_b(\d+)_t(\d+)_a(\d+\.\d+)_(fp32|bf16)(_unbounded)?")

app = CommandLine(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog="Example: ncu --profile-from-start off python -m benchmarks.launch_once --set pr --listing l.json")
def run(
    listing: Annotated[Path, typer.Option(help="JSON file to write: what was launched, in order.")],
    case_set: Annotated[str | None, typer.Option("--set", help="All cases of this set that --case matches.")] = None,
    case: Annotated[str, typer.Option(help="Glob over case names; without --set, one name of any size.")] = "*",
    op: Annotated[str | None, typer.Option(help="Only this op; all that are one kernel if left out.")] = None,
    provider: Annotated[str | None, typer.Option(help="Only this provider.")] = None,
    large: Annotated[bool, typer.Option(help="Also cases that read at least four times this card's L2.")] = False,
) -> None:
    """Launch each op of each case once between profiler marks. Exit codes: 0 done, 2 usage, 5 no GPU."""
    if not torch.cuda.is_available():
        typer.echo("no GPU: torch sees none", err=True)
        raise typer.Exit(5)
    device = torch.device("cuda", torch.cuda.current_device())
    l2_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
    try:
        cases = select(case_set, case) if case_set else [case_named(case)]
    except LookupError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    cases += large_cases(l2_bytes) if large else []
    launched = []
    for one in cases:
        for implementation in PROVIDERS:
            if provider in (None, implementation.name):
                launched += _launch(implementation, one, device, op)
                torch.cuda.empty_cache()
    listing.write_text(json.dumps({"l2_bytes": l2_bytes, "launches": launched}), encoding="utf-8")
    if not launched:
        typer.echo(f"nothing to launch: no op {op!r} of provider {provider!r} that is one kernel", err=True)
        raise typer.Exit(2)


def case_named(name: str) -> BenchCase:
    """The case of this name, whether it is in a set or not.

    Raises:
        LookupError: no such name can be read.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise LookupError(f"--case: expected a name like kimi_k3_tp8_b32_t8_a3.84_fp32, got {name!r}")
    tp, num_requests, window = (int(match[group]) for group in (1, 2, 3))
    try:
        return kimi_k3(tp, num_requests, window, float(match[4]), match[5], bounded=match[6] is None)
    except (KeyError, ValueError) as error:
        raise LookupError(f"--case: {name!r}: no such placement or window: {error}") from error


def large_cases(l2_bytes: int) -> list[BenchCase]:
    """All heads on one rank, the batch a power of two so large that one verify reads four times the L2; few layers."""
    found = []
    for state_dtype, itemsize in (("fp32", 4), ("bf16", 2)):
        num_requests = 1
        shape = kimi_k3(1, 1, 8, 3.84, state_dtype).shape
        state_bytes = shape.num_heads * shape.value_dim * shape.key_dim * itemsize
        while num_requests * state_bytes < COUNTED_L2S * l2_bytes:
            num_requests *= 2
        found.append(small(kimi_k3(1, num_requests, 8, 3.84, state_dtype)))
    return found


def _launch(provider: Provider, case: BenchCase, device: torch.device, op: str | None) -> Sequence[dict[str, object]]:
    prepared = provider.prepare(case, device, zlib.crc32(case.name.encode()), 0)
    chosen: dict[str, Series] = {}
    for series in prepared.series():
        if series.op in ONE_KERNEL_OPS and series.num_kernels == 1 and op in (None, series.op):
            chosen.setdefault(series.op, series)
    found = []
    for name in ONE_KERNEL_OPS:  # verify first: commit reads its records
        if name not in chosen:
            continue
        launch = chosen[name].calls[0]
        launch()
        torch.cuda.synchronize(device)
        torch.cuda.profiler.start()
        launch()
        torch.cuda.synchronize(device)
        torch.cuda.profiler.stop()
        found.append(
            {
                "case": case.name,
                "provider": provider.name,
                "op": name,
                "model_read_bytes": chosen[name].cost.read_bytes,
                "model_write_bytes": chosen[name].cost.write_bytes,
            }
        )
    return found


if __name__ == "__main__":
    app()
