"""RecoverSSMState: one commit per verify, also when requests are aborted, preempted, filtered or reordered between."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recoverssm import (
    ArgumentError,
    ConfigError,
    RecoverSSMConfig,
    RecoverSSMState,
    RequestBatch,
    SampledByRow,
    SampledBySlot,
    ShapeError,
    StepError,
)
from tests.one_layer import OneLayer
from tests.windows import int32

ROOT = Path(__file__).resolve().parent.parent
T, H, K, V = 4, 1, 16, 16


def config_of(**options):
    return RecoverSSMConfig(
        **{
            "num_heads": H,
            "draft_tokens": T - 1,
            "max_num_requests": 6,
            "key_dim": K,
            "value_dim": V,
            "activation_dtype": torch.float32,
        }
        | options
    )


@pytest.fixture(params=["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request):
    """None for the float64 reference, else the device that runs the kernels."""
    if request.param == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels are compiled here: run with TRITON_INTERPRET=1")
    return None if request.param == "reference" else request.param


@pytest.fixture
def layer():
    return OneLayer(config_of())


def test_windows_with_and_without_drafts_alternate_in_one_batch(backend):
    layer = OneLayer(config_of(cuda_graph_sizes=(4,)), device=backend)
    first, second, third = (layer.add() for _ in range(3))

    for lens, accepted in [((4, 1, 2), (3, 1, 2)), ((1, 4, 3), (1, 4, 1)), ((4, 4, 1), (1, 2, 1))]:
        step = layer.step(list(zip((first, second, third), lens, strict=True)))
        assert step.graph_size == 4
        layer.commit(step, {r.request_slot: a for r, a in zip((first, second, third), accepted, strict=True)})
        layer.check()


def test_a_batch_without_any_draft_goes_on_from_the_token_that_was_accepted_last(layer):
    requests = [layer.add(), layer.add()]
    layer.commit(layer.step([(r, 4) for r in requests]), {r.request_slot: 3 for r in requests})

    layer.commit(layer.step([(r, 1) for r in requests]), {r.request_slot: 1 for r in requests})

    layer.check()


@pytest.mark.parametrize("by_slot", [False, True], ids=["by row", "by slot"])
def test_a_request_aborted_between_verify_and_commit_leaves_its_slots_to_the_next_one(backend, by_slot):
    layer = OneLayer(config_of(), device=backend)
    stays, aborted = layer.add(), layer.add()
    step = layer.step([(stays, 4), (aborted, 3)], prompts=1)

    layer.remove(aborted)
    successor = layer.add()
    plan = layer.commit(step, {stays.request_slot: 2, aborted.request_slot: 3}, by_slot=by_slot)

    assert (successor.state_slot, successor.request_slot) == (aborted.state_slot, aborted.request_slot)
    assert plan.commit_lens.tolist() == [2, 0]
    layer.check()


def test_without_dropping_the_aborted_request_its_successor_would_be_overwritten(layer):
    """What the test above would miss if nobody's slot were ever taken again."""
    stays, aborted = layer.add(), layer.add()
    step = layer.step([(stays, 4), (aborted, 3)])

    layer.forget(aborted)
    layer.add()
    layer.commit(step, {stays.request_slot: 2, aborted.request_slot: 3})

    with pytest.raises(AssertionError, match="state off by"):
        layer.check()


def test_a_preempted_request_comes_back_in_another_slot(layer):
    stays, preempted = layer.add(), layer.add()
    step = layer.step([(preempted, 4), (stays, 4)])

    layer.remove(preempted)
    other = layer.add()
    layer.commit(step, {stays.request_slot: 4, preempted.request_slot: 4})
    again = layer.add()
    step = layer.step([(again, 4), (other, 4), (stays, 4)])
    layer.commit(step, {r.request_slot: a for r, a in zip((again, other, stays), (1, 3, 4), strict=True)})

    assert again.state_slot != preempted.state_slot
    layer.check()


