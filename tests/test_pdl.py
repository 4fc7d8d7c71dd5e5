"""verify in chains of programmatic dependent launches: what it may touch early, who is refused, and equal bits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recoverssm import CommitContext, ConfigError, GateParams, Records, verify
from recoverssm.dispatch import describe
from recoverssm.launch import Form, LaunchRow, tiled_launch, with_row
from recoverssm.ops.verify import FORMS
from tests.forms import READ_EARLY, skip_unless_runs, use_form
from tests.gluon_interpreter import MemoryFault
from tests.test_verify import check_recorded, run_verify
from tests.test_verify_wgmma import CONSTANTS, check_verify, wide
from tests.windows import Window, int32, storage_bits

ROOT = Path(__file__).parents[1]
K = V = 128
TRIGGER = "launch_dependents"


@pytest.fixture(scope="module")
def sm_90():
    skip_unless_runs(90, exactly=True)


EARLY = [
    wide((8, 3, 0, 8), (2, 1, 3, 0), 8, num_heads=2),
    wide((8, 1), (2, 1), 8, state_dtype=torch.bfloat16),
    wide((5, 9), (2, 1), 9, lower_bound=None),
    wide((16,), (1,), 16, lower_bound=None, state_dtype=torch.bfloat16),
]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"PREFETCH": 1},
        {"STAGED": True},
        {"AHEAD": 2},
        {"BV": 64},
        {"GATE_FIRST": True},
        {"LATE": True, "PREFETCH": 2},
        {"DEPENDENTS": 1},
        {"DEPENDENTS": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("case", EARLY, ids=str)
def test_emulated_early_start_touches_nothing_early_but_states_slots_and_starts(case, changed, monkeypatch):
    """Rows without a slot or tokens wait as well: who waits for this kernel must have waited for all before it."""
    blocks = case.lower_bound is None
    constants = CONSTANTS | changed | {"CAUSAL_BLOCKS": blocks}
    use_form(monkeypatch, "verify", "wgmma_blocks" if blocks else "wgmma", "cpu", **constants)

    check_verify(case, "cpu", enable_pdl=True)


@pytest.mark.parametrize("case", EARLY[:2], ids=str)
def test_emulated_early_start_waits_for_recorded_keys_and_gates(case, monkeypatch):
    """The kernel before may be the one that writes them."""
    use_form(monkeypatch, "verify", "wgmma", "cpu", **CONSTANTS)

    check_recorded(case, "cpu", enable_pdl=True)


def test_the_emulator_sees_what_is_read_early(monkeypatch):
    monkeypatch.setattr("tests.forms.READ_EARLY", READ_EARLY - {"state_ptr"})
    use_form(monkeypatch, "verify", "wgmma", "cpu", **CONSTANTS)

    with pytest.raises(MemoryFault, match="reads state_ptr before gdc_wait"):
        run_verify(Window(EARLY[0], "cpu"), enable_pdl=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_emulated_early_start_leaves_the_bits_alone(dtype, monkeypatch):
    use_form(monkeypatch, "verify", "wgmma", "cpu", **CONSTANTS)
    bits = []
    for enable_pdl in (False, True):
        window = Window(wide((8, 3), (2, 1), 8, state_dtype=dtype), "cpu")
        run_verify(window, enable_pdl=enable_pdl)
        bits.append([storage_bits(x) for x in (window.out, window.records[0].correction, window.records[0].key_gate)])

    assert all(torch.equal(late, early) for late, early in zip(*bits, strict=True))


def test_where_the_portable_form_runs_an_early_start_is_refused():
    window = Window(wide((4,), (1,), 4), "cpu")
    before = storage_bits(window.out)

    with pytest.raises(ConfigError, match=r"enable_pdl: expected a launch of form wgmma or wgmma_blocks, got 'recurr"):
        run_verify(window, enable_pdl=True)
    assert torch.equal(storage_bits(window.out), before)


@pytest.mark.parametrize(
    ("arch", "key_dim", "aligned", "taken"),
    [
        (80, 128, True, "mma"),
        (100, 128, True, "mma"),
        (0, 128, True, "recurrence"),
        (90, 64, True, "recurrence"),
        (90, 128, False, "recurrence"),
    ],
)
def test_a_card_or_layer_that_cannot_is_refused(arch, key_dim, aligned, taken, monkeypatch):
    monkeypatch.setattr("recoverssm.launch.device_arch", lambda _: arch)
    state = describe(torch.zeros(2, 1, key_dim, key_dim))

    with pytest.raises(ConfigError, match=f"got '{taken}'"):
        tiled_launch("verify", FORMS, state, 1, 8, -5.0, aligned=aligned, enable_pdl=True)


@pytest.mark.parametrize("enable_pdl", [False, True])
def test_an_early_start_changes_neither_form_nor_row_nor_grid(enable_pdl, monkeypatch):
    monkeypatch.setattr("recoverssm.launch.device_arch", lambda _: 90)
    state = describe(torch.zeros(2, 12, K, V))
    usual = tiled_launch("verify", FORMS, state, 32, 8, -5.0, aligned=True)
    launch = tiled_launch("verify", FORMS, state, 32, 8, -5.0, aligned=True, enable_pdl=enable_pdl)
    row = LaunchRow("verify", 90, torch.float32, "wgmma", 0, 1, {**CONSTANTS, "num_warps": 4}, "being tuned")
    portable = LaunchRow("verify", 90, torch.float32, "recurrence", 0, 1, {"BV": 16, "num_warps": 1}, "being tuned")
    forms = {**FORMS, "recurrence": Form(None)}

    assert (launch.kernel, launch.grid) == (usual.kernel, usual.grid)
    assert launch.constants == usual.constants | {"PDL": enable_pdl, "launch_pdl": enable_pdl}
    assert with_row(launch, forms, row, torch.device("cpu")).constants["launch_pdl"] is enable_pdl
    assert "PDL" not in with_row(launch, forms, portable, torch.device("cpu")).constants


def test_compiled_for_sm_90_all_but_states_and_gates_comes_after_the_wait(tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/compiled_pdl.py")], env=env, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())  # what was compiled has PTX alone, and nobody else may find it
    pairs = json.loads(done.stdout)
    assert [early["dependents"] for _, early in pairs] == [0, 1, 2]
    # Where the row begins and ends, and its slot; before these the gate's two parameters, if the launch row has it so.
    for (usual, early), num_loads in zip(pairs, (5, 3, 5), strict=True):
        assert (usual["waits"], early["waits"]) == (0, 2)
        assert early["head"] == [*[TRIGGER] * (early["dependents"] == 0), *["load"] * num_loads]
        assert set(early["idle"]) == {"st"}
        assert early["work"] == ["state"] * early["state_loads"]
        assert {"load", "st"} <= set(early["rest"])
        assert early["arithmetic"] == usual["arithmetic"] != []
    _, waited, copied = (early["rest"] for _, early in pairs)
    assert waited.index(TRIGGER) == 0
    assert {"load", "st"} == set(copied[: copied.index(TRIGGER)])
    assert [early["rest"].count(TRIGGER) for _, early in pairs] == [0, 1, 1]


# A chain on the card.

LENS, SLOTS, T = (8, 5, 8, 1, 8), (4, 2, 0, 5, 1), 8


@triton.jit
def _neighbour_kernel(out_ptr, mixed_ptr, beta_ptr, step_ptr, layer, num_rows, SPINS: tl.constexpr, PDL: tl.constexpr):
    """One program handles one head of one token: what stands between two layers, slow enough to be overtaken."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    pid = tl.program_id(0)
    offs = tl.arange(0, 128)
    step = tl.load(step_ptr).to(tl.float32)
    x = tl.load(out_ptr + pid * 128 + offs).to(tl.float32)
    phase = 0.37 * offs + 1.7 * pid + 0.11 * layer + 0.9 * step
    for _ in range(SPINS):
        x = tl.sin(1.3 * x + phase)
    for i in tl.static_range(4):  # q, k, v, raw gate
        tl.store(mixed_ptr + (i * num_rows + pid) * 128 + offs, (1.5 * tl.sin((i + 1) * x + phase)).to(tl.bfloat16))
    tl.store(beta_ptr + pid, tl.sum(x, 0).to(tl.bfloat16))


