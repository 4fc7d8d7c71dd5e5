"""Windows for the op tests: seeded, valid by default, and poisoned wherever no row owns the memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recoverssm import CommitPlan, GateParams, Records

FP32_TOL = 1e-6  # relative norm; fp32 recurrences measure 1e-7 (docs/algorithm.md section 6)
ROUNDING = {torch.bfloat16: 2.5e-3, torch.float16: 3e-4}  # one rounding measures 1.7e-3 and 2.1e-4

PAD = 16  # elements between tokens, slots and rows that belong to nobody
INT_OF = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.int32: torch.int32}


@dataclass(frozen=True)
class WindowCase:
    """One batch: a row per entry of ``query_lens``, on the slot of the same place."""

    query_lens: tuple[int, ...]
    slots: tuple[int, ...]
    spec_query_len: int
    num_heads: int = 2
    key_dim: int = 32
    value_dim: int = 32
    activation_dtype: torch.dtype = torch.bfloat16
    state_dtype: torch.dtype = torch.float32
    lower_bound: float | None = -5.0
    num_layers: int = 1
    by_slot: bool = False

    def __str__(self) -> str:
        lens = ",".join(map(str, self.query_lens))
        name = f"T{self.spec_query_len}-H{self.num_heads}-K{self.key_dim}-V{self.value_dim}-lens({lens})"
        dtypes = f"{self.activation_dtype}-{self.state_dtype}".replace("torch.", "")
        return f"{name}-{dtypes}-{'unbounded' if self.lower_bound is None else 'bounded'}{'-by-slot' * self.by_slot}"


FULL = WindowCase((4, 4, 4), (3, 1, 5), spec_query_len=4)
RAGGED = WindowCase((8, 0, 3, 1, 2), (2, 4, 6, 1, 5), spec_query_len=8, num_heads=3)
NULL_SLOTS = WindowCase((2, 4, 3), (0, 3, -1), spec_query_len=4)
WINDOW_CASES = [
    FULL,
    RAGGED,
    NULL_SLOTS,
    WindowCase((1,), (1,), spec_query_len=1, num_heads=1),  # one draftless row
    WindowCase((1, 1, 1), (4, 2, 3), spec_query_len=8),  # a draftless batch in a speculative model
    WindowCase((16, 9), (2, 1), spec_query_len=16, num_heads=1),
    WindowCase((5, 5), (1, 2), spec_query_len=5, num_heads=5),
    WindowCase((0, 0), (1, 2), spec_query_len=4),
    WindowCase((4, 3), (2, 1), spec_query_len=4, key_dim=128, value_dim=128, num_heads=1),
    WindowCase((3, 2), (2, 1), spec_query_len=3, key_dim=16, value_dim=64),
    WindowCase((2, 3), (2, 1), spec_query_len=3, key_dim=64, value_dim=16),  # one tile holds all of V
    replace(FULL, state_dtype=torch.bfloat16),
    replace(RAGGED, state_dtype=torch.bfloat16, lower_bound=None),
    replace(RAGGED, lower_bound=None),
    replace(FULL, activation_dtype=torch.float32),
    replace(FULL, activation_dtype=torch.float16),
    replace(RAGGED, by_slot=True),
    replace(NULL_SLOTS, by_slot=True),
]


class Window:
    """The tensors of a ``WindowCase``; ``layers`` share activations but nothing else."""

    def __init__(self, case: WindowCase, device: str, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.case, self.device = case, device
        num_rows, num_tokens = len(case.query_lens), sum(case.query_lens)
        num_slots = max((*case.slots, 0)) + 2

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        def tokens(*size: int) -> Tensor:
            return padded((num_tokens, *size), case.activation_dtype, device).copy_(random(num_tokens, *size))

        self.q, self.k = (tokens(case.num_heads, case.key_dim) for _ in range(2))
        self.v = tokens(case.num_heads, case.value_dim)
        self.raw_gate = tokens(case.num_heads, case.key_dim)
        self.raw_beta = tokens(case.num_heads)
        self.out = padded((num_tokens, case.num_heads, case.value_dim), case.activation_dtype, device)
        self.gate = GateParams(
            A_log=(0.5 * random(case.num_layers, case.num_heads)).to(device),
            dt_bias=random(case.num_layers, case.num_heads, case.key_dim).to(device),
            lower_bound=case.lower_bound,
        )
        self.checkpoint_states, self.records = [], []
        for _ in range(case.num_layers):
            pool = padded((num_slots, case.num_heads, case.value_dim, case.key_dim), case.state_dtype, device)
            for slot in case.slots:
                if slot > 0:
                    pool[slot] = random(case.num_heads, case.value_dim, case.key_dim).to(case.state_dtype)
            self.checkpoint_states.append(pool)
            shape = (num_slots if case.by_slot else num_rows + 1, case.num_heads, case.spec_query_len)
            self.records.append(
                Records(
                    correction=padded((*shape, case.value_dim), torch.float32, device),
                    key_gate=padded((*shape, 2 * case.key_dim), case.activation_dtype, device),
                    by_slot=case.by_slot,
                )
            )
        self.query_start_loc = int32([0, *case.query_lens], device).cumsum(0, dtype=torch.int32)
        self.state_indices = int32(case.slots, device)

    @property
    def activations(self) -> tuple[Tensor, ...]:
        return self.q, self.k, self.v, self.raw_gate, self.raw_beta

    def layer_gate(self, layer: int = 0) -> GateParams:
        return GateParams(self.gate.A_log[layer], self.gate.dt_bias[layer], self.gate.lower_bound)

    def plan(self, commit_lens: Sequence[int], final_slots: Sequence[int] | None = None) -> CommitPlan:
        final = self.case.slots if final_slots is None else final_slots
        return CommitPlan(int32(commit_lens, self.device), self.state_indices.clone(), int32(final, self.device))


def tol(dtype: torch.dtype, device: str) -> float:
    """Limit for values stored as ``dtype``; Triton's interpreter truncates to 16 bits, which doubles the error."""
    return FP32_TOL if dtype == torch.float32 else ROUNDING[dtype] * (2 if device == "cpu" else 1)