def test_counts_by_request_slot_are_right_in_whatever_order_the_batch_is_by_then(layer):
    requests = [layer.add() for _ in range(4)]
    step = layer.step([(requests[row], 4) for row in (2, 0, 3, 1)])

    layer.requests.reverse()  # the engine condenses its batch while it samples
    plan = layer.commit(step, {r.request_slot: a for r, a in zip(requests, (1, 2, 3, 4), strict=True)}, by_slot=True)

    assert plan.commit_lens.tolist() == [3, 1, 4, 2]
    layer.check()


def test_a_filtered_request_keeps_its_checkpoint_bit_for_bit(layer):
    filtered, other = layer.add(), layer.add()
    step = layer.step([(filtered, 4), (other, 4)])
    before = layer.pool[filtered.state_slot].clone()

    layer.commit(step, {filtered.request_slot: 0, other.request_slot: 4})

    assert torch.equal(layer.pool[filtered.state_slot], before)
    layer.check()


def test_counts_of_padding_and_of_prompts_change_nothing(layer):
    request = layer.add()
    step = layer.step([(request, 4)], prompts=3)

    plan = layer.commit(step, {request.request_slot: 2})

    assert plan.commit_lens.tolist() == [2]
    layer.check()


def test_a_batch_of_prompts_alone_is_a_step_with_nothing_to_commit(layer):
    step = layer.step([], prompts=2)

    assert layer.commit(step, {}) is None
    assert layer.committers[0].num_commits == 0
    layer.life.check_idle()
    layer.builder.build(RequestBatch([], [], [], [], []))


def test_a_second_commit_is_an_error_that_names_the_step(layer):
    request = layer.add()
    first = layer.step([(request, 4)])
    layer.commit(first, {request.request_slot: 2})
    sampled = SampledByRow(int32([2], "cpu"))

    with pytest.raises(StepError, match="step 1 cannot be committed: it was committed already"):
        layer.life.commit_step(first, sampled)
    second = layer.step([(request, 4)])
    with pytest.raises(StepError, match="step 1 cannot be committed: it was committed already"):
        layer.life.commit_step(first, sampled)
    layer.commit(second, {request.request_slot: 4})
    layer.check()


def test_a_missing_commit_is_an_error_that_names_the_step(layer):
    request = layer.add()
    layer.step([(request, 4)])

    with pytest.raises(StepError, match="step 2: step 1 has been neither committed nor discarded"):
        layer.step([(request, 4)])
    with pytest.raises(StepError, match="commit missing: step 1 was recorded"):
        layer.life.check_idle()


def test_a_request_may_not_be_in_two_steps_at_once():
    layer = OneLayer(config_of(pipeline_parallel=2))
    request, other = layer.add(), layer.add()
    layer.step([(request, 4)])

    with pytest.raises(
        StepError, match=f"step 2 cannot be recorded: request slot {request.request_slot} is also in step 1"
    ):
        layer.step([(other, 1), (request, 4)])


def test_a_step_that_was_not_recorded_cannot_be_committed(layer):
    step = layer.builder.build(RequestBatch([4], [3], [False], [1], [0]))

    with pytest.raises(StepError, match=r"step 1 cannot be committed: it was never recorded here; call record_step"):
        layer.life.commit_step(step, SampledByRow(int32([1], "cpu")))


@pytest.mark.parametrize("end", ["committed", "discarded"])
def test_a_step_that_is_over_can_neither_be_recorded_nor_discarded(layer, end):
    request = layer.add()
    step = layer.step([(request, 4)])
    if end == "committed":
        layer.commit(step, {request.request_slot: 1})
    else:
        layer.life.discard_step(step)

    with pytest.raises(StepError, match=f"step 1 cannot be recorded: it was {end} already"):
        layer.life.record_step(step)
    with pytest.raises(StepError, match=f"step 1 cannot be discarded: it was {end} already"):
        layer.life.discard_step(step)


