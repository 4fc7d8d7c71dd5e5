import pytest
import torch
from typer.testing import CliRunner

from benchmarks import cold_launches
from benchmarks.cases import SETS
from benchmarks.cold_launches import DEFAULT_CASES, KERNELS, UnknownContractError, choose_contracts
from benchmarks.providers import PROVIDERS, Series
from benchmarks.run import app
from recoverssm.cost import Cost

CASE = SETS["nightly"][0]
NAMES = (("verify", "graph-cold"), ("step", "graph-cold"), ("verify", "host-dispatch"))


def test_without_a_choice_only_a_few_cases_of_the_nightly_set_are_launched_alone():
    chosen = {name: choose_contracts(None, name) for name in SETS}
    launched = {
        name: {case.name for case in SETS[name] if ("verify", "nvbench-cold") in contracts.under(case, NAMES)}
        for name, contracts in chosen.items()
    }

    assert launched == {name: set() for name in SETS} | {"nightly": DEFAULT_CASES["nightly"]}
    assert len(launched["nightly"]) == 2


def test_both_contracts_measure_each_kernel_twice_and_steps_once():
    contracts = choose_contracts("graph-cold,nvbench-cold", "pr")

    assert contracts.under(CASE, NAMES) == [
        ("verify", "graph-cold"),
        ("verify", "nvbench-cold"),
        ("step", "graph-cold"),
        ("verify", "host-dispatch"),
    ]


def test_one_contract_leaves_the_other_out():
    contracts = choose_contracts(" nvbench-cold", "pr")

    assert contracts.under(CASE, NAMES) == [("verify", "nvbench-cold"), ("verify", "host-dispatch")]


def test_a_chain_is_measured_in_graphs_alone():
    both, alone = choose_contracts("graph-cold,nvbench-cold", "pr"), choose_contracts("nvbench-cold", "pr")

    assert both.in_graphs().under(CASE, NAMES[:2]) == [("verify", "graph-cold"), ("step", "graph-cold")]
    assert choose_contracts(None, "nightly").in_graphs() == both.in_graphs()
    assert alone.in_graphs().under(CASE, NAMES[:2]) == []


def test_a_series_keeps_its_calls_and_its_bytes_under_the_other_contract():
    calls, cost = (lambda: None,), Cost(read_bytes=3, write_bytes=4, flops=5)
    contracts = choose_contracts("graph-cold,nvbench-cold", "pr")

    (graph, alone) = contracts.series_under(CASE, [Series("verify", "graph-cold", calls, cost)])

    assert (graph.contract, alone.contract) == ("graph-cold", "nvbench-cold")
    assert alone.calls is graph.calls
    assert alone.cost == graph.cost


def test_a_series_is_launched_alone_with_its_restore_and_its_number_of_kernels(monkeypatch):
    asked = {}
    monkeypatch.setattr(cold_launches, "measure_nvbench_cold", lambda calls, **options: asked.update(options))
    restore = [].clear
    graph = Series("commit_state", "graph-cold", (lambda: None,), Cost(9, 9, 1), restore=restore)

    (alone,) = choose_contracts("nvbench-cold", "pr").series_under(CASE, [graph])
    cold_launches.measure_cold_launches(alone, torch.device("cuda", 0))

    assert asked == {"restore": restore, "num_kernels": 1, "device_index": 0}


def test_every_kernel_is_a_series_of_a_provider():
    ops = {op for provider in PROVIDERS for op, _ in provider.series_names}

    assert ops >= KERNELS


@pytest.mark.parametrize("text", ["graph-warm", "graph-cold,", "nvbench"])
def test_an_unknown_contract_is_named_with_those_there_are(text):
    with pytest.raises(UnknownContractError, match="expected some of graph-cold, nvbench-cold, got"):
        choose_contracts(text, "pr")


def test_the_command_line_refuses_an_unknown_contract(tmp_path):
    result = CliRunner().invoke(app, ["--set", "smoke", "--contracts", "warm", "--out", str(tmp_path / "record.json")])

    assert result.exit_code == 2
    assert "--contracts: expected some of graph-cold, nvbench-cold, got 'warm'" in result.output


def test_a_lean_process_takes_no_host_times_and_no_launches_alone():
    lean = choose_contracts(None, "nightly", lean=True)

    assert {contract for case in SETS["nightly"] for _, contract in lean.under(case, NAMES)} == {"graph-cold"}
    assert ("verify", "host-dispatch") not in choose_contracts("nvbench-cold", "pr", lean=True).under(CASE, NAMES)


def test_the_league_measures_at_the_ends_of_acceptance_what_depends_on_it():
    names = [(op, "graph-cold") for op in ("verify", "commit_plan", "commit_state", "conv", "commit", "step")]
    contracts = choose_contracts(None, "league")
    mean, least = (
        next(case for case in SETS["league"] if f"_t8_a{accepted}_" in case.name) for accepted in ("3.84", "1.00")
    )

    assert contracts.lean
    assert contracts.under(mean, names) == names
    assert contracts.under(least, names) == names[2:]
    assert contracts.under(least, [("verify", "graph-cold"), ("step", "graph-cold")]) == []  # full state
    assert contracts.in_graphs().under(least, names) == names[2:]
    assert choose_contracts(None, "nightly").under(least, names) == names
