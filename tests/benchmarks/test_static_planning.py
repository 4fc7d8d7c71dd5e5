"""What is compiled is what the ops would launch there, found without a card and without memory."""

from dataclasses import replace

import pytest
import torch

from benchmarks.cases import SETS, kimi_k3
from benchmarks.providers import Series
from benchmarks.providers.base import layer_sizes
from benchmarks.static.identity import launches_and_torch_ops
from benchmarks.static.planning import plan
from recoverssm import triton_compat
from recoverssm.cost import Cost

CASE = kimi_k3(8, 32, 8, 3.84, "bf16")


@pytest.fixture(scope="module")
def smoke():
    return plan(SETS["smoke"], ["sm_90", "sm_100"])


def kernels(jobs, arch):
    return {job.kernel for job in jobs if job.arch == arch}


@pytest.mark.skipif(not triton_compat.IS_TESTED, reason="forms in Gluon fit this Triton version alone")
def test_each_architecture_gets_the_forms_that_fit_it(smoke):
    everywhere = {"commit_plan", "commit_state_async", "compact_conv"}
    assert kernels(smoke.jobs, "sm_90") == everywhere | {"verify_wgmma", "full_state_staged"}
    assert "verify_mma" in kernels(smoke.jobs, "sm_100")
    assert "verify_wgmma" not in kernels(smoke.jobs, "sm_100")


def test_a_kernel_is_compiled_once_whoever_launches_it(smoke):
    names = [(job.arch, job.name) for job in smoke.jobs]
    assert len(set(names)) == len(names)
    (conv,) = (
        job for job in smoke.jobs if job.kernel == "compact_conv" and job.arch == "sm_90" and CASE.name in job.cases
    )
    assert conv.launched_by == {"recoverssm/conv", "recoverssm/commit", "recoverssm/step"}
    assert len(set(conv.cases)) == len(conv.cases) > 1


@pytest.mark.skipif(not triton_compat.IS_TESTED, reason="forms in Gluon fit this Triton version alone")
def test_the_verify_that_takes_history_is_compiled_where_cards_have_it(smoke):
    names = {arch: {job.name for job in smoke.jobs if job.arch == arch} for arch in ("sm_90", "sm_100")}
    taking = {job.name for job in smoke.jobs if "recoverssm_deferred/verify" in job.launched_by}
    assert taking
    assert taking <= names["sm_90"]
    assert {job.launched_by == {"recoverssm_deferred/verify"} for job in smoke.jobs if job.name in taking} == {True}
    assert "recoverssm_deferred/verify" not in smoke.num_launches["sm_100"]


def test_launches_of_a_call_are_counted(smoke):
    counts = {series: cases[CASE.name] for series, cases in smoke.num_launches["sm_90"].items()}
    layers = CASE.num_layers
    assert counts["recoverssm/verify"] == counts["recoverssm/commit_state"] == counts["full_state/verify"] == 1
    assert (counts["recoverssm/commit"], counts["recoverssm/step"], counts["full_state/step"]) == (
        3,
        layers + 3,
        layers,
    )


def test_layers_whose_gates_lie_elsewhere_are_kernels_of_their_own():
    """With 6 heads the gates of every second layer begin at no multiple of 16 bytes."""
    jobs = plan([kimi_k3(16, 32, 8, 3.84, "bf16")], ["sm_90"]).jobs
    aligned = {job.specialisation.split()[5] for job in jobs if job.kernel.startswith("verify")}
    assert aligned == {"*fp32:16", "*fp32"}


def test_ids_and_order_do_not_depend_on_the_process_or_the_order_of_cases(smoke):
    again = plan(SETS["smoke"][::-1], ["sm_90", "sm_100"])
    assert [(job.arch, job.id) for job in again.jobs] == [(job.arch, job.id) for job in smoke.jobs]
    assert all(tensor.device == torch.device("meta") for job in smoke.jobs for tensor in job.tensors)


def fingerprints(planned, binary="hash"):
    hashes = {job.name: f"{binary} {job.kernel}" for job in planned.jobs}
    return {name: facts[CASE.name].fingerprint(hashes) for name, facts in planned.ops["sm_90"].items()}


def test_the_same_work_has_the_same_fingerprint_whatever_else_is_planned(smoke):
    assert fingerprints(plan([CASE], ["sm_90"])) == fingerprints(smoke)


def test_another_binary_argument_or_torch_operation_is_other_work(smoke):
    facts = smoke.ops["sm_90"]["recoverssm/verify"][CASE.name]
    hashes = {job.name: "hash" for job in smoke.jobs}
    same = facts.fingerprint(hashes)
    (job, (grid, *rest)) = facts.launches[0]

    other_grid = replace(facts, launches=[(job, [[number + 1 for number in grid], *rest]), *facts.launches[1:]])
    other_torch = replace(facts, torch_ops=[*facts.torch_ops, "aten.fill_.Scalar"])
    assert (
        len(
            {
                same,
                other_grid.fingerprint(hashes),
                other_torch.fingerprint(hashes),
                fingerprints(smoke)["recoverssm/verify"],
            }
        )
        == 4
    )
    assert facts.fingerprint(dict.fromkeys(hashes)) is None


def test_torch_operations_inside_a_call_are_seen():
    pool = torch.empty(4, device="meta")
    launches, torch_ops = launches_and_torch_ops(Series("conv", "graph-cold", (pool.zero_,), Cost(1, 1, 0)))
    assert launches == [[]]
    assert torch_ops == ["aten.zero_.default"]


def test_modelled_bytes_of_a_call_are_those_of_the_cost_model(smoke):
    facts = smoke.ops["sm_90"]["recoverssm/verify"][CASE.name]
    sizes = layer_sizes(CASE)
    assert facts.read_bytes >= CASE.num_requests * sizes.state_bytes
    assert 0 < facts.write_bytes < facts.read_bytes
