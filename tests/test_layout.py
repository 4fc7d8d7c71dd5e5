"""layout.py against the published page sizes and capacities, and to the byte against real tensors."""

import dataclasses
import subprocess
import sys

import pytest
import torch

from recoverssm.config import RecoverSSMConfig
from recoverssm.errors import ConfigError
from recoverssm.layout import GIB, layer_bytes, plan_capacity, state_bytes
from recoverssm.models import MODELS
from recoverssm.types import KDAShape

K3 = MODELS["kimi-k3"]
PUBLISHED = {
    "tensor_parallel": 8,
    "draft_tokens": 7,
    "max_model_len": 262_144,
    "budget_bytes": int(46.48 * GIB),
}
K = 1024


def test_kimi_k3_has_93_layers_in_one_attention_and_three_kda_groups():
    assert K3.num_layers == 93
    assert K3.num_kda_groups == 3
    assert K3.attention_row_elements == 576


@pytest.mark.parametrize(
    ("tensor_parallel", "conv", "state", "record", "native_page", "recoverssm_page"),
    [
        (8, 92_160, 786_432, 49_152, 878_592, 976_896),
        (1, 737_280, 6_291_456, 393_216, 7_028_736, 7_815_168),
    ],
)
def test_page_bytes_of_kimi_k3(tensor_parallel, conv, state, record, native_page, recoverssm_page):
    pieces = layer_bytes(K3.layer_shape(tensor_parallel=tensor_parallel, draft_tokens=7))

    assert dataclasses.astuple(pieces) == (conv, state, record, record)
    assert pieces.page("full_state", "page") == native_page
    assert pieces.page("recoverssm", "page") == recoverssm_page
    assert pieces.page("recoverssm", "scratch") == native_page
    assert pieces.page("full_state", "scratch") == native_page


def test_capacity_gain_of_the_published_setting_is_10_97_percent():
    plan = plan_capacity(K3, **PUBLISHED)

    assert plan.full_state.block_tokens == 1536
    assert plan.recoverssm.block_tokens == 1728
    assert plan.full_state.blocks_per_request == 171 + 30
    assert plan.recoverssm.blocks_per_request == 152 + 9
    assert plan.capacity_gain_pct == pytest.approx(100 * (201 * 1536 / (161 * 1728) - 1), abs=1e-9)
    assert round(1 + plan.capacity_gain_pct / 100, 5) == 1.10973


def test_whole_blocks_of_the_published_pool_gain_10_98_to_11_percent():
    assert 10.98 <= round(plan_capacity(K3, **PUBLISHED).whole_block_gain_pct, 2) <= 11.00


@pytest.mark.parametrize(
    ("max_model_len", "page_pct", "scratch_pct", "digits"),
    [
        pytest.param(32 * K, 65, 68, 0, id="row 32 K"),
        pytest.param(64 * K, 38, 40, 0, id="row 64 K"),
        pytest.param(128 * K, 21.3, 22.1, 1, id="row 128 K"),
        pytest.param(256 * K, 10.97, 11.67, 2, id="row 256 K, the published one"),
        pytest.param(512 * K, 5.6, 6.0, 1, id="row 512 K"),
        pytest.param(1024 * K, 2.9, 3.0, 1, id="row 1 M"),
    ],
)
def test_capacity_gain_by_length_and_placement(max_model_len, page_pct, scratch_pct, digits):
    setting = PUBLISHED | {"max_model_len": max_model_len}
    page = plan_capacity(K3, **setting, placement="page")
    scratch = plan_capacity(K3, **setting, placement="scratch")

    assert round(page.capacity_gain_pct, digits) == page_pct
    assert round(scratch.capacity_gain_pct, digits) == scratch_pct
    assert scratch.recoverssm.block_tokens == 1536


def test_an_attention_block_grows_to_the_next_64_tokens_that_hold_a_kda_page():
    plan = plan_capacity(K3, **PUBLISHED)

    assert round(plan.full_state.kda_page_bytes / 576, 1) == 1525.3
    assert plan.full_state.page_bytes == 1536 * 576
    assert plan.recoverssm.kda_page_bytes / 576 == 1696
    assert plan.recoverssm.page_bytes == 1728 * 576


def test_scratch_of_256_sequences_is_3_5_percent_of_the_published_pool():
    plan = plan_capacity(K3, **PUBLISHED, placement="scratch", max_num_seqs=256)

    assert round(100 * plan.scratch_bytes / PUBLISHED["budget_bytes"], 1) == 3.5