def test_ends_of_long_ago_are_forgotten_but_not_undone(layer):
    steps = []
    for _ in range(70):
        steps.append(layer.step([]))
        layer.commit(steps[-1], {})

    with pytest.raises(StepError, match="step 1 cannot be recorded: it ended long ago"):
        layer.life.record_step(steps[0])


def test_recording_twice_is_an_error(layer):
    step = layer.step([(layer.add(), 4)])

    with pytest.raises(StepError, match="step 1 cannot be recorded: it was recorded already"):
        layer.life.record_step(step)


def test_captures_and_dummy_runs_leave_nothing_pending(layer):
    for rows in (1, 6):
        dummy = layer.builder.build_dummy(rows)
        layer.life.record_step(dummy)
        layer.life.discard_step(dummy)
        with pytest.raises(StepError, match=f"step {dummy.step_id} cannot be committed: it is a dummy"):
            layer.life.commit_step(dummy, SampledByRow(int32([4] * rows, "cpu")))

    assert layer.life.pending_steps == ()
    request = layer.add()
    layer.commit(layer.step([(request, 4)]), {request.request_slot: 4})
    layer.check()


def test_a_dummy_run_may_not_take_the_buffers_of_a_verified_step(layer):
    request = layer.add()
    step = layer.step([(request, 4)])

    with pytest.raises(StepError, match="step 1 has been neither"):
        layer.builder.build_dummy(1)

    layer.commit(step, {request.request_slot: 3})
    layer.check()


def test_a_discarded_step_leaves_every_state_as_it_was(layer):
    request = layer.add()
    step = layer.step([(request, 4)])
    before = layer.pool.clone()

    layer.life.discard_step(step)

    del layer.in_flight[step.step_id]
    assert torch.equal(layer.pool.nan_to_num(), before.nan_to_num())
    layer.prefill(request)  # the step had rolled its conv window
    layer.commit(layer.step([(request, 4)]), {request.request_slot: 2})
    layer.check()


def test_a_commit_that_refuses_its_arguments_leaves_the_step_pending(device):
    layer = OneLayer(config_of(), device=device)
    request = layer.add()
    step = layer.step([(request, 4)])

    with pytest.raises(ArgumentError, match="expected SampledByRow or SampledBySlot, got Tensor"):
        layer.life.commit_step(step, int32([2], layer.device))
    with pytest.raises(ArgumentError, match="num_sampled: expected int32, got int64"):
        layer.life.commit_step(step, SampledByRow(torch.tensor([2], device=layer.device)))

    layer.commit(step, {request.request_slot: 2})
    layer.check()


@pytest.mark.parametrize(
    "options", [{"pipeline_parallel": 2}, {"micro_batches": 2}, {"micro_batches": 2, "placement": "page"}], ids=str
)
def test_two_steps_in_flight_keep_their_records_and_metadata_apart(options, backend):
    layer = OneLayer(config_of(**options), device=backend)
    first, second, third = (layer.add() for _ in range(3))
    one = layer.step([(first, 4), (second, 3)])
    two = layer.step([(third, 2)])

    layer.commit(two, {third.request_slot: 1})
    three = layer.step([(third, 4)])
    layer.commit(one, {first.request_slot: 3, second.request_slot: 1}, by_slot=True)
    layer.commit(three, {third.request_slot: 4})

    assert (one.lane, two.lane, three.lane) == (0, 1, 1)
    layer.check()


def test_counts_that_do_not_reach_every_request_are_refused_instead_of_taken_for_none(layer):
    requests = [layer.add() for _ in range(3)]
    step = layer.step([(request, 4) for request in reversed(requests)], prompts=1)

    with pytest.raises(ShapeError, match=r"expected an entry for request slot 0 at 3 in step 1, got \[3\]"):
        layer.life.commit_step(step, SampledByRow(int32([1, 1, 1], "cpu")))
    with pytest.raises(ShapeError, match=r"expected an entry for request slot 2 at 2 in step 1, got \[2\]"):
        layer.life.commit_step(step, SampledBySlot(int32([1, 1], "cpu")))

    layer.remove(requests[2])
    layer.life.commit_step(step, SampledBySlot(int32([1, 1], "cpu")))


