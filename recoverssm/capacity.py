"""What a model's state costs and what a memory budget holds, as one report: every term of it with its explanation.

The table is a view of the report, so that what a person and what a program read cannot differ.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, get_args

import torch

from recoverssm.errors import ConfigError
from recoverssm.layout import (
    CacheMode,
    CapacityPlan,
    CommitMode,
    Placement,
    layer_bytes,
    plan_capacity,
    state_bytes,
)
from recoverssm.models import ModelShape

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}
)
SCHEMES = ("full_state", "recoverssm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is asked: a model on some ranks, its dtypes (keys of DTYPES) and windows, and the memory of one rank."""

    model: ModelShape
    tensor_parallel: int
    data_parallel: int
    draft_tokens: int
    state_dtype: str
    activation_dtype: str
    attention_dtype: str
    max_model_len: int
    budget_bytes: int
    placement: Placement
    cache_mode: CacheMode
    commit: CommitMode
    max_num_seqs: int
    block_tokens: int
    page_bytes: int

    def plan(self, placement: Placement) -> CapacityPlan:
        """What the budget holds with records there.

        Raises:
            ConfigError: as ``plan_capacity``.
        """
        return plan_capacity(
            self.model,
            tensor_parallel=self.tensor_parallel,
            draft_tokens=self.draft_tokens,
            max_model_len=self.max_model_len,
            budget_bytes=self.budget_bytes,
            placement=placement,
            cache_mode=self.cache_mode,
            commit=self.commit,
            max_num_seqs=self.max_num_seqs,
            state_dtype=DTYPES[self.state_dtype],
            activation_dtype=DTYPES[self.activation_dtype],
            attention_itemsize=DTYPES[self.attention_dtype].itemsize,
            block_tokens=self.block_tokens,
            page_bytes=self.page_bytes,
        )


TERMS: Mapping[str, str] = MappingProxyType(
    {
        "setting.model": "name of the model; with a mark where sizes of it were changed",
        "setting.model_shape": "layers, heads and channels before parallelism, and where they come from",
        "setting.tensor_parallel": "ranks that share the KDA heads of a layer; attention rows are not split",
        "setting.data_parallel": "replicas, each with requests and a budget of its own",
        "setting.heads_per_rank": "H, KDA heads of a layer on one rank",
        "setting.draft_tokens": "most drafts of a request and step",
        "setting.spec_query_len": "T, drafts and one token more",
        "setting.state_dtype": "of recurrent states",
        "setting.activation_dtype": "of conv windows and of the key/gate record",
        "setting.attention_dtype": "of attention cache rows",
        "setting.placement": "where records lie: in every KDA page, or in scratch of max_num_seqs rows",
        "setting.cache_mode": "align keeps states at block ends for prefix caching; none the running ones alone",
        "setting.commit": "every_step, or deferred: records of 2T tokens a row, half of which may wait",
        "setting.max_model_len": "tokens of one full-length request",
        "setting.budget_bytes": "cache memory of one rank",
        "setting.max_num_seqs": "requests of a batch",
        "setting.block_tokens": "tokens of a block as asked for; 0 for as many as a KDA page needs",
        "setting.page_bytes": "bytes of a page as asked for; 0 for as many as needed",
        "setting.num_kda_layers": "layers with a recurrent state",
        "setting.source": "where the model's sizes come from",
        "layer_bytes.conv_state": "width - 1 + drafts tokens of raw q, k and v",
        "layer_bytes.recurrent_state": "H x V x K elements",
        "layer_bytes.correction": "u of T tokens, fp32: H x T x V",
        "layer_bytes.key_gate": "key and raw gate of T tokens: H x T x 2K",
        "capacity.kda_page_bytes": "what one slot holds of these",
        "capacity.block_tokens": "grown until an attention page holds a KDA page, unless given; 0: no attention layers",
        "capacity.page_bytes": "one layer; all cache groups share it",
        "capacity.blocks_per_request": "ceil(length / tokens of a block), and the states of each KDA group",
        "capacity.pool_bytes": "the part of the budget that is cut into blocks",
        "capacity.num_blocks": "whole ones; a block is a page in each layer of a group",
        "capacity.capacity_tokens": "blocks / blocks of a request x length, block counts not floored",
        "capacity.whole_block_tokens": "the same from whole blocks",
        "capacity.scratch_bytes": "records of max_num_seqs rows, all KDA layers; twice as long with deferred commits",
        "capacity.capacity_gain_pct": "tokens over those of full state; the published definition",
        "capacity.whole_block_gain_pct": "the same from whole blocks",
        "capacity.net_gain_pct": "with scratch taken out of the same budget",
        "placements.capacity_gain_pct": "as capacity_gain_pct, with records there",
        "placements.net_gain_pct": "as net_capacity_gain_pct, with records there",
        "placements.page_bytes": "of RecoverSSM, with records there",
        "placements.scratch_bytes": "records outside pages",
        "placements.refused": "why the budget cannot have records there",
        "state_bytes.recurrent_state": "T states a request, or one",
        "state_bytes.conv_state": "one window a request",
        "state_bytes.correction": "u of every request's window; with deferred commits of what waits before it too",
        "state_bytes.key_gate": "key and raw gate of every request's window; with deferred commits likewise",
        "state_bytes.total": "all of these",
        "all_replicas.capacity_tokens": "capacity_tokens of every replica together",
        "all_replicas.memory_saved_bytes": "memory_saved_bytes of one rank of every replica together",
        "extra_state_bytes": "states that full state keeps beyond one a request",
        "memory_saved_bytes": "total of full state less that of RecoverSSM",
        "memory_saved_pct": "the same in percent of full state",
        "capacity_gain_pct": "capacity.capacity_gain_pct",
        "net_capacity_gain_pct": "capacity.net_gain_pct",
    }
)
"""What each number of the report is, by its place there; the names of schemes and placements are left out."""


