"""Slots as padded pages of a cache pool: what lies where, and a whole step through them against the reference."""

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from recoverssm import (
    CommitContext,
    CommitPlan,
    ConfigError,
    DtypeError,
    GateParams,
    LayerTable,
    PageViews,
    RecoverSSMConfig,
    ShapeError,
    StrideError,
    reference,
    verify,
)
from recoverssm.layout import layer_bytes
from tests.test_verify_wgmma import U_TOL
from tests.windows import assert_matches, float64_records, int32, tol

KIMI_K3 = {"num_heads": 96, "draft_tokens": 7, "max_num_requests": 32, "tensor_parallel": 8}
SMALL = {"num_heads": 2, "draft_tokens": 3, "max_num_requests": 4, "key_dim": 16, "value_dim": 32, "placement": "page"}
NAN_BYTE = 255  # four of them are a NaN of float32, two one of bfloat16 or float16


@pytest.mark.parametrize(("placement", "page_bytes"), [("scratch", 878_592), ("page", 976_896)])
@pytest.mark.parametrize("conv_layout", ["SD", "DS"])
def test_pages_of_kimi_k3_are_as_published_and_have_no_gaps(placement, page_bytes, conv_layout):
    config = RecoverSSMConfig(**KIMI_K3, placement=placement, conv_layout=conv_layout)
    layout, pieces = config.page_layout(), layer_bytes(config.layer_shape)

    assert layout.page_bytes == layout.used_bytes == page_bytes == pieces.page("recoverssm", placement)
    assert all(piece.num_bytes == getattr(pieces, piece.name) for piece in layout.pieces)


def test_a_page_may_be_longer_than_what_it_holds_and_never_shorter():
    config = RecoverSSMConfig(**KIMI_K3, placement="page")

    assert config.page_layout(1728 * 576).page_bytes == 995_328
    with pytest.raises(
        ConfigError, match=r"page_bytes: expected at least 976896 \(conv_state 92160, recurrent_state 78"
    ):
        config.page_layout(976_892)
    with pytest.raises(ConfigError, match=r"page_bytes: expected a multiple of 4, .* got 976898"):
        config.page_layout(976_898)


@pytest.mark.parametrize("head", [1, 3, 5])
@pytest.mark.parametrize("draft_tokens", [0, 4])
def test_without_a_size_pages_are_as_far_apart_as_the_fast_kernels_need(head, draft_tokens):
    options = SMALL | {"num_heads": head, "draft_tokens": draft_tokens, "value_dim": 16}
    layout = RecoverSSMConfig(**options, state_dtype=torch.bfloat16).page_layout()

    assert layout.page_bytes % 64 == 0
    assert 0 <= layout.page_bytes - layout.used_bytes < 64
    assert all(piece.offset % 16 == 0 for piece in layout.pieces)


def test_one_page_is_as_long_as_one_of_many():
    """Kernels are compiled for distances, and ``warm_up`` has one page."""
    layout = RecoverSSMConfig(**SMALL | {"num_heads": 1}, conv_width=2).page_layout()
    states, convs, records = layout.views(torch.zeros(1, layout.page_bytes, dtype=torch.uint8))

    for tensor in (states, convs, records.correction, records.key_gate):
        assert tensor.stride(0) * tensor.element_size() == layout.page_bytes


def test_what_is_no_page_is_refused():
    layout = RecoverSSMConfig(**SMALL).page_layout()
    size = layout.page_bytes
    pages = torch.zeros(3, size, dtype=torch.uint8)
    flat = torch.zeros(4 * size, dtype=torch.uint8)

    with pytest.raises(ShapeError, match=rf"pages: expected \[P, page_bytes={size}\], got \[3, {size - 4}\]"):
        layout.views(pages[:, 4:])
    with pytest.raises(DtypeError, match=r"pages: expected one-byte elements, .* got torch.float32"):
        layout.views(pages.float())
    with pytest.raises(StrideError, match=r"pages: expected the bytes of a page to be contiguous"):
        layout.views(torch.zeros(size, 3, dtype=torch.uint8).T)
    with pytest.raises(StrideError, match=rf"pages: expected distance to be a multiple of 4 bytes, got {size + 2}"):
        layout.views(flat.as_strided((3, size), (size + 2, 1)))
    with pytest.raises(StrideError, match=r"pages: expected address to be a multiple of 4 bytes"):
        layout.views(flat[1 : 1 + 3 * size].view(3, size))