class Chain:
    """Steps of a small model: verifies with kernels between them that make one layer's output the next one's input.

    All layers share activations and outputs, so that what begins too early reads or overwrites another layer's.
    """

    def __init__(self, dtype, bound, chained, device="cuda", num_layers=5, num_heads=4):
        generator = torch.Generator(device).manual_seed(0)
        draw = lambda *shape: torch.randn(*shape, device=device, generator=generator)  # noqa: E731
        self.device, self.chained, num_tokens = device, chained, sum(LENS)
        self.gate = GateParams(draw(num_layers, num_heads) / 2, draw(num_layers, num_heads, K) - 2, bound)
        self.states = [draw(max(SLOTS) + 1, num_heads, V, K).to(dtype) for _ in range(num_layers)]
        self.records = [
            Records(
                torch.zeros(len(LENS), num_heads, T, V, device=device),
                torch.zeros(len(LENS), num_heads, T, 2 * K, device=device, dtype=torch.bfloat16),
            )
            for _ in range(num_layers)
        ]
        self.mixed = torch.zeros(4, num_tokens, num_heads, K, device=device, dtype=torch.bfloat16)
        self.beta = torch.zeros(num_tokens, num_heads, device=device, dtype=torch.bfloat16)
        self.out = torch.zeros(num_tokens, num_heads, V, device=device, dtype=torch.bfloat16)
        self.starts = int32([0, *torch.tensor(LENS).cumsum(0).tolist()], device)
        self.slots, self.sampled = int32(SLOTS, device), int32([1] * len(LENS), device)
        self.number = torch.zeros(1, dtype=torch.int32, device=device)
        self.weights = torch.randint(1, 2**31, self.out.shape, device=device, generator=generator)
        self.digest = torch.zeros((), dtype=torch.int64, device=device)
        self.context = CommitContext(self.states, self.records, [], self.gate, max_num_rows=len(LENS))

    def step(self):
        """One engine step: a commit ends it, and the next step's first verify begins behind ordinary launches."""
        self.number += 1
        for layer in range(len(self.states)):
            self._neighbour(layer, early=layer % 2 == 1)
            gate = GateParams(self.gate.A_log[layer], self.gate.dt_bias[layer], self.gate.lower_bound)
            window = (*self.mixed, self.beta, self.states[layer], self.records[layer], gate, self.starts, self.slots)
            verify(*window, out=self.out, enable_pdl=self.chained and layer > 0)
        self.context.commit(self.sampled, self.starts, self.slots)
        self.digest.mul_(31).add_((self.out.view(torch.int16) * self.weights).sum())  # int64 wraps around

    def _neighbour(self, layer, early):
        early = early and self.chained
        arguments = (self.out, self.mixed, self.beta, self.number, layer, self.beta.numel())
        options = {"PDL": True, "launch_pdl": True} if early else {"PDL": False}  # the interpreter knows no launch_pdl
        _neighbour_kernel[self.beta.numel(),](*arguments, SPINS=40 if self.device == "cuda" else 1, **options)

    def run(self, num_steps, *, in_graph):
        accepted = torch.randint(0, T + 1, (num_steps, len(LENS)), generator=torch.Generator().manual_seed(1))
        accepted = torch.minimum(accepted, torch.tensor(LENS)).int().to(self.device)
        step = self.step
        if in_graph:
            state, digest = [x.clone() for x in self.states], self.digest.clone()
            self.step()  # compiles
            for kept, before in zip((*self.states, self.digest), (*state, digest), strict=True):
                kept.copy_(before)
            self.out.zero_()
            self.number.zero_()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step()
            step = graph.replay
        for sampled in accepted:
            self.sampled.copy_(sampled)
            step()
        return [self.digest, self.number, *self.states, *(r.correction for r in self.records)]


