"""What was checked once is launched as it is, and only that: the key of a call holds all that checks and Triton see."""

import threading
from collections import Counter
from dataclasses import fields, is_dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recoverssm import (
    ArgumentError,
    CommitContext,
    CommitPlan,
    DeviceError,
    GateParams,
    ShapeError,
    dispatch,
)
from recoverssm.dispatch import MAX_KEPT, Prepared, TensorMeta, describe, planned_for
from recoverssm.ops import commit_plan, verify
from recoverssm.triton_compat import KernelLaunch
from tests.calls import OPS, changed, commit_plan_call, noted_launches, parts_of, shifted, verify_call
from tests.windows import FULL, Window, int32, storage_bits


@pytest.fixture
def launches():
    with noted_launches() as launches:
        yield launches


TENSOR_CHANGES = {
    "none": lambda x: x,
    "shifted": shifted,
    "half": lambda x: x.half(),
    "long": lambda x: x.long(),
    "float": lambda x: x.float(),
    "elsewhere": lambda x: x.to("meta"),
    "shorter": lambda x: x[:-1],
    "empty": lambda x: x[:0],
    "narrower": lambda x: x[..., :-1],
    "padded": lambda x: torch.stack([x, x], dim=-1)[..., 0],
    "spaced": lambda x: torch.cat([x, x], dim=-1)[..., : x.shape[-1]],
    "deeper": lambda x: x[None],
    "flat": lambda x: x.flatten(),
    "turned": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "broadcast": lambda x: x[:1].expand(x.shape),
}
OPTION_CHANGES = {
    "spec_query_len": [4, 4.0, 0, 1, True, 16, 17],
    "conv_width": [4, 4.0, 1, 2, 7, 8],
    "request_indices": [None],
}


def outcome(op, call, launches):
    """What an op does with a call: what it launches, or what it raises."""
    launches.clear()
    try:
        op(**call)
    except Exception as error:
        assert not launches
        return type(error), str(error)
    return list(launches)


@st.composite
def variants(draw, call):
    """The call with up to two things changed."""
    for _ in range(draw(st.integers(1, 2))):
        options = [name for name in OPTION_CHANGES if name in call]
        name = draw(st.sampled_from([*options, "lower_bound", "block_size", *["tensor"] * 12]))
        if name == "tensor":
            path = draw(st.sampled_from(list(parts_of(call))))
            change = TENSOR_CHANGES[draw(st.sampled_from(sorted(TENSOR_CHANGES)))]
            try:
                call = changed(call, path, change)
            except (ArgumentError, RuntimeError, IndexError, AttributeError):
                continue  # no such tensor, or already changed into nothing
        elif name == "lower_bound":
            if "gate" in call:
                gate = call["gate"]
                bound = draw(st.sampled_from([None, -5.0, -5, -1.0]))
                call = call | {"gate": GateParams(gate.A_log, gate.dt_bias, bound)}
        elif name == "block_size":
            if "align" in call:
                call = call | {"align": replace(call["align"], block_size=draw(st.sampled_from([1, 2, 4, 5, 64])))}
        else:
            call = call | {name: draw(st.sampled_from(OPTION_CHANGES[name]))}
    return call


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
@given(data=st.data())
def test_a_call_among_others_ends_as_it_would_alone(op, data):
    """Whatever came before: accepted with the same launch, or refused with the same words, again and again."""
    good = OPS[op]()
    calls = [good, *(data.draw(variants(good)) for _ in range(3))]
    order = data.draw(st.lists(st.sampled_from(range(len(calls))), min_size=4, max_size=10))
    with noted_launches() as launches:
        alone = []
        for call in calls:
            with pytest.MonkeyPatch.context() as forget:
                module = op.__globals__
                prepared = module[f"_{op.__name__}"]
                forget.setitem(module, f"_{op.__name__}", Prepared(prepared.prepare))
                alone.append(outcome(op, call, launches))
        assert alone[0]
        assert isinstance(alone[0], list)

        for number in order:
            assert outcome(op, calls[number], launches) == alone[number]


