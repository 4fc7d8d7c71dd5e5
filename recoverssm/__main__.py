"""Command line: what a model's state costs and what a memory budget holds, under full state and RecoverSSM.

Needs no GPU. Exit codes: 0 done, 2 bad arguments.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from recoverssm.errors import ConfigError
from recoverssm.layout import (
    GIB,
    MODELS,
    CapacityPlan,
    LayerBytes,
    ModelShape,
    StateBytes,
    layer_bytes,
    plan_capacity,
    state_bytes,
)

STATE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MAX_DIGITS = 12  # of a count; longer is a typing error, and would leave the exact range of a float
MAX_BUDGET_GIB = 1e9
TENSOR_PARALLEL_SIZES = (1, 2, 4, 8, 16)

DESCRIPTION = "Bytes and capacity of RecoverSSM beside full state. Computed, so no GPU is needed."
CAPACITY_DESCRIPTION = """\
How many tokens of full-length requests one rank's cache budget holds, and the memory that the state of a batch takes,
under full state (T = 1 + drafts states a request) and RecoverSSM (one state and its records). The defaults are the
setting of the published +10.97 %."""
CAPACITY_EXAMPLES = """\
examples:
  python -m recoverssm capacity --model kimi-k3 --tp 8 --draft-tokens 7 --max-model-len 262144 --budget-gib 46.48
  python -m recoverssm capacity --tp 1 --draft-tokens 7 --max-num-seqs 4        DP + EP16: 12.155 GB of extra states
  python -m recoverssm capacity --placement scratch --max-num-seqs 256 --json"""
SHAPES_DESCRIPTION = "The models known here and the bytes of one KDA layer on one rank, by tensor parallel size."
SHAPES_EXAMPLES = """\
example:
  python -m recoverssm shapes --draft-tokens 7 --state-dtype bf16"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        args = _parser().parse_args(argv)
    except SystemExit as stop:  # argparse has printed help (0) or the error (2)
        return int(stop.code or 0)
    command = {"capacity": _capacity, "shapes": _shapes}[args.command]
    try:
        report, lines = command(args)
    except ConfigError as error:
        print(f"recoverssm {args.command}: error: {error}", file=sys.stderr)
        return 2
    try:
        print(json.dumps(report, indent=2, allow_nan=False) if args.json else "\n".join(lines), flush=True)
    except BrokenPipeError:  # the reader has gone, as `head` does; at its end Python would write again, and exit 120
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="recoverssm", description=DESCRIPTION, epilog=CAPACITY_EXAMPLES, formatter_class=_HelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    capacity = commands.add_parser(
        "capacity",
        help="what a cache budget holds",
        description=CAPACITY_DESCRIPTION,
        epilog=CAPACITY_EXAMPLES,
        formatter_class=_HelpFormatter,
    )
    _add_common(capacity)
    capacity.add_argument("--tp", type=int, default=8, metavar="N", help="tensor parallel size (default %(default)s)")
    capacity.add_argument(
        "--max-model-len",
        type=_positive_int,
        default=262_144,
        metavar="TOKENS",
        help="tokens of one full-length request (default %(default)s)",
    )
    capacity.add_argument(
        "--budget-gib",
        type=_budget_gib,
        default=46.48,
        metavar="GIB",
        help="cache memory of one rank in GiB (default %(default)s)",
    )
    capacity.add_argument(
        "--placement",
        choices=("page", "scratch"),
        default="page",
        help="records in every KDA page, or in scratch of --max-num-seqs rows (default %(default)s)",
    )
    capacity.add_argument(
        "--cache-mode",
        choices=("align", "none"),
        default="align",
        help="prefix caching at block boundaries, or none (default %(default)s)",
    )
    capacity.add_argument(
        "--max-num-seqs",
        type=_positive_int,
        default=32,
        metavar="N",
        help="requests of a batch: sizes scratch and the memory comparison (default %(default)s)",
    )
    shapes = commands.add_parser(
        "shapes",
        help="models and bytes of one layer",
        description=SHAPES_DESCRIPTION,
        epilog=SHAPES_EXAMPLES,
        formatter_class=_HelpFormatter,
    )
    _add_common(shapes)
    return parser


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps descriptions and examples as they are written."""


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", choices=sorted(MODELS), default="kimi-k3", help="model (default %(default)s)")
    command.add_argument(
        "--draft-tokens", type=int, default=7, metavar="N", help="drafts a step; T is one more (default 7)"
    )
    command.add_argument(
        "--state-dtype", choices=sorted(STATE_DTYPES), default="fp32", help="recurrent state (default %(default)s)"
    )
    command.add_argument("--json", action="store_true", help="print JSON with every term")


def _positive_int(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS or int(text) == 0:
        raise argparse.ArgumentTypeError(
            f"expected a positive whole number of at most {MAX_DIGITS} digits, got {_shortened(text)}"
        )
    return int(text)


def _budget_gib(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MAX_BUDGET_GIB:
        raise argparse.ArgumentTypeError(f"expected a positive number up to {MAX_BUDGET_GIB:g}, got {_shortened(text)}")
    return value


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def _capacity(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    model, state_dtype = MODELS[args.model], STATE_DTYPES[args.state_dtype]
    plan = plan_capacity(
        model,
        tensor_parallel=args.tp,
        draft_tokens=args.draft_tokens,
        max_model_len=args.max_model_len,
        budget_bytes=int(args.budget_gib * GIB),
        placement=args.placement,
        cache_mode=args.cache_mode,
        max_num_seqs=args.max_num_seqs,
        state_dtype=state_dtype,
    )
    shape = model.layer_shape(tensor_parallel=args.tp, draft_tokens=args.draft_tokens)
    full_state, ours = (
        state_bytes(shape, args.max_num_seqs, model.num_kda_layers, state_dtype, scheme=scheme)
        for scheme in ("full_state", "recoverssm")
    )
    saved_bytes = full_state.total - ours.total
    report = {
        "setting": {
            "model": model.name,
            "tensor_parallel": args.tp,
            "heads_per_rank": shape.num_heads,
            "draft_tokens": args.draft_tokens,
            "spec_query_len": shape.spec_query_len,
            "state_dtype": args.state_dtype,
            "placement": args.placement,
            "cache_mode": args.cache_mode,
            "max_model_len": args.max_model_len,
            "budget_bytes": int(args.budget_gib * GIB),
            "max_num_seqs": args.max_num_seqs,
            "num_kda_layers": model.num_kda_layers,
            "source": model.source,
        },
        "layer_bytes": asdict(layer_bytes(shape, state_dtype=state_dtype)),
        "capacity": asdict(plan),
        "state_bytes": {"full_state": _with_total(full_state), "recoverssm": _with_total(ours)},
        "extra_state_bytes": full_state.recurrent_state - ours.recurrent_state,
        "memory_saved_bytes": saved_bytes,
        "memory_saved_pct": 100 * saved_bytes / full_state.total,
        "capacity_gain_pct": plan.capacity_gain_pct,
        "net_capacity_gain_pct": plan.net_gain_pct,
    }
    return report, _capacity_lines(args, model, plan, full_state, ours)


def _with_total(held: StateBytes) -> dict[str, int]:
    return asdict(held) | {"total": held.total}


def _capacity_lines(
    args: argparse.Namespace, model: ModelShape, plan: CapacityPlan, full_state: StateBytes, ours: StateBytes
) -> list[str]:
    shape = model.layer_shape(tensor_parallel=args.tp, draft_tokens=args.draft_tokens)
    pieces = layer_bytes(shape, state_dtype=STATE_DTYPES[args.state_dtype])
    saved_bytes = full_state.total - ours.total
    extra_bytes = full_state.recurrent_state - ours.recurrent_state
    return [
        f"{model.name} at TP {args.tp}: {shape.num_heads} heads per rank, {model.num_kda_layers} KDA layers, "
        f"T = {shape.spec_query_len} (drafts + 1), {args.state_dtype} state, records in {args.placement}",
        "",
        *_layer_lines(pieces, plan),
        "",
        *_block_lines(args, plan),
        "",
        f"Bytes of the state of {args.max_num_seqs} requests, all KDA layers",
        _row("recurrent states", full_state.recurrent_state, ours.recurrent_state, "T states a request, or one"),
        _row("conv states", full_state.conv_state, ours.conv_state),
        _row("records", full_state.records, ours.records),
        _row("total", full_state.total, ours.total),
        _row(
            "saved", "", saved_bytes, f"{_gb(saved_bytes)}, {100 * saved_bytes / full_state.total:.1f} % of full state"
        ),
        _row("extra states", extra_bytes, "", f"{_gb(extra_bytes)} that full state keeps beyond one a request"),
    ]


def _layer_lines(pieces: LayerBytes, plan: CapacityPlan) -> list[str]:
    return [
        _row("Bytes of one layer", "full state", "RecoverSSM"),
        _row("conv state", pieces.conv_state, pieces.conv_state),
        _row("recurrent state", pieces.recurrent_state, pieces.recurrent_state),
        _row("correction record", "", pieces.correction, "u of T tokens, fp32"),
        _row("key/gate record", "", pieces.key_gate, "key and raw gate of T tokens, bf16"),
        _row(
            "KDA page", plan.full_state.kda_page_bytes, plan.recoverssm.kda_page_bytes, "what one slot holds of these"
        ),
    ]


def _block_lines(args: argparse.Namespace, plan: CapacityPlan) -> list[str]:
    full_state, ours = plan.full_state, plan.recoverssm
    lines = [
        f"A budget of {args.budget_gib:g} GiB, requests of {args.max_model_len:,} tokens, cache mode {args.cache_mode}",
        _row(
            "tokens of a block",
            full_state.block_tokens,
            ours.block_tokens,
            "grown until an attention page holds a KDA page",
        ),
        _row("bytes of a page", full_state.page_bytes, ours.page_bytes, "one layer; all cache groups share it"),
        _row("blocks of a request", full_state.blocks_per_request, ours.blocks_per_request),
        _row("blocks in the pool", full_state.num_blocks, ours.num_blocks),
        _row("tokens", round(full_state.capacity_tokens), round(ours.capacity_tokens), "block counts not floored"),
        _row(
            "capacity gain",
            "",
            f"{plan.capacity_gain_pct:+.2f} %",
            f"{plan.whole_block_gain_pct:+.2f} % in whole blocks",
        ),
    ]
    if args.placement == "scratch":
        lines += [
            _row("scratch, bytes", "", plan.scratch_bytes, f"records of {args.max_num_seqs} rows, all KDA layers"),
            _row("net capacity gain", "", f"{plan.net_gain_pct:+.2f} %", "with scratch taken out of the same budget"),
        ]
    return lines


def _shapes(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    model, state_dtype = MODELS[args.model], STATE_DTYPES[args.state_dtype]
    sizes = [tp for tp in TENSOR_PARALLEL_SIZES if model.num_heads % tp == 0]
    by_tp = {tp: model.layer_shape(tensor_parallel=tp, draft_tokens=args.draft_tokens) for tp in sizes}
    pieces = {tp: layer_bytes(shape, state_dtype=state_dtype) for tp, shape in by_tp.items()}
    report = {
        "model": asdict(model),
        "spec_query_len": 1 + args.draft_tokens,
        "state_dtype": args.state_dtype,
        "layer_bytes": [
            {"tensor_parallel": tp, "heads_per_rank": by_tp[tp].num_heads, **asdict(pieces[tp])} for tp in sizes
        ],
    }
    columns = ("tp", "heads", "conv state", "recurrent state", "correction", "key/gate")
    lines = [
        f"{model.name}: {model.num_layers} layers = {model.num_kda_layers} KDA + {model.num_attention_layers} MLA, "
        f"{model.num_heads} KDA heads, K = {model.key_dim}, V = {model.value_dim}, conv width {model.conv_width}",
        f"source: {model.source}",
        "",
        f"Bytes of one KDA layer on one rank, T = {1 + args.draft_tokens}, {args.state_dtype} state",
        "  " + "".join(f"{name:>17}" for name in columns),
    ]
    for tp in sizes:
        piece = pieces[tp]
        numbers = (tp, by_tp[tp].num_heads, piece.conv_state, piece.recurrent_state, piece.correction, piece.key_gate)
        lines.append("  " + "".join(f"{number:>17,}" for number in numbers))
    return report, lines


def _row(name: str, full_state: int | str, ours: int | str, note: str = "") -> str:
    """One line of a two-column table; integers get thousands separators."""
    cells = [f"{cell:,}" if isinstance(cell, int) else cell for cell in (full_state, ours)]
    indent = "" if cells == ["full state", "RecoverSSM"] else "  "
    return f"{indent + name:<22}{cells[0]:>18}{cells[1]:>18}  {note}".rstrip()


def _gb(count: int) -> str:
    return f"{count / 1e9:,.3f} GB"


if __name__ == "__main__":
    sys.exit(main())
