"""Every stride that an op leaves free: the bits are those of dense tensors, and nothing between elements changes.

Kernels (in the interpreter) and references alike; each example draws memory of its own for every tensor.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from recoverssm import (
    AlignInputs,
    AlignPlan,
    Boundaries,
    CommitPlan,
    LayerTable,
    Records,
    StrideError,
    align_plan,
    commit_state,
    compact_conv,
    full_state_verify,
    reference,
    verify,
)
from tests.calls import OPS, changed, parts_of
from tests.test_commit_state import fill_records
from tests.test_full_state import FullStateWindow
from tests.windows import INT_OF, Window, WindowCase, assert_gaps_untouched, int32, storage_bits

CASE = WindowCase((3, 0, 2), (2, 1, 4), spec_query_len=3, key_dim=16, value_dim=16, num_layers=2)
MAX_GAP = 40  # elements: below, at and above what kernels move at a time

few = settings(max_examples=6, phases=[Phase.generate])  # a launch takes tens of milliseconds


class Spread:
    """Draws strides, and remembers what lies between the elements."""

    def __init__(self, data, *, all_dims=False):
        self.data, self.all_dims, self.made = data, all_dims, []

    def __call__(self, tensor):
        """The same values in memory of its own: entries of the first dimension apart, or all dimensions anyhow."""
        draw, dims = self.data.draw, range(tensor.dim())
        order = draw(st.permutations(dims), label="order") if self.all_dims else dims
        strides, step = [0] * tensor.dim(), 1
        for dim in reversed(order):
            is_free = self.all_dims or dim == 0
            step += draw(st.integers(0, MAX_GAP), label="gap") if is_free else 0
            strides[dim] = step
            step *= tensor.shape[dim]
        first = draw(st.integers(0, 17), label="first")
        poison = float("nan") if tensor.is_floating_point() else 12345
        storage = torch.full((first + step + MAX_GAP,), poison, dtype=tensor.dtype)
        spread = storage.as_strided(tensor.shape, strides, first).copy_(tensor)
        self.made.append((spread, storage_bits(spread)))
        return spread

    def check(self):
        for spread, before in self.made:
            assert_gaps_untouched("spread", spread, before)


def rows(values):
    return int32(values, "cpu")


def dense(tensor):
    return tensor.clone(memory_format=torch.contiguous_format)


def assert_same_bits(one, other):
    kind = INT_OF[one.dtype]
    assert torch.equal(dense(one).view(kind), dense(other).view(kind))


@few
@pytest.mark.parametrize("op", [verify, reference.verify])
@pytest.mark.parametrize("by_slot", [False, True])
@given(data=st.data())
def test_verify(op, by_slot, data):
    window = Window(replace(CASE, by_slot=by_slot), "cpu")
    results = []
    for place in (dense, Spread(data)):
        records = Records(place(window.records[0].correction), place(window.records[0].key_gate), by_slot)
        activations, state, out = map(place, window.activations), place(window.checkpoint_states[0]), place(window.out)
        op(*activations, state, records, window.layer_gate(), window.query_start_loc, window.state_indices, out=out)
        results.append((out, records.correction, records.key_gate, state))
    place.check()

    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


@few
@pytest.mark.parametrize("op", [full_state_verify, reference.full_state_verify])
@given(data=st.data())
def test_full_state_verify(op, data):
    window = FullStateWindow(replace(CASE, num_layers=1), "cpu")
    gate, starts, indices, accepted = window.arguments()
    results = []
    for place in (dense, Spread(data)):
        pool, out = place(window.pool), place(window.out)
        op(*map(place, window.activations), pool, gate, starts, place(indices), accepted, out=out)
        results.append((out, pool))
    place.check()

    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


@few
@pytest.mark.parametrize("is_kernel", [True, False], ids=["kernel", "reference"])
@pytest.mark.parametrize("by_slot", [False, True])
@given(data=st.data())
def test_commit_state(is_kernel, by_slot, data):
    """Layers apart by different strides."""
    window = Window(replace(CASE, by_slot=by_slot), "cpu")
    fill_records(window)
    plan = window.plan([3, 0, 2], [2, 1, 3])
    crossed = Boundaries(rows([[1, 3], [0, 0], [1, 0]]), rows([[5, 2], [0, 0], [4, 0]]))
    results = []
    for place in (dense, Spread(data)):
        states = [place(state) for state in window.checkpoint_states]
        records = [Records(place(r.correction), place(r.key_gate), by_slot) for r in window.records]
        if is_kernel:
            layers = (states, [r.correction for r in records], [r.key_gate for r in records])
            tables = (LayerTable.of("t", tensors) for tensors in layers)
            commit_state(*tables, plan, window.gate, by_slot=by_slot, boundaries=crossed)
        else:
            reference.commit_state(states, records, plan, window.gate, boundaries=crossed)
        results.append(states)
    place.check()

    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


@few
@pytest.mark.parametrize("is_kernel", [True, False], ids=["kernel", "reference"])
@given(data=st.data())
def test_compact_conv(is_kernel, data):
    """Slots, tokens and channels in any order in memory."""
    conv = torch.randn(5, 7, 12, generator=torch.Generator().manual_seed(0)).bfloat16()
    plan = CommitPlan(rows([4, 0, 2]), rows([2, 1, 4]), rows([2, 1, 3]))
    crossed = Boundaries(rows([[2, 4], [0, 0], [1, 0]]), rows([[1, 2], [0, 0], [4, 0]]))
    results = []
    for place in (dense, Spread(data, all_dims=True)):
        state = place(conv)
        if is_kernel:
            compact_conv(LayerTable.of("conv", [state]), plan, conv_width=4, boundaries=crossed)
        else:
            reference.compact_conv([state], plan, conv_width=4, boundaries=crossed)
        results.append(state)
    place.check()

    assert_same_bits(*results)


@few
@given(data=st.data())
def test_update_conv_window(data):
    generator = torch.Generator().manual_seed(0)
    conv, x, weight = (torch.randn(*size, generator=generator) for size in ((5, 7, 12), (9, 12), (12, 4)))
    starts, slots = rows([0, 4, 4, 9]), rows([2, 0, 4])
    results = []
    for place in (dense, Spread(data, all_dims=True)):
        state, out = place(conv), place(torch.zeros(9, 12))
        reference.update_conv_window(state, place(x), starts, slots, place(weight), out=out)
        results.append((state, out))
    place.check()

    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


@few
@pytest.mark.parametrize("op", [align_plan, reference.align_plan])
@given(data=st.data())
def test_align_plan(op, data):
    table = torch.arange(1, 13, dtype=torch.int32).view(3, 4)
    starts, slots = rows([0, 3, 3, 5]), rows([2, 5, 9])
    results = []
    for place in (dense, Spread(data)):
        align = AlignInputs(rows([1, 4, 2]), place(table), 2)
        plan = AlignPlan.zeros(3, spec_query_len=3, block_size=2)
        op(rows([3, 1, 1]), starts, slots, align, plan, spec_query_len=3)
        results.append((plan.commit.commit_lens, plan.commit.final_slots, plan.boundaries.slots, plan.final_columns))
    place.check()

    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


def tensors_of(value, path):
    """The tensors at the end of a path from ``parts_of``."""
    for name in path:
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value if isinstance(value, tuple) else (value,)


def full_of_numbers(tensor):
    """The call's own tensor, dense, with numbers in the place of NaN."""
    numbers = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(tensor.numel())).to(tensor.dtype)
    return torch.where(tensor.isnan(), numbers, tensor) if tensor.is_floating_point() else dense(tensor)


@settings(few, max_examples=8)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
@given(data=st.data())
def test_any_stride_of_any_argument_is_honoured_or_refused(op, data):
    """Never a wrong answer: inner dimensions that kernels cannot step through raise StrideError."""

    def numbers():
        call = OPS[op]()
        for path in list(parts_of(call)):
            call = changed(call, path, full_of_numbers)
        return call

    expected, call = numbers(), numbers()
    path = data.draw(st.sampled_from(list(parts_of(call))), label="path")
    place = Spread(data, all_dims=True)
    call = changed(call, path, place)
    op(**expected)

    refused = None
    try:
        op(**call)
    except StrideError as error:
        refused = str(error)
    if refused:
        assert [name for name in path if name != "tensors"][-1] in refused
        return

    place.check()
    for each in parts_of(call):
        for one, other in zip(tensors_of(call, each), tensors_of(expected, each), strict=True):
            assert_same_bits(one, other)