def test_blocks_and_pages_of_a_given_size_hold_under_both_schemes():
    blocks = plan_capacity(K3, **PUBLISHED, block_tokens=2048)
    pages = plan_capacity(K3, **PUBLISHED, page_bytes=1 << 20)
    both = plan_capacity(K3, **PUBLISHED, block_tokens=1024, page_bytes=1 << 20)
    padded = plan_capacity(K3, **PUBLISHED, block_tokens=64)

    for plan, block_tokens, page_bytes in (
        (blocks, 2048, 2048 * 576),
        (pages, 1792, 1 << 20),  # 1820 rows fit
        (both, 1024, 1 << 20),
    ):
        for scheme in (plan.full_state, plan.recoverssm):
            assert (scheme.block_tokens, scheme.page_bytes) == (block_tokens, page_bytes)
    assert (padded.full_state.page_bytes, padded.recoverssm.page_bytes) == (878_592, 976_896), "KDA pages pad the rest"


@pytest.mark.parametrize(
    ("num_kda_layers", "num_attention_layers", "group_layers", "kda_groups", "attention_groups"),
    [
        pytest.param(69, 24, 24, 3, 1, id="kimi-k3"),
        pytest.param(20, 60, 20, 1, 3, id="more attention"),
        pytest.param(24, 24, 24, 1, 1, id="as many"),
        pytest.param(13, 12, 13, 1, 1, id="nearly as many: padded"),
        pytest.param(30, 24, 24, 2, 1, id="just not nearly"),
        pytest.param(48, 0, 48, 1, 0, id="KDA alone"),
    ],
)
def test_cache_groups_have_the_layers_of_the_rarer_kind(
    num_kda_layers, num_attention_layers, group_layers, kda_groups, attention_groups
):
    model = dataclasses.replace(K3, num_kda_layers=num_kda_layers, num_attention_layers=num_attention_layers)

    assert model.group_layers == group_layers
    assert (model.num_kda_groups, model.num_attention_groups) == (kda_groups, attention_groups)


def test_without_attention_layers_a_request_takes_as_many_blocks_however_long():
    model = dataclasses.replace(K3, num_attention_layers=0)
    plan = plan_capacity(model, **PUBLISHED)

    assert plan.recoverssm.block_tokens == 0
    assert plan.recoverssm.page_bytes == plan.recoverssm.kda_page_bytes
    assert (plan.full_state.blocks_per_request, plan.recoverssm.blocks_per_request) == (10, 3)


def test_without_prefix_caching_the_gain_is_11_8_percent():
    assert round(plan_capacity(K3, **PUBLISHED, cache_mode="none").capacity_gain_pct, 1) == 11.8


@pytest.mark.parametrize(("num_seqs", "gib"), [(32, 0.20), (64, 0.40), (128, 0.81), (256, 1.62)])
def test_scratch_grows_with_sequences_and_is_charged_in_the_net_gain_alone(num_seqs, gib):
    plan = plan_capacity(K3, **PUBLISHED, placement="scratch", max_num_seqs=num_seqs)
    factor = 1 - plan.scratch_bytes / PUBLISHED["budget_bytes"]

    assert round(plan.scratch_bytes / GIB, 2) == gib
    assert plan.capacity_gain_pct == pytest.approx(11.667, abs=1e-3)
    assert 1 + plan.net_gain_pct / 100 == pytest.approx((1 + plan.capacity_gain_pct / 100) * factor)


def test_records_in_pages_need_no_scratch():
    plan = plan_capacity(K3, **PUBLISHED, placement="page", max_num_seqs=256)

    assert plan.scratch_bytes == 0
    assert plan.net_gain_pct == plan.capacity_gain_pct


def test_four_requests_at_dp_ep16_waste_12_155_gigabytes_in_extra_states():
    shape = K3.layer_shape(tensor_parallel=1, draft_tokens=7)
    full_state = state_bytes(shape, 4, K3.num_kda_layers, scheme="full_state")
    ours = state_bytes(shape, 4, K3.num_kda_layers, scheme="recoverssm")

    assert round((full_state.recurrent_state - ours.recurrent_state) / 1e9, 3) == 12.155


def test_records_of_one_request_over_all_layers_are_6_47_mebibytes_at_tp8():
    shape = K3.layer_shape(tensor_parallel=8, draft_tokens=7)

    assert round(state_bytes(shape, 1, 69, scheme="recoverssm").records / (1 << 20), 2) == 6.47


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [KDAShape(12, 8), KDAShape(3, 5, key_dim=40, value_dim=24), KDAShape(1, 1)], ids=str)
@pytest.mark.parametrize("num_unowned_slots", [0, 1])
def test_state_bytes_equal_the_storage_of_the_tensors(shape, state_dtype, num_unowned_slots):
    n, layers = 3, 2
    h, k, v, t = shape.num_heads, shape.key_dim, shape.value_dim, shape.spec_query_len
    slots = n + num_unowned_slots
    conv = [
        torch.empty(slots, shape.conv_state_len, h * (2 * k + v), dtype=torch.bfloat16, device="cpu")
        for _ in range(layers)
    ]
    checkpoint = [torch.empty(slots, h, v, k, dtype=state_dtype) for _ in range(layers)]
    pool = [torch.empty(n * t + num_unowned_slots, h, v, k, dtype=state_dtype) for _ in range(layers)]
    correction = [torch.empty(n, h, t, v, dtype=torch.float32) for _ in range(layers)]
    key_gate = [torch.empty(n, h, t, 2 * k, dtype=torch.bfloat16) for _ in range(layers)]

    ours = state_bytes(shape, n, layers, state_dtype, scheme="recoverssm", num_unowned_slots=num_unowned_slots)
    full = state_bytes(shape, n, layers, state_dtype, scheme="full_state", num_unowned_slots=num_unowned_slots)

    assert ours.recurrent_state == storage_bytes(checkpoint)
    assert ours.conv_state == full.conv_state == storage_bytes(conv)
    assert ours.correction == storage_bytes(correction)
    assert ours.key_gate == storage_bytes(key_gate)
    assert ours.total == storage_bytes(checkpoint + conv + correction + key_gate)
    assert full.recurrent_state == storage_bytes(pool)
    assert full.total == storage_bytes(pool + conv)