def int32(values: Sequence[int], device: str) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def padded(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """NaN everywhere, entries of the first dimension PAD elements apart, PAD elements of NaN behind the last."""
    entry = torch.Size(shape[1:]).numel()
    storage = torch.full((shape[0] * (entry + PAD) + PAD,), float("nan"), dtype=dtype, device=device)
    inner = torch.empty(shape[1:], device="meta").stride()
    return storage.as_strided(shape, (entry + PAD, *inner))


def storage_bits(tensor: Tensor) -> Tensor:
    """A copy of every bit behind ``tensor``, gaps included, so that NaN compares with NaN."""
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    return flat.clone().view(INT_OF[tensor.dtype])


def float64_twin(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float64)


def float64_records(records: Records) -> Records:
    return Records(float64_twin(records.correction), float64_twin(records.key_gate), records.by_slot)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm().clamp(min=1e-300))


def assert_matches(name: str, actual: Tensor, expected: Tensor, tol: float) -> None:
    """Where the reference wrote (``expected`` is not NaN) the values agree; everywhere else there is still NaN."""
    owned = ~expected.isnan()
    assert not actual[owned].isnan().any(), f"{name}: NaN where a value was expected"
    assert actual[~owned].isnan().all(), f"{name}: wrote where nobody owns the memory"
    if owned.any():
        error = relative_error(actual[owned], expected[owned])
        assert error <= tol, f"{name}: relative error {error:.2e}, limit {tol:.0e}"


def assert_gaps_untouched(name: str, tensor: Tensor, before: Tensor) -> None:
    """Every bit outside ``tensor``'s elements is what it was in ``before`` (from ``storage_bits``)."""
    inside = torch.zeros(before.shape, dtype=torch.bool, device=tensor.device)
    inside.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(True)
    assert torch.equal(storage_bits(tensor)[~inside], before[~inside]), f"{name}: wrote into padding"