def test_calls_that_look_alike_are_prepared_once_and_any_difference_counts(launches):
    prepared_for = []

    @Prepared
    def op(tensors, *options):
        prepared_for.append((tensors, options))
        return KernelLaunch(object(), (len(prepared_for),), tensors[0].device, constants={})

    x = torch.zeros(4, 8)
    alike = torch.ones(4, 8)
    different = [
        shifted(x),
        x.double(),
        x[:2],
        x.t().contiguous().t(),
        torch.zeros(4, 16)[:, :8],
        x[None],
    ]

    for tensor in (x, alike, *different, x, *different):
        op((tensor,))
    for option in (1, 1.0, True, None, 1):
        op((x,), option)

    assert [tensors[0] for tensors, _ in prepared_for[:7]] == [describe(tensor) for tensor in (x, *different)]
    assert [options for _, options in prepared_for[7:]] == [(1,), (1.0,), (True,), (None,)]
    assert [grid for _, grid, _, _ in launches] == [
        *((n,) for n in (1, 1, 2, 3, 4, 5, 6, 7)),
        *((n,) for n in (1, 2, 3, 4, 5, 6, 7)),
        *((n,) for n in (8, 9, 10, 11, 8)),
    ]


def test_each_misaligned_tensor_is_told_apart(launches):
    prepared_for = []

    @Prepared
    def op(tensors):
        prepared_for.append([tensor.aligned for tensor in tensors])

    x = torch.zeros(8)
    op((x, x))
    op((shifted(x), x))
    op((x, shifted(x)))
    op((x, x))

    assert prepared_for == [[True, True], [False, True], [True, False]]
    assert launches == []  # None is prepared: nothing to do


def test_a_refusal_is_never_kept(launches):
    refusals = []

    @Prepared
    def op(tensors):
        refusals.append(tensors)
        raise ShapeError("no")

    for _ in range(3):
        with pytest.raises(ShapeError, match="no"):
            op((torch.zeros(2),))
    assert len(refusals) == 3


def test_no_more_launches_are_kept_than_the_limit_and_no_tensor_is(launches, monkeypatch):
    monkeypatch.setattr(dispatch, "MAX_KEPT", 2)
    prepared_for = Counter()

    @Prepared
    def op(tensors):
        prepared_for[tensors[0].shape[0]] += 1
        return KernelLaunch(object(), (1,), tensors[0].device, constants={})

    for size in (1, 2, 1, 3, 1, 2):
        op((torch.zeros(size),))

    assert MAX_KEPT > 100
    assert prepared_for == {1: 1, 2: 2, 3: 1}
    assert not any(isinstance(x, torch.Tensor) for x in describe(torch.zeros(1)))


def test_threads_share_what_is_kept(launches):
    window = Window(FULL, "cpu")
    errors, good = [], commit_plan_call()
    sizes = [window.state_indices[:1], window.state_indices[:2], window.state_indices]

    def work(number):
        for i in range(200):
            n = 1 + (i + number) % 3
            plan = CommitPlan(*(int32([9] * n, "cpu") for _ in range(3)))
            call = good | {"state_indices": sizes[n - 1], "plan": plan, "request_indices": None}
            try:
                commit_plan(**call | {"query_start_loc": good["query_start_loc"][: n + 1]})
                with pytest.raises(ShapeError):
                    commit_plan(**call | {"query_start_loc": good["query_start_loc"][:n]})
            except BaseException as error:  # whatever it is, the test must see it
                errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert len(launches) == 8 * 200


def test_a_tensor_that_was_resized_in_place_is_looked_at_again(launches):
    call = verify_call()
    call["out"] = torch.zeros(call["v"].shape, dtype=call["v"].dtype)
    verify(**call)
    call["out"].resize_(call["v"].shape[0], 1, 1)

    with pytest.raises(ShapeError, match="out: expected"):
        verify(**call)


def test_what_is_no_tensor_is_refused():
    with pytest.raises(AttributeError, match="NoneType"):
        verify(**verify_call() | {"raw_beta": None})


