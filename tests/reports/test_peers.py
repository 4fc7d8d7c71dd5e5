"""Other projects' figures: the file, and the table beside ours."""

import msgspec
import pytest

from benchmarks.cases import SETS
from reports.peers import PEERS_FILE, PeersError, peers_table, read_peers
from reports.sources import read_stores
from tests.reports.golden import HEADLINE

PEERS = """
version = 1
[method]
date = 2026-01-03
gpu_model = "nvidia-h200"
environment = "driver 590"
timing = "graphs"
processes = "one process"
[[peer]]
name = "ring"
title = "Ring 1.0"
kind = "recoverssm"
source = "its wheel"
[[peer]]
name = "full"
title = "Full 2.0"
kind = "full_state"
source = "its wheel"
"""
RING = f"""
[[time]]
case = "{HEADLINE}"
peer = "ring"
verify_us = 46.49
commit_us = {{ 1 = 875, 4 = 1271 }}
"""
FULL = f"""
[[time]]
case = "{HEADLINE}"
peer = "full"
verify_us = 7.34
warm = true
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "peers.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def beside(golden_store, write):
    """The table for the newest golden night of the H200."""

    def beside(text, **changes):
        history = read_stores([str(golden_store)])
        night = history.of("nvidia-h200")[-1]
        processes = history.processes(night)
        table = peers_table(
            read_peers(write(text)),
            msgspec.structs.replace(night, **changes),
            processes,
            processes.records[0].cases,
        )
        return table and table.replace("\N{NO-BREAK SPACE}", " ")

    return beside


def test_ours_and_theirs_stand_below_each_other_with_contract_and_date(beside):
    lines = beside(PEERS + RING + FULL).splitlines()

    assert lines[0] == "| µs | measured | B = 32, fp32 |"
    assert [line.split(" | ")[0] for line in lines[2:6]] == [
        "| **RecoverSSM, this repository**",
        "| full state, this repository",
        "| Ring 1.0",
        "| Full 2.0",
    ]
    assert lines[2].split(" | ")[1] == "`graph-cold`, 2026-01-04"
    assert lines[2].split(" | ")[2].startswith("63.7 / 1,202 / ")
    assert lines[4] == "| Ring 1.0 | by hand, 2026-01-03 | 46.5 / 1,271 / 4,479 |"
    assert lines[5] == "| Full 2.0 | by hand, 2026-01-03 | 7.34 / – / 506 (warm) |"


def test_the_caption_says_that_it_is_two_contracts_and_how_the_other_is_timed(beside):
    caption = beside(PEERS + RING).splitlines()[-1]

    assert "Two contracts, so no ratios across them" in caption
    assert "measured outside this harness (NVIDIA H200, driver 590; graphs; one process)" in caption
    assert "Their commits accept 4 tokens in every request (ours 3.84 on average)" in caption
    assert "(warm)" not in caption
    assert "%" not in caption


def test_without_a_verify_or_a_commit_a_peer_has_no_step(beside):
    commit_alone = RING.replace("verify_us = 46.49\n", "")

    assert "| Ring 1.0 | by hand, 2026-01-03 | – / 1,271 / – |" in beside(PEERS + commit_alone)
    assert "| 46.5 / – / – |" in beside(PEERS + RING.replace("4 = 1271", "8 = 2004"))


def test_another_gpu_or_no_shared_case_gives_no_table(beside):
    assert beside(PEERS + RING, gpu_model="nvidia-h100") is None
    assert beside(PEERS + RING.replace(HEADLINE, "kimi_k3_tp1_b1_t1_a1.00_fp32")) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("version = ", "peers.toml: "),
        (PEERS.replace("date = 2026-01-03", 'date = "recently"'), "method.date"),
        (PEERS + "[[time]]\ncase = 'x'\npeer = 'ring'\nverify_us = 0\n", "time\\[0\\].verify_us"),
        (PEERS + RING.replace('"ring"', '"rong"'), "peers without an entry: \\['rong'\\]"),
        (PEERS + RING + RING, "measured twice: \\[\\('ring', "),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name_and_place(write, text, reason):
    with pytest.raises(PeersError, match=reason):
        read_peers(write(text))


def test_every_figure_in_the_repository_belongs_to_a_case_that_nights_measure():
    peers = read_peers(PEERS_FILE)

    assert {times.case for times in peers.time} <= {case.name for case in SETS["nightly"]}
    assert {times.peer for times in peers.time} == {peer.name for peer in peers.peer}
