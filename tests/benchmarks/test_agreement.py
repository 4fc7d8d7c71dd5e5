import json
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import agreement
from benchmarks.agreement import Row, app, launch_difference_us, measure_rows, table
from benchmarks.cases import SETS
from benchmarks.harness import nvbench_cold
from benchmarks.harness.errors import MissingToolError

CASES = {case.name: case for case in SETS["pr"]}


def row(graph_us, nvbench_us, launch_us=2.0):
    both = (graph_us, nvbench_us, launch_us)
    return Row("case", "recoverssm", "verify", *both, 0.1, None, 2.5, 100, "precise", "most samples")


@pytest.mark.parametrize(
    ("graph_us", "nvbench_us", "agrees"),
    [(10.0, 14.9, True), (10.0, 15.1, False), (200.0, 207.9, True), (200.0, 208.1, False), (10.0, 8.9, False)],
)
def test_kernels_agree_within_three_percent_or_three_microseconds_of_an_empty_launch(graph_us, nvbench_us, agrees):
    assert row(graph_us, nvbench_us).agrees is agrees


def test_what_isolation_costs_on_a_machine_is_no_disagreement():
    """On a host of two H200s an isolated launch took 1.7 us more than on others, whatever it did."""
    assert not row(10.0, 15.5, launch_us=2.0).agrees
    assert row(10.0, 15.5, launch_us=3.9).agrees


def test_the_table_has_a_line_for_each_row_and_shows_what_disagrees():
    text = table([row(10.0, 12.9), row(10.0, 15.1)], 2.8)

    assert "| 10.00 us | 12.90 us | +2.90 us (+29.0 %) | +2.50 us | yes, 3.0 us |" in text
    assert "| NO, 3.0 us |" in text
    assert text.endswith("next to nothing: +2.80 us.")


@pytest.fixture
def card(monkeypatch):
    """A card whose kernels are all measured already."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(nvbench_cold, "load_nvbench", lambda: SimpleNamespace(__version__="0.3.0"))
    monkeypatch.setattr(agreement, "launch_difference_us", lambda _: 2.8)


@pytest.mark.parametrize(("nvbench_us", "code"), [(12.0, 0), (16.0, 4)])
def test_the_command_writes_every_row_and_its_code_says_whether_all_agree(
    card, monkeypatch, tmp_path, nvbench_us, code
):
    monkeypatch.setattr(agreement, "measure_rows", lambda *_: iter([row(10.0, nvbench_us)]))
    out = tmp_path / "build" / "agreement.json"

    result = CliRunner().invoke(app, ["--out", str(out), "--case", "*_b1_*"])

    found = json.loads(out.read_text())
    assert result.exit_code == code, result.output
    assert (found["gpu"], found["nvbench"], found["launch_difference_us"]) == ("NVIDIA H200", "0.3.0", 2.8)
    assert [one["agrees"] for one in found["rows"]] == [code == 0] * 2  # bf16 and fp32
    assert "| case | kernel |" in result.output


def test_a_host_without_nvbench_compares_nothing(card, monkeypatch, tmp_path):
    def missing():
        raise MissingToolError("cuda-bench cannot be used here: No module named 'cuda'")

    monkeypatch.setattr(nvbench_cold, "load_nvbench", missing)
    result = CliRunner().invoke(app, ["--out", str(tmp_path / "agreement.json")])

    assert result.exit_code == 5
    assert "cuda-bench cannot be used here" in result.output


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["kimi_k3_tp8_b1_t8_a3.84_bf16", "kimi_k3_tp8_b32_t8_a3.84_fp32"])
def test_every_kernel_agrees_under_both_cold_contracts(name):
    try:
        nvbench_cold.load_nvbench()
    except MissingToolError as error:
        pytest.skip(str(error))
    device = torch.device("cuda", torch.cuda.current_device())
    rows = list(measure_rows(CASES[name], device, 0, launch_difference_us(device)))

    assert {(one.provider, one.op) for one in rows} == {
        ("recoverssm", "verify"),
        ("recoverssm", "commit_plan"),
        ("recoverssm", "commit_state"),
        ("recoverssm", "conv"),
        ("full_state", "verify"),
    }
    assert [one for one in rows if not one.agrees] == []