def capacity_report(setting: Setting) -> dict[str, Any]:
    """Everything about one setting, JSON-ready; explanations are under "terms".

    Raises:
        ConfigError: a size is out of range, or the budget is too small.
    """
    if setting.data_parallel < 1:
        raise ConfigError(f"data_parallel: expected at least 1, got {setting.data_parallel}")
    model = setting.model
    shape = model.layer_shape(tensor_parallel=setting.tensor_parallel, draft_tokens=setting.draft_tokens)
    dtypes = {"state_dtype": DTYPES[setting.state_dtype], "activation_dtype": DTYPES[setting.activation_dtype]}
    plan = setting.plan(setting.placement)
    full_state, ours = (
        state_bytes(
            shape,
            setting.max_num_seqs,
            model.num_kda_layers,
            scheme=scheme,  # type: ignore[arg-type]
            commit=setting.commit,
            **dtypes,  # type: ignore[arg-type]
        )
        for scheme in SCHEMES
    )
    saved_bytes = full_state.total - ours.total
    derived = {
        "heads_per_rank": shape.num_heads,
        "spec_query_len": shape.spec_query_len,
        "num_kda_layers": model.num_kda_layers,
        "source": model.source,
    }
    return {
        "setting": asdict(setting) | {"model": model.name, "model_shape": asdict(model)} | derived,
        "layer_bytes": asdict(layer_bytes(shape, **dtypes)),
        "capacity": asdict(plan),
        "placements": {placement: _placed(setting, placement) for placement in get_args(Placement)},
        "state_bytes": {
            scheme: asdict(held) | {"total": held.total}
            for scheme, held in zip(SCHEMES, (full_state, ours), strict=True)
        },
        "all_replicas": {
            "capacity_tokens": {
                scheme: setting.data_parallel * getattr(plan, scheme).capacity_tokens for scheme in SCHEMES
            },
            "memory_saved_bytes": setting.data_parallel * saved_bytes,
        },
        "extra_state_bytes": full_state.recurrent_state - ours.recurrent_state,
        "memory_saved_bytes": saved_bytes,
        "memory_saved_pct": 100 * saved_bytes / full_state.total,
        "capacity_gain_pct": plan.capacity_gain_pct,
        "net_capacity_gain_pct": plan.net_gain_pct,
        "terms": dict(TERMS),
    }


def _placed(setting: Setting, placement: Placement) -> dict[str, Any]:
    try:
        plan = setting.plan(placement)
    except ConfigError as error:
        return {"refused": str(error)}
    return {
        "capacity_gain_pct": plan.capacity_gain_pct,
        "net_gain_pct": plan.net_gain_pct,
        "page_bytes": plan.recoverssm.page_bytes,
        "scratch_bytes": plan.scratch_bytes,
    }


