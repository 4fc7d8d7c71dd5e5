"""The table of capacities that the pages show."""

import json

import pytest

from benchmarks.capacity_grid import CAPACITY_FILE, capacity_grid


def test_the_file_that_pages_read_is_what_the_library_computes():
    written = CAPACITY_FILE.read_text(encoding="utf-8")

    assert json.loads(written) == capacity_grid(), "outdated; run: python -m benchmarks.capacity_grid"


def test_the_grid_holds_the_published_gain():
    grid = capacity_grid()
    setting = grid["published"]
    (point,) = [
        point
        for point in grid["points"]
        if point["state_dtype"] == "fp32"
        and (point["spec_query_len"], point["tensor_parallel"])
        == (setting["spec_query_len"], setting["tensor_parallel"])
    ]

    gain = point["capacity_gain_pct"][grid["context_lens"].index(setting["context_len"])]
    assert gain == pytest.approx(10.973, abs=1e-3)