def test_the_chain_without_early_starts_stays_finite(device):
    """What the tests below compare with; they need a card."""
    digest, number, *kept = Chain(torch.float32, -5.0, False, device, num_layers=2, num_heads=1).run(1, in_graph=False)

    assert number.item() == 1
    assert digest.item() != 0
    assert all(bool(x.isfinite().all()) for x in kept)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "bound", "in_graph", "num_steps"),
    [
        (torch.float32, -5.0, True, 1000),
        (torch.bfloat16, None, True, 1000),
        (torch.float32, -5.0, False, 50),
    ],
)
def test_a_chain_keeps_the_bits_of_ordinary_launches(dtype, bound, in_graph, num_steps, sm_90):
    usual, chained = (Chain(dtype, bound, pdl).run(num_steps, in_graph=in_graph) for pdl in (False, True))

    assert usual[1].item() == num_steps
    assert all(torch.equal(one, other) for one, other in zip(usual, chained, strict=True))
    assert all(bool(x.isfinite().all()) for x in usual[2:])
    assert usual[0].item() != 0


@pytest.mark.gpu
def test_a_chain_of_nothing_but_verifies_keeps_the_bits_of_ordinary_launches(sm_90):
    """Many in flight, with more programs than fit the card and with few; the outputs of all go to the same memory."""
    for num_rows, num_heads in ((1, 2), (160, 12)):
        generator = torch.Generator("cuda").manual_seed(num_rows)
        tokens = (num_rows * T, num_heads)
        q, k, v, raw_gate = torch.randn(4, *tokens, K, device="cuda", generator=generator).bfloat16()
        raw_beta = torch.randn(tokens, device="cuda", generator=generator).bfloat16()
        gate = GateParams(torch.zeros(num_heads, device="cuda"), torch.zeros(num_heads, K, device="cuda"), -5.0)
        states = [torch.randn(num_rows + 1, num_heads, V, K, device="cuda", generator=generator) for _ in range(4)]
        starts = int32(range(0, num_rows * T + 1, T), "cuda")
        slots = int32(range(1, num_rows + 1), "cuda")
        results = []
        for chained in (False, True):
            out = torch.full_like(v, torch.nan)
            records = [
                Records(
                    torch.full((num_rows, num_heads, T, V), torch.nan, device="cuda"),
                    torch.full((num_rows, num_heads, T, 2 * K), torch.nan, device="cuda", dtype=torch.bfloat16),
                )
                for _ in range(12)
            ]
            for number, record in enumerate(records):
                state = states[number % len(states)]
                window = (q, k, v, raw_gate, raw_beta, state, record, gate, starts, slots)
                verify(*window, out=out, enable_pdl=chained and number > 0)
            torch.cuda.synchronize()
            results.append([out, *(x for r in records for x in (r.correction, r.key_gate))])

        assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
