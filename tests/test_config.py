"""RecoverSSMConfig: every option is supported or refused when it is constructed, with the reason and what works."""

import re

import numpy as np
import pytest
import torch

from recoverssm import AlignInputs, ConfigError, GateParams, KDAShape, RecoverSSMConfig, checks, config

VALID = {"num_heads": 96, "draft_tokens": 7, "max_num_requests": 32}

REFUSED = {
    "half a head": ({"num_heads": 1.5}, "num_heads: expected a whole number, got 1.5"),
    "drafts or none": ({"draft_tokens": True}, "draft_tokens: expected a whole number, got True"),
    "part of a block": ({"cache_mode": "align", "block_size": 8.0}, "block_size: expected a whole number, got 8.0"),
    "half a graph": ({"cuda_graph_sizes": (1, 1.5)}, "cuda_graph_sizes: expected a whole number"),
    "channels and a half": ({"key_dim": 128.5}, "key_dim: expected a whole number"),
    "no heads": ({"num_heads": 0}, "num_heads: expected at least 1"),
    "no requests": ({"max_num_requests": 0}, "max_num_requests: expected at least 1"),
    "negative drafts": ({"draft_tokens": -1}, "draft_tokens: expected at least 0, got -1"),
    "window beyond the kernels": ({"draft_tokens": 16}, "draft_tokens: expected 0 to 15, got 16; .* draft less"),
    "heads that do not divide": ({"tensor_parallel": 7}, "tensor_parallel: expected a divisor of the 96 heads"),
    "no pipeline stage": ({"pipeline_parallel": 0}, "pipeline_parallel: expected at least 1"),
    "no micro-batch": ({"micro_batches": 0}, "micro_batches: expected at least 1"),
    "graph larger than a batch": ({"cuda_graph_sizes": (1, 64)}, "cuda_graph_sizes: .* rows, got 64; .* not tokens"),
    "graph of no rows": ({"cuda_graph_sizes": (0,)}, "cuda_graph_sizes: expected at least 1"),
    "odd channels": ({"key_dim": 96}, "key_dim: expected a power of two"),
    "few channels": ({"value_dim": 8}, "value_dim: expected a power of two of at least 16"),
    "short convolution": ({"conv_width": 1}, "conv_width: expected at least 2"),
    "fp16 states": ({"state_dtype": torch.float16}, "state_dtype: .* got float16; .* take bfloat16"),
    "fp64 activations": ({"activation_dtype": torch.float64}, "activation_dtype: .* got float64"),
    "bound of zero": ({"gate_lower_bound": 0.0}, "gate_lower_bound: .* got 0.0; for the unbounded gate it is None"),
    "bound of a word": ({"gate_lower_bound": "-5"}, "gate_lower_bound: expected a finite negative number, got '-5'"),
    "bound of a flag": ({"gate_lower_bound": True}, "gate_lower_bound: expected a finite negative number, got True"),
    "dtype by name": ({"state_dtype": "float32"}, "state_dtype: expected float32 or bfloat16, got 'float32'"),
    "one graph": ({"cuda_graph_sizes": 8}, "cuda_graph_sizes: expected a tuple of numbers of rows, got 8"),
    "bound without end": ({"gate_lower_bound": float("-inf")}, "gate_lower_bound: expected a finite"),
    "states at every block": ({"cache_mode": "all"}, "cache_mode: expected 'none' or 'align', got 'all'"),
    "align without blocks": ({"cache_mode": "align"}, "block_size: expected at least 1 token"),
    "align with blocks of nothing": (
        {"cache_mode": "align", "block_size": 0},
        "block_size: expected at least 1, got 0",
    ),
    "blocks that int32 cannot count": (
        {"cache_mode": "align", "block_size": 1 << 31},
        "block_size: expected at most 1048576 tokens, got 2147483648",
    ),
    "blocks without align": ({"block_size": 1536}, "block_size: expected None with cache_mode 'none'"),
    "unknown placement": ({"placement": "host"}, "placement: expected 'scratch' or 'page'"),
    "unknown conv layout": ({"conv_layout": "SSD"}, "conv_layout: expected 'SD' or 'DS'"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_with_what_does(options, message):
    with pytest.raises(ConfigError, match=f"(?s)^{message}"):
        RecoverSSMConfig(**VALID | options)


@pytest.mark.parametrize("block_size", [1, 4, 7, 8, 1536])
def test_blocks_of_any_size_work_those_shorter_than_the_window_too(block_size):
    config = RecoverSSMConfig(**VALID, cache_mode="align", block_size=block_size)

    assert (config.cache_mode, config.block_size) == ("align", block_size)


@pytest.mark.parametrize(
    "options",
    [
        {"state_dtype": torch.bfloat16},
        {"activation_dtype": torch.float16},
        {"gate_lower_bound": None},
        {"gate_lower_bound": -20.0},
        {"draft_tokens": 0},
        {"draft_tokens": 15},
        {"tensor_parallel": 8, "pipeline_parallel": 2},
        {"placement": "page"},
        {"conv_layout": "DS"},
        {"placement": "page", "conv_layout": "DS", "state_dtype": torch.bfloat16, "pipeline_parallel": 2},
        {"debug": True},
    ],
    ids=str,
)
def test_what_works_is_accepted_and_kept(options):
    config = RecoverSSMConfig(**VALID | options)

    assert {name: getattr(config, name) for name in options} == options


def test_numbers_are_kept_as_kernels_take_them():
    """Triton takes no NumPy integers, and compiles anew for a bound that is a whole number."""
    sizes = {name: np.int64(value) for name, value in VALID.items()}
    config = RecoverSSMConfig(**sizes, cuda_graph_sizes=[np.int32(4)], gate_lower_bound=-5, conv_width=np.int64(3))
    gates = [GateParams(torch.zeros(1), torch.zeros(1, 1), bound) for bound in (-5, np.float32(-5))]
    blocks = AlignInputs(torch.zeros(1), torch.zeros(1, 1), np.int64(4))

    assert {type(getattr(config, name)) for name in (*sizes, "conv_width")} == {int}
    assert [type(x) for x in (*config.cuda_graph_sizes, blocks.block_size)] == [int, int]
    assert [type(x) for x in (config.gate_lower_bound, *(gate.lower_bound for gate in gates))] == [float] * 3


def test_pages_have_a_whole_number_of_bytes():
    with pytest.raises(ConfigError, match=r"page_bytes: expected a whole number, got 1000000\.0"):
        RecoverSSMConfig(**VALID, tensor_parallel=8).page_layout(1e6)


def test_a_rank_has_its_share_of_the_heads_and_one_more_token_than_drafts():
    kimi_k3 = RecoverSSMConfig(**VALID, tensor_parallel=8)

    assert kimi_k3.layer_shape == KDAShape(num_heads=12, spec_query_len=8)
    assert kimi_k3.layer_shape.conv_state_len == 10


def test_as_many_steps_are_in_flight_as_there_are_pipeline_stages():
    assert RecoverSSMConfig(**VALID).steps_in_flight == 1
    assert RecoverSSMConfig(**VALID, pipeline_parallel=3).steps_in_flight == 3
    assert RecoverSSMConfig(**VALID, micro_batches=2).steps_in_flight == 2
    assert RecoverSSMConfig(**VALID, pipeline_parallel=3, micro_batches=2).steps_in_flight == 6


def test_a_batch_goes_to_the_smallest_graph_that_holds_it():
    options = RecoverSSMConfig(**VALID, cuda_graph_sizes=(32, 8, 1, 8))

    assert options.cuda_graph_sizes == (1, 8, 32)
    assert [options.graph_size(rows) for rows in (1, 2, 8, 9, 32, 33)] == [1, 8, 8, 32, 32, None]


def test_types_and_sizes_are_those_that_the_kernels_check():
    assert config.STATE_DTYPES == checks.STATE_DTYPES
    assert config.ACTIVATION_DTYPES == checks.ACTIVATION_DTYPES
    checks.check_head_dim("K", config.MIN_HEAD_DIM)
    with pytest.raises(ValueError, match=re.escape("at least 16")):
        checks.check_head_dim("K", config.MIN_HEAD_DIM // 2)