class PagedStep:
    """Two rows with a slot, one without, in two layers of pages; everything nobody owns is NaN."""

    def __init__(self, config, page_bytes, device, first_byte=0, num_slots=5):
        self.config, self.device = config, device
        generator = torch.Generator().manual_seed(0)

        def random(*shape, dtype=config.activation_dtype):
            return torch.randn(*shape, generator=generator).to(dtype).to(device)

        layout, num_layers = config.page_layout(page_bytes), 2
        size = num_slots * num_layers * layout.page_bytes
        self.memory = torch.full((first_byte + size,), NAN_BYTE, dtype=torch.uint8, device=device)
        pool = self.memory[first_byte:].view(num_slots, num_layers, layout.page_bytes)
        self.layers = [layout.views(pool[:, layer]) for layer in range(num_layers)]
        self.pieces = [pool[:, :, piece.offset : piece.offset + piece.num_bytes] for piece in layout.pieces]
        shape = config.layer_shape
        H, T, K, V = shape.num_heads, shape.spec_query_len, shape.key_dim, shape.value_dim
        self.slots, self.accepted = int32([3, 0, 1], device), int32([T, 1, (T + 1) // 2], device)
        self.starts = int32([0, T, T + 1, 2 * T + 1], device)
        self.activations = [random(2 * T + 1, H, n) for n in (K, K, V, K)] + [random(2 * T + 1, H)]
        self.gate = GateParams(
            random(2, H, dtype=torch.float32), random(2, H, K, dtype=torch.float32), config.gate_lower_bound
        )
        for layer in self.layers:
            for slot in (1, 3):
                layer.checkpoint_state[slot] = random(H, V, K, dtype=config.state_dtype)
                layer.conv_state[slot] = random(*layer.conv_state.shape[1:])
        states, convs, records = zip(*self.layers, strict=True)
        sizes = {"max_num_rows": 3, "conv_width": config.conv_width}
        self.context = CommitContext(states, records, convs, self.gate, **sizes, debug=config.debug)

    def layer_gate(self, layer):
        return GateParams(self.gate.A_log[layer], self.gate.dt_bias[layer], self.gate.lower_bound)

    def expect(self):
        """The same by the reference, in tensors of its own, in float64 but for the conv window."""
        states = [layer.checkpoint_state.double() for layer in self.layers]
        convs = [layer.conv_state.clone() for layer in self.layers]
        records = [float64_records(layer.records) for layer in self.layers]
        out = []
        for layer in range(2):
            rows = (records[layer], self.layer_gate(layer), self.starts, self.slots)
            out.append(reference.verify(*self.activations, states[layer], *rows))
        slots = torch.where(self.slots > 0, self.slots, 0)
        plan = CommitPlan(torch.where(self.slots > 0, self.accepted, 0), slots, slots)
        reference.commit_state(states, records, plan, self.gate)
        reference.compact_conv(convs, plan, conv_width=self.config.conv_width)
        return out, [PageViews(*pieces) for pieces in zip(states, convs, records, strict=True)]

    def run(self):
        out = []
        for number, layer in enumerate(self.layers):
            rows = (layer.records, self.layer_gate(number), self.starts, self.slots)
            out.append(verify(*self.activations, layer.checkpoint_state, *rows, debug=self.config.debug))
        self.context.commit(self.accepted, self.starts, self.slots)
        return out

    def check(self):
        """One step, and that nothing but what it owns has changed."""
        expected_out, expected = self.expect()
        before = [layer.checkpoint_state.clone() for layer in self.layers]

        out = self.run()

        u_tol = U_TOL[self.config.state_dtype]
        activations, states = (tol(x, self.device) for x in (self.config.activation_dtype, self.config.state_dtype))
        activations = max(activations, torch.finfo(self.config.activation_dtype).eps)  # 48 outputs have no usual norm
        for layer, want, before_layer in zip(self.layers, expected, before, strict=True):
            assert_matches("state", layer.checkpoint_state, want.checkpoint_state, states)
            assert not torch.equal(layer.checkpoint_state[3], before_layer[3])
            assert torch.equal(layer.conv_state.nan_to_num(7.0), want.conv_state.nan_to_num(7.0))
            assert_matches("correction", layer.records.correction, want.records.correction, u_tol)
            assert_matches("key_gate", layer.records.key_gate, want.records.key_gate, 0.0)
        for layer_out, want in zip(out, expected_out, strict=True):
            assert_matches("out", layer_out, want, activations)
        for piece in self.pieces:
            piece.fill_(NAN_BYTE)
        assert (self.memory == NAN_BYTE).all(), "wrote between pieces or pages"


@settings(max_examples=8, phases=[Phase.generate])  # shrinking takes minutes
@given(st.data())
def test_a_step_through_pages_of_any_size_is_the_reference_s(data):
    pick = lambda *values: data.draw(st.sampled_from(values))  # noqa: E731
    config = RecoverSSMConfig(
        num_heads=pick(1, 3),
        draft_tokens=pick(0, 1, 4),
        max_num_requests=3,
        key_dim=pick(16, 32),
        value_dim=pick(16, 32),
        conv_width=pick(2, 4, 5),
        state_dtype=pick(torch.float32, torch.bfloat16),
        activation_dtype=pick(torch.bfloat16, torch.float16, torch.float32),
        gate_lower_bound=pick(-5.0, None),
        placement="page",
        conv_layout=pick("SD", "DS"),
    )
    padding, first_byte = (4 * data.draw(st.integers(0, 40), label=label) for label in ("padding", "first_byte"))

    PagedStep(config, config.page_layout().used_bytes + padding, "cpu", first_byte).check()


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of itself
@pytest.mark.parametrize("debug", [False, True])
def test_a_step_through_pages_compiles_as_one_graph(debug):
    """Pieces of several dtypes are written, in the memory of one pool; what waits for the device is left out."""
    mine, theirs = (PagedStep(RecoverSSMConfig(**SMALL, debug=debug), 0, "cpu") for _ in range(2))

    out, expected = torch.compile(mine.run, backend="aot_eager", fullgraph=True)(), theirs.run()

    assert all(torch.equal(one, other) for one, other in zip(out, expected, strict=True))
    assert torch.equal(mine.memory, theirs.memory)


@pytest.mark.gpu
@pytest.mark.parametrize("conv_layout", ["SD", "DS"])
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("padding", [0, 576, 16, 4])
def test_a_step_through_pages_of_the_kernels_own_size_is_the_reference_s(padding, state_dtype, conv_layout):
    """The fast forms where strides are multiples of 64 bytes; others, or narrower loads, elsewhere."""
    options = {"num_heads": 1, "draft_tokens": 7, "max_num_requests": 3, "placement": "page"}
    config = RecoverSSMConfig(**options, state_dtype=state_dtype, conv_layout=conv_layout)

    PagedStep(config, config.page_layout().page_bytes + padding, "cuda").check()


def test_pages_of_multiples_of_64_bytes_are_what_the_fast_forms_take():
    config = RecoverSSMConfig(**KIMI_K3 | {"num_heads": 8}, placement="page")
    for padding, aligned in ((0, True), (64, True), (16, False), (4, False)):
        step = PagedStep(config, config.page_layout().page_bytes + padding, "cpu", num_slots=4)
        states, _, records = zip(*step.layers, strict=True)
        tables = (states, [r.correction for r in records], [r.key_gate for r in records])

        assert all(LayerTable.of("t", tensors).aligned for tensors in tables) is aligned
