"""The adapters on made-up wheels, which stand for the kernels; on real ones where RECOVERSSM_PEERS names a folder."""

import os
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.cases import kimi_k3
from benchmarks.checks import INTERPRETED, Checklist, failure_reason
from benchmarks.cpu_process import shrunken
from benchmarks.peers import fla, flashinfer, sglang
from benchmarks.peers.beside import PeerProvider
from benchmarks.peers.discovery import find_peers
from benchmarks.peers.packages import FOLDER_VARIABLE
from benchmarks.peers.sglang import stacked
from benchmarks.peers.unpack import PACKAGES, unpack
from tests.benchmarks.wheels import forgotten, make_wheel

CPU = torch.device("cpu")
MADE_UP = Path(__file__).parent / "made_up_peers"
CASES = [shrunken(kimi_k3(8, 32, 4, 3.0, dtype)) for dtype in ("fp32", "bf16")]
LOADED = [
    "vllm_recoverssm",
    "vllm_native",
    "sglang_ring",
    "sglang_snapshots",
    "fla_recurrent",
    "fla_chunk",
    "flashinfer_wy",
]
GIVEN = os.environ.get(FOLDER_VARIABLE)


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    for package in PACKAGES:
        files = {
            path.relative_to(MADE_UP).as_posix(): path.read_text() for path in (MADE_UP / package.module).rglob("*.py")
        }
        unpack(make_wheel(tmp_path, package.distribution, "1.0", files), tmp_path / "peers", PACKAGES)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "peers"))
    with forgotten(PACKAGES):
        yield


def adapter(name):
    """The peer of this folder with that name, or why it is missing."""
    (found,) = find_peers(name)
    return found.peer or found.facts.missing


def failures(peer, case):
    """Why the peer's check is red; empty when it is not."""
    prepared = PeerProvider(peer).prepare(case, CPU, 3, 0)
    checklist = Checklist(case.name, peer.name, INTERPRETED)
    prepared.check(checklist)
    assert prepared.num_non_finite() == 0
    assert {check.op for check in checklist.checks} == set(peer.ops)
    return failure_reason(checklist.checks)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", LOADED)
def test_an_adapter_hands_over_our_inputs_and_finds_the_outputs(made_up, name, case):
    peer = adapter(name)

    assert peer.version == "1.0"
    assert failures(peer, case) == ""


@pytest.mark.parametrize(
    ("name", "lacks"),
    [("vllm_cute_commit", "a_package_that_nobody_has"), ("flashinfer_recurrent", "the installed package")],
)
def test_an_adapter_whose_kernel_needs_more_says_what(made_up, name, lacks):
    assert re.fullmatch(f"not installed: .*{lacks}.*", adapter(name))


def test_no_adapter_is_there_without_its_package(monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    found = find_peers("all")

    assert {one.facts.name for one in found} == {*LOADED, "vllm_cute_commit", "flashinfer_recurrent"}
    assert {one.peer for one in found} == {None}
    for one in found:
        assert re.fullmatch(r"not installed: .* python -m benchmarks\.peers\.unpack", one.facts.missing)


def test_what_kernels_cannot_do_is_refused_with_the_reason(made_up):
    gpu = torch.device("cuda")
    fp32, bf16 = (kimi_k3(8, 32, 8, 3.84, dtype) for dtype in ("fp32", "bf16"))
    wy, chunk = flashinfer.FlashinferWy(), fla.FlaChunk()

    assert wy.unsupported(fp32, gpu) == "state dtype fp32: it reads bf16 states alone"
    assert wy.unsupported(bf16, gpu) is None
    assert chunk.unsupported(bf16, gpu) == "state dtype bf16: it takes fp32 alone"
    assert chunk.unsupported(fp32, gpu) is None
    assert chunk.unsupported(fp32, CPU) == "its autotuner measures on a GPU alone"
    assert "CUDA tensors" in sglang.SglangRing().unsupported(fp32, CPU)


def test_equal_tensors_of_one_memory_are_stacked_without_a_copy():
    layers = torch.arange(24.0).view(4, 2, 3).unbind()

    assert stacked(layers).data_ptr() == layers[0].data_ptr()
    assert torch.equal(stacked(layers[1:3]), torch.stack(layers[1:3]))
    for others in ([layers[0], layers[2], layers[3]], [layer.clone() for layer in layers], layers[::-1]):
        copied = stacked(others)
        assert torch.equal(copied, torch.stack(tuple(others)))
        assert copied.data_ptr() != others[0].data_ptr()
    assert torch.equal(stacked(layers[:1]), layers[0][None])


KERNELS = ["vllm_recoverssm", "vllm_native", "sglang_snapshots", "fla_recurrent"]
"""Whose every kernel Triton's interpreter can run."""
SQUARE = [replace(case, shape=replace(case.shape, value_dim=case.shape.key_dim)) for case in CASES]


@pytest.mark.parametrize("name", KERNELS)
def test_a_real_kernel_keeps_its_tolerance_or_is_not_here(name, monkeypatch):
    if GIVEN:
        with forgotten(PACKAGES), warnings.catch_warnings(action="ignore"):  # fla says that there is no GPU
            assert [failures(adapter(name), case) for case in SQUARE] == ["", ""]
    else:
        assert "is not installed" in adapter(name)
