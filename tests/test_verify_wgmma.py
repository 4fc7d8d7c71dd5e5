"""verify's form for sm_90 against the float64 reference: emulated on the CPU, compiled where there is such a card."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle

import pytest
import torch

from recoverssm import CommitContext, GateParams, Records, verify
from recoverssm.launch import select
from recoverssm.ops.verify import FORMS
from recoverssm.reference.recurrence import delta_step, kda_log_decay, scaled_query, unit_key
from tests.compile_forms import compile_ahead
from tests.forms import skip_unless_runs, use_form
from tests.test_launch import problem
from tests.test_verify import check_recorded, expect_verify, run_verify, set_small_gates
from tests.windows import (
    Window,
    WindowCase,
    assert_gaps_untouched,
    assert_matches,
    int32,
    relative_error,
    storage_bits,
    tol,
)

U_TOL = {torch.float32: 5e-7, torch.bfloat16: 2e-6}  # a 16-bit state meets probes of 16 bits
CONSTANTS = {"BV": 128, "CAUSAL_BLOCKS": False, "KC": 2, "AHEAD": 1, "EVICT": True}
CONSTANTS |= {"STAGED": False, "LATE": False, "PREFETCH": 0, "GATE_FIRST": False, "DEPENDENTS": 0}


@pytest.fixture(scope="module")
def sm_90():
    skip_unless_runs(90, exactly=True)
    compile_ahead("tests.test_verify_wgmma", 90)


def wide(query_lens, slots, spec_query_len, **changed):
    """A window of the sizes that tensor-core forms are for."""
    return WindowCase(query_lens, slots, spec_query_len, **{"num_heads": 1, "key_dim": 128, "value_dim": 128} | changed)


def check_verify(case, device, scale=1.0, seed=0, enable_pdl=False):
    """One verify: what it writes against the reference, and that it writes nothing else."""
    window = Window(case, device, seed)
    window.checkpoint_states[0].mul_(scale)
    records = window.records[0]
    written = {"out": window.out, "correction": records.correction, "key_gate": records.key_gate}
    before = {name: storage_bits(tensor) for name, tensor in written.items()}
    states = storage_bits(window.checkpoint_states[0])
    expected, expected_out = expect_verify(window)

    out = run_verify(window, enable_pdl=enable_pdl)

    assert_matches("out", out, expected_out, tol(case.activation_dtype, device))
    assert_matches("correction", records.correction, expected.correction, U_TOL[case.state_dtype])
    assert_matches("key_gate", records.key_gate, expected.key_gate, 0.0)
    assert torch.equal(storage_bits(window.checkpoint_states[0]), states)
    for name, tensor in written.items():
        assert_gaps_untouched(name, tensor, before[name])


EMULATED = [
    *(
        wide((length, max(length - 2, 0), 1), (2, 1, 0), length, state_dtype=dtype, lower_bound=bound)
        for length in (1, 3, 8, 11, 16)
        for dtype in U_TOL
        for bound in (-5.0, None)
    ),
    wide((3, 8), (2, 1), 8, num_heads=2, activation_dtype=torch.float32),
    wide((8,), (1,), 8, activation_dtype=torch.float16),
    wide((9, 2), (1, 2), 9, activation_dtype=torch.float32),
    wide((5, 16), (2, 1), 16, lower_bound=-20.0),
]


RECORDED = [
    wide((8, 3, 0, 8), (2, 1, 3, 0), 8, num_heads=2),
    wide((2, 9), (2, 1), 9, by_slot=True),
    wide((8, 1), (2, 1), 8, state_dtype=torch.bfloat16, activation_dtype=torch.float16),
]


@pytest.mark.parametrize("case", EMULATED, ids=str)
def test_emulated_form_matches_reference(case, monkeypatch):
    blocks = case.lower_bound is None or case.lower_bound < -5.0
    form = "wgmma_blocks" if blocks else "wgmma"
    changed = {"CAUSAL_BLOCKS": blocks, "STAGED": case.spec_query_len > 8}
    use_form(monkeypatch, "verify", form, "cpu", **CONSTANTS | changed)

    check_verify(case, "cpu", scale=5.0)


@pytest.mark.parametrize("dtype", U_TOL, ids=str)
@pytest.mark.parametrize("changed", [{"KC": 1}, {"KC": 4}, {"KC": 2, "AHEAD": 2}], ids=str)
def test_emulated_tilings_match_reference(changed, dtype, monkeypatch):
    use_form(monkeypatch, "verify", "wgmma", "cpu", **CONSTANTS | changed)

    check_verify(wide((8, 3), (2, 1), 8, state_dtype=dtype), "cpu")


@pytest.mark.parametrize("dtype", U_TOL, ids=str)
@pytest.mark.parametrize("length", [10, 12])
def test_emulated_splits_and_stagings_give_the_same_bits(length, dtype, monkeypatch):
    """Chunks of channels do so on tensor cores alone, which take a product's terms in the order of the channels."""
    case, bits = wide((length,), (1,), length, state_dtype=dtype), []
    late = {"LATE": True, "PREFETCH": 2}
    others = [{"BV": 64}, {"AHEAD": 2}, {"PREFETCH": 1}, {"STAGED": True}, {"GATE_FIRST": True}, {"EVICT": False}]
    for changed in [{}, *others, late, late | {"STAGED": True}, {"LATE": True, "BV": 64}]:
        use_form(monkeypatch, "verify", "wgmma", "cpu", **CONSTANTS | changed)
        window = Window(case, "cpu")
        run_verify(window)
        bits.append((storage_bits(window.records[0].correction), storage_bits(window.out)))

    assert all(torch.equal(one, first) for other in bits for one, first in zip(other, bits[0], strict=True))