def test_the_plan_of_a_context_is_the_same_view_each_time(launches):
    window = Window(FULL, "cpu")
    context = CommitContext(window.checkpoint_states, window.records, [], window.gate, max_num_rows=3)
    rows, starts = int32([1, 1, 1], "cpu"), window.query_start_loc

    first = context.commit(rows, starts, window.state_indices)
    shorter = context.commit(rows, starts[:3], window.state_indices[:2])

    assert context.commit(rows, starts, window.state_indices) is first
    assert shorter.commit_lens.shape == (2,)
    assert shorter.final_slots.data_ptr() == first.final_slots.data_ptr()


def on_meta(value):
    """The same argument without memory."""
    match value:
        case torch.Tensor():
            return value.to("meta")
        case tuple() | list():
            return type(value)(map(on_meta, value))
        case _ if is_dataclass(value):
            return replace(value, **{part.name: on_meta(getattr(value, part.name)) for part in fields(value)})
    return value


def test_what_another_card_would_launch_can_be_asked_for_one_after_another(launches):
    call = {name: on_meta(value) for name, value in verify_call().items()}
    for arch in (90, 100, 90):
        with planned_for(arch):
            verify(**call)
    shapes = [(kernel, constants) for kernel, _, _, constants in launches]
    assert len(shapes) == 3
    assert shapes[0] == shapes[2]  # nothing of one card is kept for another


def test_a_planned_launch_does_nothing_and_checks_still_hold():
    call = {name: on_meta(value) for name, value in verify_call().items()}
    with planned_for(90):
        verify(**call)
        with pytest.raises(ShapeError, match="state_indices"):
            verify(**call | {"state_indices": int32([[1]], "meta")})
        with pytest.raises(DeviceError, match="expected sm_90 like the first argument, got cpu"):
            verify(**call | {"out": torch.zeros(call["out"].shape, dtype=call["out"].dtype)})


def test_without_a_card_to_plan_for_the_meta_device_is_refused_every_time():
    call = {name: on_meta(value) for name, value in verify_call().items()}
    with planned_for(90):
        verify(**call)
    for _ in range(2):
        with pytest.raises(DeviceError, match="expected a CUDA device, got meta"):
            verify(**call)


def test_metadata_is_that_of_the_tensor():
    tensor = torch.zeros(4, 8, dtype=torch.bfloat16)[:, 1:3]

    assert describe(tensor) == TensorMeta((4, 2), torch.bfloat16, torch.device("cpu"), (8, 1), False)


def verified(device, spoil=lambda tensor: tensor):
    """Every bit that a verify on ``device`` writes; ``spoil`` may move q."""
    window = Window(FULL, device)
    q, *others = window.activations
    arguments = (window.checkpoint_states[0], window.records[0], window.layer_gate())
    verify(spoil(q), *others, *arguments, window.query_start_loc, window.state_indices, out=window.out)
    written = (window.out, window.records[0].correction, window.records[0].key_gate)
    return [storage_bits(tensor).cpu() for tensor in written]


def same_bits(actual, expected):
    return all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))


@pytest.mark.gpu
def test_a_direct_launch_writes_what_the_first_did_whatever_lies_between():
    expected = verified("cuda")

    for spoil in (torch.clone, shifted, torch.clone, shifted, shifted, torch.clone):
        assert same_bits(verified("cuda", spoil), expected)


@pytest.mark.gpu
def test_a_launch_goes_to_the_stream_that_is_current():
    window = Window(FULL, "cuda")
    call = dict(zip(("q", "k", "v", "raw_gate", "raw_beta"), window.activations, strict=True))
    call |= {"checkpoint_state": window.checkpoint_states[0], "records": window.records[0], "out": window.out}
    call |= {"query_start_loc": window.query_start_loc, "state_indices": window.state_indices}
    call["gate"] = window.layer_gate()
    for _ in range(2):
        verify(**call)
    expected = storage_bits(window.out)
    graph = torch.cuda.CUDAGraph()

    with torch.cuda.graph(graph):  # on a stream of its own: a launch elsewhere would not be in it
        verify(**call)

    window.out.zero_()
    graph.replay()
    assert torch.equal(storage_bits(window.out), expected)


@pytest.mark.gpu
def test_tensors_on_another_gpu_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    expected = verified("cuda:0")

    for device in ("cuda:1", "cuda:0", "cuda:1"):
        assert same_bits(verified(device), expected)
        assert torch.cuda.current_device() == 0