def storage_bytes(tensors):
    return sum(x.untyped_storage().nbytes() for x in tensors)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tensor_parallel": 7}, "tensor_parallel"),
        ({"tensor_parallel": 0}, "tensor_parallel"),
        ({"draft_tokens": -1}, "draft_tokens"),
        ({"draft_tokens": 16}, "spec_query_len"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"budget_bytes": 0}, "budget_bytes"),
        ({"block_tokens": -1}, "block_tokens"),
        ({"page_bytes": -1}, "page_bytes"),
        ({"page_bytes": 976_895}, "page_bytes"),
        ({"placement": "host"}, "placement"),
        ({"cache_mode": "all"}, "cache_mode"),
        ({"page_bytes": 1 << 20, "block_tokens": 1821}, "page_bytes"),
        ({"budget_bytes": 1_000_000}, "budget_bytes"),
        ({"max_num_seqs": -1}, "max_num_seqs"),
        ({"max_num_seqs": 10_000, "placement": "scratch"}, "max_num_seqs"),
    ],
    ids=str,
)
def test_sizes_out_of_range_are_refused_by_name(change, named):
    with pytest.raises(ConfigError, match=f"^{named}: "):
        plan_capacity(K3, **PUBLISHED | change)


def test_schemes_are_two():
    with pytest.raises(ConfigError, match="scheme: expected 'full_state' or 'recoverssm', got 'native'"):
        state_bytes(KDAShape(1, 2), 1, 1, scheme="native")
    with pytest.raises(ConfigError, match="scheme: expected"):
        layer_bytes(KDAShape(1, 2)).page("native", "page")
    with pytest.raises(ConfigError, match="placement: expected 'page' or 'scratch', got 'host'"):
        layer_bytes(KDAShape(1, 2)).page("recoverssm", "host")


@pytest.mark.parametrize("named", ["num_requests", "num_layers", "num_unowned_slots"])
def test_negative_counts_are_refused_by_name(named):
    counts = {"num_requests": 1, "num_layers": 1, "num_unowned_slots": 0} | {named: -1}

    with pytest.raises(ConfigError, match=f"^{named}: "):
        state_bytes(KDAShape(1, 2), scheme="recoverssm", **counts)


def test_layout_and_cost_are_importable_without_triton():
    # The package's own __init__ offers the ops and so imports triton; these modules must not need it.
    code = """
import importlib.util, sys, types
package = types.ModuleType("recoverssm")
package.__path__ = importlib.util.find_spec("recoverssm").submodule_search_locations
sys.modules["recoverssm"] = package
import recoverssm.layout, recoverssm.cost
sys.exit("triton" in sys.modules)
"""

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_deferred_commits_keep_records_of_twice_the_tokens_and_no_other_bytes():
    """The bar of half a percent of 46 GiB at 32 requests, beyond the records of commits every step."""
    shape = K3.layer_shape(tensor_parallel=8, draft_tokens=7)
    now, later = (state_bytes(shape, 32, 69, scheme="recoverssm", commit=c) for c in ("every_step", "deferred"))
    plans = [
        plan_capacity(K3, **PUBLISHED, placement="scratch", max_num_seqs=32, commit=c)
        for c in ("every_step", "deferred")
    ]

    entries = RecoverSSMConfig(num_heads=12, draft_tokens=7, max_num_requests=32, commit="deferred")
    num_positions = entries.num_record_rows * (entries.history_len + entries.spec_query_len)

    assert later.total - now.total == now.records == 69 * 32 * 12 * 8 * 1024
    assert later.records == 69 * num_positions * 12 * 1024
    assert plans[1].scratch_bytes - plans[0].scratch_bytes == now.records
    assert now.records < 0.005 * 46 * 2**30
    with pytest.raises(ConfigError, match="commit: expected 'every_step' with placement 'page'"):
        plan_capacity(K3, **PUBLISHED, placement="page", commit="deferred")
    with pytest.raises(ConfigError, match="commit: expected 'every_step' or 'deferred', got 'never'"):
        plan_capacity(K3, **PUBLISHED, placement="scratch", commit="never")
