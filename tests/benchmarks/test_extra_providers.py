"""Providers that a few cases get: verifies in a chain, deferred commits, commits in align mode."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import recoverssm
from benchmarks import inputs
from benchmarks.cases import SETS
from benchmarks.checks import INTERPRETED, Checklist
from benchmarks.cold_launches import choose_contracts
from benchmarks.gpu_process import GpuProcess
from benchmarks.providers import (
    ALIGN,
    CHAINED,
    CHAINED_DEFERRED,
    DEFERRED,
    PROVIDERS,
    base,
    chained_providers,
    extra_providers,
    recoverssm_align,
    recoverssm_deferred,
    recoverssm_pdl,
)
from recoverssm import committer
from tests.benchmarks.test_bench_providers import CPU, tiny


@pytest.mark.parametrize("provider", [CHAINED, CHAINED_DEFERRED], ids=lambda provider: provider.name)
def test_a_chain_of_verifies_begins_with_one_that_waits_for_all_before_it(provider, monkeypatch):
    case = replace(tiny("kimi_k3_tp8_b32_t3_a2.73_fp32"), num_layers=3)
    verify, chained = recoverssm.verify, []

    def ordinary(*args, enable_pdl=False, **kwargs):
        chained.append(enable_pdl)
        return verify(*args, **kwargs)

    monkeypatch.setattr(recoverssm, "verify", ordinary)
    prepared = provider.prepare(case, CPU, 0, 0)
    checklist = Checklist("case", provider.name, INTERPRETED)
    prepared.check(checklist)
    series = {one.op: one for one in prepared.series()}
    found = []
    for op in ("verify", "step"):
        chained.clear()
        for call in series[op].calls:
            call()
        found.append(list(chained))

    assert all(check.passed for check in checklist.checks)
    assert tuple((one.op, one.contract) for one in prepared.series()) == provider.series_names
    assert found == [[False, True, True]] * 2


def test_a_chain_is_never_launched_by_itself():
    case = next(case for case in SETS["nightly"] if case.name == "kimi_k3_tp8_b32_t8_a3.84_fp32")
    process = SimpleNamespace(_contracts=choose_contracts("graph-cold,nvbench-cold", "nightly"))

    found = {
        provider.name: {contract for _, contract in contracts.under(case, provider.series_names)}
        for provider in (CHAINED, CHAINED_DEFERRED, DEFERRED)
        for contracts in [GpuProcess._contracts_of(process, provider)]
    }

    assert found == {
        CHAINED.name: {"graph-cold"},
        CHAINED_DEFERRED.name: {"graph-cold"},
        DEFERRED.name: {"graph-cold", "nvbench-cold"},
    }


def test_only_cards_that_can_and_few_cases_get_the_chain(monkeypatch):
    card, names = torch.device("cuda", 0), []
    for arch in (80, 90, 100):
        monkeypatch.setattr(recoverssm_pdl, "card_arch", lambda _, arch=arch: arch)
        names += [(arch, case.name) for case in SETS["nightly"] if chained_providers(case, card)]

    assert names == [(90, f"kimi_k3_tp8_b{num_requests}_t8_a3.84_fp32") for num_requests in (1, 32, 128)]
    monkeypatch.setattr(recoverssm_pdl, "card_arch", lambda _: 90)
    monkeypatch.setattr(recoverssm_pdl.triton_compat, "IS_TESTED", False)
    assert not any(chained_providers(case, card) for case in SETS["nightly"])
    assert chained_providers(SETS["nightly"][0], CPU) == ()


@pytest.mark.parametrize("provider", [*PROVIDERS, ALIGN, DEFERRED], ids=lambda provider: provider.name)
def test_whichever_series_is_timed_first_finds_finite_memory_in_every_set(provider):
    case = replace(tiny("kimi_k3_tp8_b32_t8_a3.84_fp32"), num_layers=3)
    l2_bytes = 2 * case.num_layers * base.layer_sizes(case).state_bytes  # four sets of what rotates
    prepared = provider.prepare(case, CPU, 7, l2_bytes)
    prepared.check(Checklist("case", provider.name, INTERPRETED))

    assert prepared.num_non_finite() == 0


@pytest.fixture(params=[True, False], ids=["history", "commits before"])
def takes_history(request, monkeypatch):
    """Whether the batch is large."""
    monkeypatch.setattr(committer, "MIN_HISTORY_HEADS", 1 if request.param else 1 << 20)
    return request.param


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_deferred_commits_are_right_and_stay_finite_when_called_again(dtype, takes_history):
    case = replace(tiny(f"kimi_k3_tp8_b32_t8_a3.84_{dtype}"), num_layers=2, num_requests=3)
    prepared = DEFERRED.prepare(case, CPU, 7, 0)
    checklist = Checklist("case", DEFERRED.name, INTERPRETED)
    prepared.check(checklist)
    series = prepared.series()
    for one in series:
        for call in one.calls:
            call()
        if one.restore is not None:
            one.restore()

    assert [check for check in checklist.checks if not check.passed] == []
    assert {check.op for check in checklist.checks} == {"verify", "flush", "commit"}
    assert prepared.num_non_finite() == 0
    assert tuple((one.op, one.contract) for one in series) == DEFERRED.series_names
    assert DEFERRED.needed_bytes(case, 0) > DEFERRED.cache_bytes(case)


@pytest.mark.parametrize("spoiled", ["flush", "verify", "commit"])
def test_deferred_commits_that_go_wrong_fail_their_check(spoiled, takes_history, monkeypatch):
    prepared = DEFERRED.prepare(replace(tiny("kimi_k3_tp8_b32_t8_a3.84_fp32"), num_layers=2), CPU, 7, 0)
    right = getattr(prepared, f"_{spoiled}")

    def wrong(*arguments):
        right(*arguments)
        prepared._sets[0].checkpoint_states[-1].mul_(1.001)
        prepared._phases[0].lens.add_(1)

    monkeypatch.setattr(prepared, f"_{spoiled}", wrong)
    checklist = Checklist("case", DEFERRED.name, INTERPRETED)
    prepared.check(checklist)

    assert spoiled in {check.op for check in checklist.checks if not check.passed}


@pytest.mark.parametrize("op", ["verify", "commit"])
def test_keys_and_windows_of_deferred_commits_that_go_wrong_fail_their_check(op, takes_history, monkeypatch):
    """What later calls would take as it is: keys and gates behind the history, and windows of the convolution."""
    prepared = DEFERRED.prepare(replace(tiny("kimi_k3_tp8_b32_t8_a3.84_fp32"), num_layers=2), CPU, 7, 0)
    right, layers = getattr(prepared, f"_{op}"), prepared._sets[0]
    spoiled = layers.records[-1].key_gate if op == "verify" else layers.conv_states[-1]

    def wrong(*arguments):
        right(*arguments)
        spoiled[:, 0] *= 2

    monkeypatch.setattr(prepared, f"_{op}", wrong)
    checklist = Checklist("case", DEFERRED.name, INTERPRETED)
    prepared.check(checklist)

    assert [(check.op, check.metric) for check in checklist.checks if not check.passed] == [(op, "differing")]


def test_rows_of_a_batch_commit_by_turns_each_once_its_entry_is_full():
    accepted = (4, 3, 8, 1)
    count = recoverssm_deferred.num_phases(accepted, 8)
    steps = [recoverssm_deferred.waiting_lens(accepted, 8, phase) for phase in range(count)]

    assert len(steps) == 18  # 3, 3, 2 and 9 steps from one commit to the next
    for row, a in enumerate(accepted):
        for before, now in pairwise([*(step[row] for step in steps), steps[0][row]]):
            assert now == (before + a if before + a <= 8 else 0)
    assert len({step[:2] for step in steps}) == 3  # these two are never in step


def test_a_step_of_deferred_commits_leaves_the_states_that_a_flush_before_it_would(monkeypatch):
    """Where verify takes history, as where it does not, each request is committed in one of the steps."""
    case = replace(tiny("kimi_k3_tp8_b32_t8_a3.84_fp32"), num_layers=2)
    monkeypatch.setattr(committer, "MIN_HISTORY_HEADS", 1)
    prepared = DEFERRED.prepare(case, CPU, 7, 0)
    step = next(one for one in prepared.series() if one.op == "step")
    pools = prepared._sets[0].checkpoint_states
    before = [pool.clone() for pool in pools]
    moved = []
    for call, phase in zip(step.calls, prepared._phases, strict=True):
        call()
        moved.append([row for row, now in enumerate(phase.lens_now) if now])
        for pool, was in zip(pools, before, strict=True):
            changed = (pool != was).flatten(1).any(1)
            assert changed.nonzero().flatten().tolist() == sorted(prepared._slots[moved[-1]].tolist())
        step.restore()

    assert sorted(row for rows in moved for row in rows) == list(range(case.num_requests))


def test_a_step_of_deferred_commits_costs_what_a_separate_one_does_where_verify_takes_no_history(monkeypatch):
    monkeypatch.setattr(committer, "MIN_HISTORY_HEADS", 1 << 20)
    case = replace(tiny("kimi_k3_tp8_b32_t8_a3.84_fp32"), num_layers=2)
    deferred, separate = (
        {one.op: one for one in provider.prepare(case, CPU, 7, 0).series() if one.contract == "graph-cold"}
        for provider in (DEFERRED, PROVIDERS[0])
    )

    assert deferred["verify"].cost == separate["verify"].cost
    assert deferred["step"].cost.total_bytes == pytest.approx(separate["step"].cost.total_bytes, rel=0.01)
    assert deferred["step"].cost.flops == separate["step"].cost.flops


def test_a_step_of_deferred_commits_reads_and_writes_a_third_of_the_states(monkeypatch):
    monkeypatch.setattr(committer, "MIN_HISTORY_HEADS", 1)
    case = replace(tiny("kimi_k3_tp8_b32_t8_a3.84_fp32"), num_layers=2)
    case = replace(case, shape=replace(case.shape, key_dim=128, value_dim=128))
    deferred, separate = (
        {one.op: one.cost for one in provider.prepare(case, CPU, 7, 0).series()}
        for provider in (DEFERRED, PROVIDERS[0])
    )
    states = case.num_requests * case.num_layers * base.layer_sizes(case).state_bytes

    assert separate["step"].total_bytes - deferred["step"].total_bytes == pytest.approx(4 / 3 * states, rel=0.1)


def test_five_cases_of_a_night_are_measured_with_deferred_commits_where_verify_can_take_history(monkeypatch):
    builders = SimpleNamespace(build_state_pools=lambda *_: [None], build_records=lambda *_, **__: [None])
    monkeypatch.setattr(recoverssm_deferred, "inputs", builders)
    cuda = torch.device("cuda", 0)
    for can, arch, expected in (
        (True, 90, {(DEFERRED, CHAINED_DEFERRED)}),
        (True, 80, {(DEFERRED,)}),
        (False, 90, set()),
    ):
        monkeypatch.setattr(recoverssm_deferred, "can_take_history", lambda *_, can=can: can)
        for module in (recoverssm_deferred, recoverssm_pdl):
            monkeypatch.setattr(module, "card_arch", lambda _, arch=arch: arch)
        given = {case.name: recoverssm_deferred.deferred_providers(case, cuda) for case in SETS["nightly"]}
        assert {name for name, providers in given.items() if providers} == (recoverssm_deferred.CASES if can else set())
        assert {providers for providers in given.values() if providers} == expected
    monkeypatch.undo()
    assert not any(recoverssm_deferred.deferred_providers(case, CPU) for case in SETS["nightly"])


def aligned(dtype="fp32", num_layers=2):
    """A tiny case in which a request accepts 3 or 4 of 8 tokens, as in the cases that the provider is for."""
    return replace(tiny(f"kimi_k3_tp8_b32_t8_a3.84_{dtype}"), num_layers=num_layers)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_commits_in_align_mode_are_right_and_stay_finite_when_called_again(dtype):
    prepared = ALIGN.prepare(aligned(dtype), CPU, 7, 0)
    checklist = Checklist("case", ALIGN.name, INTERPRETED)
    prepared.check(checklist)
    series = prepared.series()
    for one in series:
        one.calls[0]()

    assert [check for check in checklist.checks if not check.passed] == []
    assert {check.op for check in checklist.checks} == {"align", "commit", "commit_crossing"}
    assert prepared.num_non_finite() == 0
    assert tuple((one.op, one.contract) for one in series) == ALIGN.series_names
    assert ALIGN.needed_bytes(aligned(dtype), 0) > ALIGN.cache_bytes(aligned(dtype))


def test_everyone_crosses_in_one_series_and_nobody_in_the_other():
    prepared = ALIGN.prepare(aligned(), CPU, 7, 0)
    before = [state.clone() for state in prepared._states]
    written = {}
    for one in prepared.series()[1:]:
        one.calls[0]()
        written[one.op] = sum(
            int((x != y).flatten(1).any(1).sum()) for x, y in zip(prepared._states, before, strict=True)
        )
        one.restore()

    costs = {one.op: one.cost for one in prepared.series()}
    num_states = 2 * aligned().num_requests  # two layers
    assert written == {"commit": num_states, "commit_crossing": 2 * num_states}
    extra = costs["commit_crossing"].write_bytes - costs["commit"].write_bytes
    assert extra > num_states * base.layer_sizes(aligned()).state_bytes


def test_a_boundary_that_is_not_written_fails_the_check(monkeypatch):
    commit_state = committer.commit_state
    monkeypatch.setattr(committer, "commit_state", lambda *a, boundaries, **kw: commit_state(*a, boundaries=None, **kw))
    checklist = Checklist("case", ALIGN.name, INTERPRETED)

    ALIGN.prepare(aligned(), CPU, 7, 0).check(checklist)

    assert {check.op for check in checklist.checks if not check.passed} == {"commit_crossing"}


def test_two_cases_of_a_night_are_measured_in_align_mode():
    measured = [case.name for case in SETS["nightly"] if ALIGN in extra_providers(case, CPU)]

    assert measured == sorted(recoverssm_align.CASES, reverse=True)
    assert all(
        min(inputs.accepted_counts(case)) > recoverssm_align.CROSSED_AT
        for case in SETS["nightly"]
        if case.name in measured
    )