@pytest.mark.parametrize("counts", [[5, 1], [-1, 1], [2, 2]], ids=str)
def test_debug_names_the_request_whose_count_its_window_does_not_hold(counts):
    layer = OneLayer(config_of(debug=True))
    requests = [layer.add(), layer.add()]
    step = layer.step([(requests[0], 4), (requests[1], 1)])

    with pytest.raises(ArgumentError, match=r"num_sampled: expected 0 to [14], .* request slot \d in step 1, got"):
        layer.life.commit_step(step, SampledByRow(int32(counts, "cpu")))

    layer.commit(step, {requests[0].request_slot: 4, requests[1].request_slot: 1})
    layer.check()


def test_debug_does_not_ask_what_became_of_a_dropped_request():
    layer = OneLayer(config_of(debug=True))
    stays, aborted = layer.add(), layer.add()
    step = layer.step([(stays, 4), (aborted, 4)])

    layer.remove(aborted)

    layer.commit(step, {stays.request_slot: 4, aborted.request_slot: 9}, by_slot=True)
    layer.check()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("state_indices", r"state_indices: expected 2 for request slot 1 in step 1, as it was built, got 9;"),
        (
            "query_start_loc",
            r"query_start_loc: expected \[4, 8\] for request slot 1 in step 1, as it was built, got \[4, 9",
        ),
    ],
)
def test_debug_finds_staging_buffers_that_somebody_has_written_over(name, message):
    layer = OneLayer(config_of(debug=True))
    requests = [layer.add(), layer.add()]
    step = layer.step([(request, 4) for request in requests])
    assert requests[1].state_slot == 2
    held = getattr(step, name)
    kept = held.clone()
    held[-1] = 9

    with pytest.raises(ArgumentError, match=message):
        layer.life.commit_step(step, SampledByRow(int32([1, 1], "cpu")))

    held.copy_(kept)
    layer.commit(step, {request.request_slot: 1 for request in requests})
    layer.check()


def test_debug_looks_at_staging_buffers_before_the_verify_too():
    layer = OneLayer(config_of(debug=True))
    step = layer.builder.build(
        RequestBatch(query_lens=[4], num_drafts=[3], is_prefilling=[False], state_slots=[5], request_slots=[0])
    )
    step.state_indices[0] = 6

    with pytest.raises(ArgumentError, match=r"state_indices: expected 5 for request slot 0 in step 1, .* got 6"):
        layer.life.record_step(step)
    assert layer.life.pending_steps == ()


def test_there_is_one_committer_for_each_step_in_flight():
    config = config_of(pipeline_parallel=2)
    committer = OneLayer(config_of()).committers[0]

    with pytest.raises(ConfigError, match="committers: expected 2, one per step in flight"):
        RecoverSSMState(config, [committer])
    with pytest.raises(ConfigError, match="got one twice; a plan is its lane's own"):
        RecoverSSMState(config, [committer, committer])


def test_dropping_a_request_that_is_in_no_step_does_nothing(layer):
    request = layer.add()

    assert not layer.life.drop_request(request.request_slot)
    layer.commit(layer.step([(request, 4)]), {request.request_slot: 4})
    layer.check()


@pytest.mark.parametrize(
    ("example", "printed"),
    [(0, "step 1: kept [3, 1]\n"), (1, "976896 (497664, 16384, 128, 1) True\n")],
    ids=["step", "pages"],
)
def test_the_examples_for_integrators_run(example, printed, tmp_path):
    script = tmp_path / "example.py"
    text = (ROOT / "docs/integrating.md").read_text()
    script.write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[example])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}

    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)

    assert done.stdout == printed, done.stderr