@pytest.mark.parametrize("form", ["wgmma", "mma"])
@pytest.mark.parametrize("bv", [64, 128])
@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_emulated_keys_and_gates_may_stand_in_the_records(case, bv, form, monkeypatch):
    tiling = {"SLICE": 32, "AHEAD": 1, "EVICT": False} if form == "mma" else CONSTANTS | {"STAGED": bv == 64}
    use_form(monkeypatch, "verify", form, "cpu", **tiling | {"BV": bv, "CAUSAL_BLOCKS": False})

    check_recorded(case, "cpu")


@pytest.mark.parametrize("form", ["wgmma", "mma"])
def test_emulated_out_may_be_v(form, monkeypatch):
    tiling = {"SLICE": 32, "AHEAD": 1, "EVICT": False} if form == "mma" else CONSTANTS
    use_form(monkeypatch, "verify", form, "cpu", **tiling | {"BV": 64, "CAUSAL_BLOCKS": False})
    window = Window(wide((8, 3), (2, 1), 8), "cpu")
    _, expected = expect_verify(window)

    run_verify(window, out=window.v)

    assert_matches("out", window.v, expected, tol(torch.bfloat16, "cpu"))


@pytest.mark.parametrize("seed", range(3))
def test_emulated_decays_as_strong_as_the_bound_allows_and_stronger_stay_finite(seed, monkeypatch):
    """Channels that hardly decay beside channels that vanish at once."""
    for form, bound, sizes in (("wgmma", -5.0, 30.0), ("wgmma_blocks", None, 1e4)):
        use_form(monkeypatch, "verify", form, "cpu", **CONSTANTS | {"CAUSAL_BLOCKS": bound is None})
        window = Window(wide((16,), (1,), 16, lower_bound=bound), "cpu", seed)
        window.gate.dt_bias[..., seed::4] = sizes
        window.gate.dt_bias[..., seed + 1 :: 4] = -30.0
        expected, expected_out = expect_verify(window)

        out = run_verify(window)

        assert_matches("out", out, expected_out, tol(torch.bfloat16, "cpu"))
        assert_matches("correction", window.records[0].correction, expected.correction, U_TOL[torch.float32])