def capacity_lines(report: Mapping[str, Any]) -> list[str]:
    """The report as a table of both schemes, each row with its term."""
    setting, capacity, pieces = report["setting"], report["capacity"], report["layer_bytes"]
    held = report["state_bytes"]

    def of_layer(label: str, name: str, full_state: int | str = "") -> str:
        return _row(label, full_state, pieces[name], TERMS[f"layer_bytes.{name}"])

    def of_pool(label: str, name: str) -> str:
        full_state, ours = (round(capacity[scheme][name]) for scheme in SCHEMES)
        return _row(label, full_state, ours, TERMS[f"capacity.{name}"])

    def of_batch(label: str, name: str) -> str:
        full_state, ours = (held[scheme][name] for scheme in SCHEMES)
        return _row(label, full_state, ours, TERMS[f"state_bytes.{name}"])

    saved_bytes, saved_pct = report["memory_saved_bytes"], report["memory_saved_pct"]
    return [
        f"{setting['model']} at TP {setting['tensor_parallel']}, DP {setting['data_parallel']}: "
        f"{setting['heads_per_rank']} heads per rank, {setting['num_kda_layers']} KDA layers, "
        f"T = {setting['spec_query_len']} (drafts + 1), {setting['state_dtype']} state, "
        f"records in {setting['placement']}{', commits deferred' * (setting['commit'] == 'deferred')}",
        "",
        _row("Bytes of one layer", "full state", "RecoverSSM"),
        of_layer("conv state", "conv_state", pieces["conv_state"]),
        of_layer("recurrent state", "recurrent_state", pieces["recurrent_state"]),
        of_layer("correction record", "correction"),
        of_layer("key/gate record", "key_gate"),
        of_pool("KDA page", "kda_page_bytes"),
        "",
        f"A budget of {setting['budget_bytes'] / (1 << 30):g} GiB, requests of {setting['max_model_len']:,} tokens, "
        f"cache mode {setting['cache_mode']}",
        of_pool("tokens of a block", "block_tokens"),
        of_pool("bytes of a page", "page_bytes"),
        of_pool("blocks of a request", "blocks_per_request"),
        of_pool("blocks in the pool", "num_blocks"),
        of_pool("tokens", "capacity_tokens"),
        *_replica_lines(report),
        _gain("capacity gain", capacity["capacity_gain_pct"], TERMS["capacity.capacity_gain_pct"]),
        _gain("in whole blocks", capacity["whole_block_gain_pct"], TERMS["capacity.whole_block_gain_pct"]),
        *_placement_lines(report),
        "",
        f"Bytes of the state of {setting['max_num_seqs']} requests, all KDA layers",
        of_batch("recurrent states", "recurrent_state"),
        of_batch("conv states", "conv_state"),
        of_batch("correction records", "correction"),
        of_batch("key/gate records", "key_gate"),
        of_batch("total", "total"),
        _row("saved", "", saved_bytes, f"{_gb(saved_bytes)}, {saved_pct:.1f} % of full state"),
        _row(
            "extra states",
            report["extra_state_bytes"],
            "",
            f"{_gb(report['extra_state_bytes'])} of {TERMS['extra_state_bytes']}",
        ),
    ]


def _replica_lines(report: Mapping[str, Any]) -> list[str]:
    if report["setting"]["data_parallel"] == 1:
        return []
    tokens = report["all_replicas"]["capacity_tokens"]
    full_state, ours = (round(tokens[scheme]) for scheme in SCHEMES)
    return [_row("tokens of all replicas", full_state, ours, TERMS["all_replicas.capacity_tokens"])]


def _placement_lines(report: Mapping[str, Any]) -> list[str]:
    """The gain with records in pages and in scratch, whichever was asked for."""
    lines = []
    for placement, placed in report["placements"].items():
        label = f"gain, records in {placement}"
        if "refused" in placed:
            lines.append(_row(label, "", "refused", placed["refused"]))
        elif placement == "page":
            lines.append(_gain(label, placed["net_gain_pct"], f"pages of {placed['page_bytes']:,} bytes"))
        else:
            note = f"{TERMS['capacity.net_gain_pct']}: {placed['scratch_bytes']:,} bytes"
            lines.append(_gain(label, placed["net_gain_pct"], note))
    return lines


def _gain(label: str, pct: float, note: str) -> str:
    return _row(label, "", f"{pct:+.2f} %", note)


def _row(name: str, full_state: int | str, ours: int | str, note: str = "") -> str:
    """One line of a two-column table; integers get thousands separators."""
    cells = [f"{cell:,}" if isinstance(cell, int) else cell for cell in (full_state, ours)]
    indent = "" if cells == ["full state", "RecoverSSM"] else "  "
    return f"{indent + name:<27}{cells[0]:>18}{cells[1]:>18}  {note}".rstrip()


def _gb(count: int) -> str:
    return f"{count / 1e9:,.3f} GB"
