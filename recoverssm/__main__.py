"""Command line: what a model's state costs and what a memory budget holds, under full state and RecoverSSM.

Needs no GPU. Exit codes: 0 done, 2 bad arguments.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from recoverssm.capacity import DTYPES, Setting, capacity_lines, capacity_report
from recoverssm.errors import ConfigError
from recoverssm.layout import GIB, layer_bytes
from recoverssm.models import MODELS, ModelShape

STATE_DTYPES = ("bf16", "fp32")
ACTIVATION_DTYPES = ("bf16", "fp16", "fp32")
ATTENTION_DTYPES = ("fp8", "bf16", "fp16", "fp32")
MODEL_SIZES = {
    "num_kda_layers": "layers with a recurrent state",
    "num_attention_layers": "layers with a KV cache, 0 for none",
    "num_heads": "KDA heads before tensor parallelism",
    "key_dim": "K",
    "value_dim": "V",
    "conv_width": "taps of the short convolution",
    "attention_row_elements": "cache elements of a token in an attention layer",
}
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
  python -m recoverssm capacity --placement scratch --max-num-seqs 256 --json
  python -m recoverssm capacity --num-heads 32 --num-kda-layers 20 --num-attention-layers 7 --tp 4   another model"""
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
        "--dp",
        type=_positive_int,
        default=1,
        metavar="N",
        help="replicas, each with requests and a budget of its own (default %(default)s)",
    )
    capacity.add_argument(
        "--activation-dtype",
        choices=ACTIVATION_DTYPES,
        default="bf16",
        help="conv windows, keys and gates (default %(default)s)",
    )
    capacity.add_argument(
        "--attention-dtype", choices=ATTENTION_DTYPES, default="fp8", help="attention cache (default %(default)s)"
    )
    capacity.add_argument(
        "--block-tokens",
        type=_positive_int,
        default=0,
        metavar="TOKENS",
        help="tokens of an attention block (default: as many as fill a KDA page)",
    )
    capacity.add_argument(
        "--page-bytes",
        type=_positive_int,
        default=0,
        metavar="BYTES",
        help="bytes of every page, padding included (default: as many as needed)",
    )
    capacity.add_argument(
        "--placement",
        choices=("page", "scratch"),
        help="records in every KDA page, or in scratch of --max-num-seqs rows (default: page, and scratch "
        "with --commit deferred)",
    )
    capacity.add_argument(
        "--cache-mode",
        choices=("align", "none"),
        default="align",
        help="prefix caching at block boundaries, or none (default %(default)s)",
    )
    capacity.add_argument(
        "--commit",
        choices=("every_step", "deferred"),
        default="every_step",
        help="accepted tokens go into states at once, or wait in the records: twice the scratch (default %(default)s)",
    )
    capacity.add_argument(
        "--max-num-seqs",
        type=_positive_int,
        default=32,
        metavar="N",
        help="requests of a batch: sizes scratch and the memory comparison (default %(default)s)",
    )
    sizes = capacity.add_argument_group("another model", "sizes in the place of those of --model")
    for name, meaning in MODEL_SIZES.items():
        sizes.add_argument(f"--{name.replace('_', '-')}", type=_whole, metavar="N", help=meaning)
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
        "--state-dtype", choices=STATE_DTYPES, default="fp32", help="recurrent state (default %(default)s)"
    )
    command.add_argument("--json", action="store_true", help="print JSON with every term")


def _whole(text: str, kind: str = "whole") -> int:
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS:
        raise argparse.ArgumentTypeError(
            f"expected a {kind} number of at most {MAX_DIGITS} digits, got {_shortened(text)}"
        )
    return int(text)


def _positive_int(text: str) -> int:
    value = _whole(text, "positive whole")
    if value == 0:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {_shortened(text)}")
    return value


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
    report = capacity_report(
        Setting(
            model=_model(args),
            tensor_parallel=args.tp,
            data_parallel=args.dp,
            draft_tokens=args.draft_tokens,
            state_dtype=args.state_dtype,
            activation_dtype=args.activation_dtype,
            attention_dtype=args.attention_dtype,
            max_model_len=args.max_model_len,
            budget_bytes=int(args.budget_gib * GIB),
            placement=args.placement or ("scratch" if args.commit == "deferred" else "page"),
            cache_mode=args.cache_mode,
            commit=args.commit,
            max_num_seqs=args.max_num_seqs,
            block_tokens=args.block_tokens,
            page_bytes=args.page_bytes,
        )
    )
    return report, capacity_lines(report)


def _model(args: argparse.Namespace) -> ModelShape:
    """The model named, with the sizes that were given in the place of its own."""
    model = MODELS[args.model]
    given = {name: value for name in MODEL_SIZES if (value := getattr(args, name)) is not None}
    if not given:
        return model
    changes = ", ".join(f"{name}={value}" for name, value in given.items())
    return replace(model, name=f"{model.name} ({changes})", source=f"{model.source}; changed: {changes}", **given)


def _shapes(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    model, state_dtype = MODELS[args.model], DTYPES[args.state_dtype]
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


if __name__ == "__main__":
    sys.exit(main())
