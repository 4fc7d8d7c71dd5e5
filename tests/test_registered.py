"""The ops as torch's own: what they write is declared, fake tensors pass through, and compiled layers hold them."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from recoverssm import AlignInputs, CommitContext, GateParams, RecordRows, Records, verify
from tests.calls import OPS, changed, parts_of
from tests.test_verify import run_verify
from tests.windows import FULL, Window, assert_matches, int32, relative_error, storage_bits

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's compiler warns of itself, and advises about TF32

COMPILED_TOL = 1e-5  # relative norm; a compiler sums the fp32 projections in an order of its own


class Recorder(TorchDispatchMode):
    """Keeps the operators of this library that torch meets, and their arguments."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace != "recoverssm":
            return func(*args, **(kwargs or {}))
        self.calls.append((func, args))
        return None


def call_on(device, op):
    """A good call of a public op, its tensors on ``device``."""
    call = OPS[op]()
    for path in list(parts_of(call)):
        call = changed(call, path, lambda tensor: tensor.to(device))
    return call


def tensors_of(call):
    """Every tensor that a call reaches, layers of tables too."""
    found = []
    for path in parts_of(call):
        value = call
        for name in path:
            value = value[name] if isinstance(value, dict) else getattr(value, name)
        found += value if isinstance(value, tuple) else [value]
    return found


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
def test_torch_finds_nothing_wrong_with_an_operator(op, device, monkeypatch):
    call = call_on(device, op)
    with monkeypatch.context() as tracing, Recorder() as recorder:
        tracing.setattr(torch.compiler, "_is_compiling_flag", True)
        op(**call)
    ((func, args),) = recorder.calls

    assert set(torch.library.opcheck(func, args).values()) == {"SUCCESS"}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
def test_a_compiled_call_writes_what_a_direct_one_does(op):
    direct, compiled = OPS[op](), OPS[op]()

    op(**direct)
    torch.compile(op, backend="aot_eager", fullgraph=True)(**compiled)

    before = tensors_of(OPS[op]())
    changed = [
        not torch.equal(storage_bits(x), storage_bits(y)) for x, y in zip(tensors_of(direct), before, strict=True)
    ]
    assert any(changed)
    for mine, theirs in zip(tensors_of(compiled), tensors_of(direct), strict=True):
        assert torch.equal(storage_bits(mine), storage_bits(theirs))


def run_layer(hidden, weight, window):
    """A toy layer: projections of one matrix, the op, and what a model does with its output."""
    H, K, V = window.case.num_heads, window.case.key_dim, window.case.value_dim
    q, k, gate, v, beta = (hidden @ weight).split([H * K, H * K, H * K, H * V, H], dim=-1)
    q, k, gate = (torch.nn.functional.silu(x).unflatten(-1, (H, K)) for x in (q, k, gate))
    out = verify(
        q,
        k,
        v.unflatten(-1, (H, V)),
        gate,
        beta,
        window.checkpoint_states[0],
        window.records[0],
        GateParams(window.gate.A_log[0], window.gate.dt_bias[0], window.gate.lower_bound),
        window.query_start_loc,
        window.state_indices,
    )
    return hidden + out.flatten(1) @ weight[:, : H * V].T


def test_a_layer_compiles_as_one_graph_whatever_the_number_of_tokens(device):
    compiled = torch.compile(run_layer, backend="inductor" if device == "cuda" else "aot_eager", fullgraph=True)
    case = replace(FULL, activation_dtype=torch.float32)
    D, widths = 24, case.num_heads * (3 * case.key_dim + case.value_dim + 1)

    for query_lens in [(4, 4, 4), (4, 3, 1), (1, 2, 2)]:
        mine, theirs = (Window(replace(case, query_lens=query_lens), device) for _ in range(2))
        torch.manual_seed(0)
        hidden, weight = torch.randn(sum(query_lens), D, device=device), torch.randn(D, widths, device=device) / 5

        out, expected = compiled(hidden, weight, mine), run_layer(hidden, weight, theirs)

        assert relative_error(out, expected.double()) <= COMPILED_TOL
        assert_matches("u", mine.records[0].correction, theirs.records[0].correction.double(), COMPILED_TOL)


def test_a_compiled_call_may_write_over_v(device):
    """The graph is made functional on the way: what op and tracing see must be one tensor in the end."""
    mine, theirs = (Window(FULL, device) for _ in range(2))

    def run(window):
        rows = (window.query_start_loc, window.state_indices)
        layer = (window.checkpoint_states[0], window.records[0], window.layer_gate())
        verify(*window.activations, *layer, *rows, out=window.v)

    run(theirs)
    torch.compile(run, backend="aot_eager", fullgraph=True)(mine)

    assert torch.equal(storage_bits(mine.v), storage_bits(theirs.v))


@pytest.mark.parametrize("block_size", [None, 3], ids=["no blocks", "blocks"])
@pytest.mark.parametrize("commit", ["every_step", "deferred"])
def test_a_compiled_commit_does_what_a_direct_one_does(commit, block_size, device):
    """All of a step's, and what commits the tokens that wait after it."""
    window = Window(FULL, device)
    run_verify(window)
    num_rows, T, C = 3, FULL.spec_query_len, FULL.num_heads * (2 * FULL.key_dim + FULL.value_dim)
    align = None
    if block_size is not None:
        align = AlignInputs(int32([2, 1, 0], device), int32([[2, 3], [1, 4], [5, 6]], device), block_size)

    def results(compiles):
        conv = torch.randn(7, 2 + T, C, generator=torch.Generator().manual_seed(1)).to(device)
        state = window.checkpoint_states[0].clone()
        held = (window.records[0].correction, window.records[0].key_gate)
        has_room = T if commit == "deferred" else 0
        records = Records(*(F.pad(x[:num_rows], (0, 0, 0, has_room)) for x in held), history_len=has_room)
        context = CommitContext([state], [records], [conv], window.gate, max_num_rows=num_rows, block_size=block_size)
        waiting_lens, entries = int32([0] * num_rows, device), int32([2, 0, 1], device)
        deferral = {}
        if commit == "deferred":
            rows = RecordRows(entries, int32([2, 0, 1], device))
            deferral = {"record_rows": rows, "waiting_lens": waiting_lens}

        def run():
            rows = (int32([3, 1, 2], device), window.query_start_loc, window.state_indices)
            context.commit(*rows, align=align, **deferral)
            if deferral:
                context.commit_waiting(entries, waiting_lens, window.state_indices)

        (torch.compile(run, backend="aot_eager", fullgraph=True) if compiles else run)()
        return state, conv, waiting_lens

    for mine, theirs in zip(results(True), results(False), strict=True):
        assert torch.equal(storage_bits(mine), storage_bits(theirs))