@pytest.mark.parametrize("form", ["wgmma_blocks", "mma_blocks"])
def test_emulated_softplus_is_exact_where_it_is_small_and_much_enlarged(form, monkeypatch):
    tiling = {"SLICE": 32, "AHEAD": 2, "EVICT": False} if form == "mma_blocks" else CONSTANTS
    use_form(monkeypatch, "verify", form, "cpu", **tiling | {"BV": 128, "CAUSAL_BLOCKS": True})
    window = Window(wide((8, 8), (1, 2), 8, lower_bound=None), "cpu")
    set_small_gates(window)
    expected, _ = expect_verify(window)

    run_verify(window)

    assert_matches("correction", window.records[0].correction, expected.correction, 3e-7)


@pytest.mark.parametrize(
    ("changed", "form"),
    [
        ({}, "wgmma"),
        ({"spec_query_len": 16}, "wgmma"),
        ({"lower_bound": -5.5}, "wgmma_blocks"),
        ({"lower_bound": None}, "wgmma_blocks"),
        ({"arch": 100}, "mma"),
        ({"arch": 80, "lower_bound": None}, "mma_blocks"),
        ({"arch": 75}, "recurrence"),
        ({"arch": 0}, "recurrence"),
        ({"aligned": False}, "recurrence"),
        ({"key_dim": 64}, "recurrence"),
    ],
)
@pytest.mark.parametrize("num_heads", [1, 12, 96, 384, 1536])
def test_the_form_depends_on_the_card_and_the_layer_not_on_the_batch(changed, form, num_heads):
    assert select(problem(num_heads=num_heads, **changed), FORMS).form == form


def test_a_triton_that_nobody_tried_takes_the_portable_form(monkeypatch):
    monkeypatch.setattr("recoverssm.triton_compat.IS_TESTED", False)

    assert select(problem(), FORMS).form == "recurrence"


COMBINATIONS = list(
    zip(
        range(1, 17),
        cycle((1, 6, 12, 96)),
        cycle((torch.float32, torch.bfloat16, torch.bfloat16)),
        cycle((-5.0, None, -5.0, -5.0, None)),
        strict=False,
    )
)
COMBINATIONS += [(length, 12, dtype, -5.0) for length in range(9, 13) for dtype in U_TOL]


def random_rows(lens, spec_query_len, num_heads, dtype, seed, device="cuda"):
    """Rows of any lengths, each on a slot of its own: activations, states, records, gate, starts, slots."""
    generator = torch.Generator(device).manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, device=device, generator=generator)  # noqa: E731
    num_tokens, num_rows = sum(lens), len(lens)
    activations = [draw(num_tokens, num_heads, 128).to(torch.bfloat16) for _ in range(4)]
    activations.append(draw(num_tokens, num_heads).to(torch.bfloat16))
    records = Records(
        torch.full((num_rows, num_heads, spec_query_len, 128), float("nan"), device=device),
        torch.full((num_rows, num_heads, spec_query_len, 256), float("nan"), device=device, dtype=torch.bfloat16),
    )
    gate = GateParams(draw(num_heads) / 2, draw(num_heads, 128), -5.0)
    starts = int32([0, *torch.tensor(lens).cumsum(0).tolist()], device)
    slots = torch.randperm(num_rows, device=device, generator=generator).int() + 1
    return activations, draw(num_rows + 1, num_heads, 128, 128).to(dtype), records, gate, starts, slots


INVARIANT = [(dtype, length) for length in (8, 9, 10) for dtype in U_TOL] + [(torch.bfloat16, 12), (torch.float32, 16)]
BATCHES = (2, 8, 9, 32, 33, 48, 60, 86, 120)  # with 12 heads, of every row of the launch table


def ragged(length, num_heads, dtype, bound):
    """All of the window, some of it, one token, no slot, no token."""
    lens = (length, max(length - 3, 0), 1, length, 0, length)
    return wide(lens, (6, 2, 4, 0, 1, 3), length, num_heads=num_heads, state_dtype=dtype, lower_bound=bound)


def gpu_calls(device: str) -> Iterator[Callable[[], object]]:
    """What the tests below launch."""

    def verify_window(combination):
        run_verify(Window(ragged(*combination), device))

    def verify_rows(num_rows, num_heads, dtype, length):
        activations, *rest = random_rows([1] * num_rows, length, num_heads, dtype, 0, device)
        verify(*activations, *rest)

    yield from (partial(check_recorded, case, device) for case in RECORDED)
    yield from (partial(verify_window, combination) for combination in reversed(COMBINATIONS))
    for case in INVARIANT:
        yield from (partial(verify_rows, num_rows, 12, *case) for num_rows in (1, *BATCHES[1::2]))
    yield partial(verify_rows, 2, 2, torch.float32, 8)


@pytest.mark.gpu
@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_windows_of_every_length_match_reference(combination, sm_90):
    for scale in (0.1, 1.0, 5.0):
        check_verify(ragged(*combination), "cuda", scale)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "length"), INVARIANT, ids=str)
def test_bits_of_a_row_depend_on_nothing_but_the_row(dtype, length, sm_90):
    """Alone or in a batch of any size, among any rows, in any slot, whatever tokens follow."""
    num_heads, picks = 12, torch.Generator().manual_seed(length)
    draw = lambda low, high: int(torch.randint(low, high, (), generator=picks))  # noqa: E731
    for seed, num_rows in enumerate(BATCHES):
        lens = [draw(0, length + 1) for _ in range(num_rows)]
        row = draw(0, num_rows)
        lens[row] = max(lens[row], 1)
        activations, states, records, gate, starts, slots = random_rows(lens, length, num_heads, dtype, seed)
        together = verify(*activations, states, records, gate, starts, slots)
        first, kept = int(starts[row]), draw(1, lens[row] + 1)  # the tokens after these are left out
        own = [x[first : first + kept].clone() for x in activations]
        alone = Records(*(torch.full_like(x[:1], float("nan")) for x in (records.correction, records.key_gate)))

        out = verify(*own, states, alone, gate, int32([0, kept], "cuda"), slots[row : row + 1].clone())

        assert torch.equal(out, together[first : first + kept])
        assert torch.equal(alone.correction[0, :, :kept], records.correction[row, :, :kept])


@pytest.mark.gpu
@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_keys_and_gates_may_stand_in_the_records(case, sm_90):
    check_recorded(case, "cuda")


@pytest.mark.gpu
def test_a_thousand_steps_keep_the_state_of_an_uninterrupted_recurrence(sm_90):
    num_rows, num_heads, length, num_steps = 2, 2, 8, 1000
    generator = torch.Generator().manual_seed(0)
    accepted = torch.randint(1, length + 1, (num_steps,), generator=generator).tolist()
    _, states, records, gate, starts, slots = random_rows([length] * num_rows, length, num_heads, torch.float32, 0)
    gate = GateParams(gate.A_log, gate.dt_bias - 3, -5.0)  # slow channels, where errors could gather
    context = CommitContext(
        [states], [records], [], GateParams(gate.A_log[None], gate.dt_bias[None], -5.0), max_num_rows=num_rows
    )
    expected, steps = states[slots.long()].double(), []

    for step, kept in enumerate(accepted):
        tokens = random_rows([length] * num_rows, length, num_heads, torch.float32, step + 1)[0]
        verify(*tokens, states, records, gate, starts, slots)
        context.commit(int32([kept] * num_rows, "cuda"), starts, slots)
        steps.append([x.view(num_rows, length, *x.shape[1:])[:, :kept] for x in tokens])
    q, k, v, raw_gate, raw_beta = (torch.cat(parts, 1) for parts in zip(*steps, strict=True))
    sequence = (kda_log_decay(raw_gate, gate), unit_key(k), scaled_query(q), v.double(), raw_beta.double().sigmoid())
    for token in zip(*(x.unbind(1) for x in sequence), strict=True):
        expected, _, _ = delta_step(expected, *token)

    assert relative_error(states[slots.long()], expected) <= U_TOL[torch.float32]
