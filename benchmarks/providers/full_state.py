"""The baseline: T states per request, one written per token; the next step reads the accepted one."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

import recoverssm
from recoverssm import cost, layout, reference

from .. import inputs
from ..cases import BenchCase
from ..checks import Checklist, num_non_finite
from ..harness.records import Contract
from ..harness.restore import SavedMemory
from ..inputs import NUM_UNOWNED_SLOTS
from .bare import host_series, num_programs
from .base import (
    Call,
    Prepared,
    Series,
    activation_bytes,
    layer_sizes,
    ragged_query_start_loc,
    requested_bytes,
    rotations,
)


class FullStateProvider:
    """Full-state verify of this library, tuned like the rest: a weak baseline would flatter us."""

    name = "full_state"
    series_names: tuple[tuple[str, Contract], ...] = (
        ("verify", "graph-cold"),
        ("step", "graph-cold"),
        ("verify", "host-dispatch"),
        ("verify_launch", "host-dispatch"),
    )

    def cache_bytes(self, case: BenchCase) -> int:
        return self._bytes(case, case.num_layers, num_unowned_slots=0).total

    def needed_bytes(self, case: BenchCase, l2_bytes: int) -> int:
        num_pools = num_state_pools(case, l2_bytes)
        pools = self._bytes(case, num_pools, num_unowned_slots=NUM_UNOWNED_SLOTS).total
        state_itemsize = inputs.STATE_DTYPES[case.state_dtype].itemsize
        checks = 6 * pools // num_pools * 8 // state_itemsize  # the reference of one pool and copies of it, in float64
        return 2 * pools + checks + activation_bytes(case)  # twice: once to restore from

    def prepare(self, case: BenchCase, device: torch.device, seed: int, l2_bytes: int) -> Prepared:
        num_pools = num_state_pools(case, l2_bytes)
        expected = self._bytes(case, num_pools, num_unowned_slots=NUM_UNOWNED_SLOTS).total
        return PreparedFullState(case, device, seed, num_pools, expected)

    def _bytes(self, case: BenchCase, num_layers: int, *, num_unowned_slots: int) -> layout.StateBytes:
        return layout.state_bytes(
            case.shape,
            case.num_requests,
            num_layers,
            inputs.STATE_DTYPES[case.state_dtype],
            scheme="full_state",
            activation_dtype=inputs.ACTIVATION_DTYPE,
            num_unowned_slots=num_unowned_slots,
        )


class PreparedFullState:
    """State pools of as many layers as outrun the L2; launches cycle over them."""

    def __init__(self, case: BenchCase, device: torch.device, seed: int, num_pools: int, expected_bytes: int) -> None:
        self._case = case
        generator = inputs.seeded_generator(device, seed)
        self._step = inputs.build_step(case, device, generator)
        window = case.shape.spec_query_len
        num_owned = case.num_requests * window
        self._num_slots = num_owned + NUM_UNOWNED_SLOTS
        self._slots = inputs.shuffled_slots(self._num_slots, num_owned, device, seed).view(case.num_requests, window)
        self._no_slots = torch.zeros_like(self._slots)
        self._out = torch.empty_like(self._step.v)
        self._pools: Sequence[Tensor] = ()

        def build() -> Sequence[Tensor]:
            self._pools = inputs.build_state_pools(case, num_pools, self._num_slots, device, generator)
            # Verify does not touch the conv windows, but an engine allocates them: one per request, whatever T.
            num_conv_slots = case.num_requests + NUM_UNOWNED_SLOTS
            self._conv_states = inputs.build_conv_states(case, num_pools, num_conv_slots, device, generator)
            return [*self._pools, *self._conv_states]

        _, requested = requested_bytes(device, build)
        self._bytes_off = abs(requested - expected_bytes)

    def _verify_into(
        self, pool: Tensor, layer: int, out: Tensor, query_start_loc: Tensor, slots: Tensor | None = None
    ) -> None:
        step = self._step
        recoverssm.full_state_verify(
            step.q,
            step.k,
            step.v,
            step.raw_gate,
            step.raw_beta,
            pool,
            step.layer_gates[layer],
            query_start_loc,
            self._slots if slots is None else slots,
            step.num_sampled,
            out=out,
        )

    def _step_call(self, first_layer: int) -> None:
        for layer in range(self._case.num_layers):
            self._verify_into(
                self._pools[(first_layer + layer) % len(self._pools)], layer, self._out, self._step.query_start_loc
            )

    def series(self) -> list[Series]:
        case, num_pools = self._case, len(self._pools)
        sizes = layer_sizes(case)
        rows = {"num_rows": case.num_requests, "num_tokens": case.num_requests * case.shape.spec_query_len}
        verify_cost = cost.full_state_verify(sizes, **rows)
        step_cost = cost.full_state_step(sizes, num_layers=case.num_layers, **rows)
        verifies: tuple[Call, ...] = tuple(partial(self._verify_pool, pool) for pool in range(num_pools))
        first_layers = range(0, max(num_pools, case.num_layers), case.num_layers)
        steps: tuple[Call, ...] = tuple(partial(self._step_call, first_layer) for first_layer in first_layers)
        programs = num_programs(self._verify_nothing)
        restore = SavedMemory(self._pools).restore
        return [
            Series("verify", "graph-cold", verifies, verify_cost, 1, programs, restore),
            Series("step", "graph-cold", steps, step_cost, case.num_layers, None, restore),
            *host_series("verify", self._verify_nothing, verify_cost),
        ]

    def _verify_nothing(self) -> None:
        """The same call on rows without slots: the device is done at once, so only the host's part takes time."""
        self._verify_into(self._pools[0], 0, self._out, self._step.query_start_loc, self._no_slots)

    def _verify_pool(self, pool: int) -> None:
        layer = pool % self._case.num_layers
        self._verify_into(self._pools[pool], layer, self._out, self._step.query_start_loc)

    def check(self, checklist: Checklist) -> None:
        """First and last pool, and one window that is a token short."""
        checklist.count("state", "bytes_off", self._bytes_off, "allocator's requested bytes against layout")
        for pool in sorted({0, len(self._pools) - 1}):
            self._check_verify(checklist, pool)
        self._check_ragged(checklist)

    def _check_verify(self, checklist: Checklist, index: int) -> None:
        pool, step, layer = self._pools[index], self._step, index % self._case.num_layers
        before = pool.clone()
        expected_pool = pool.double()
        expected = torch.full_like(self._out, torch.nan, dtype=torch.float64)
        reference.full_state_verify(
            step.q,
            step.k,
            step.v,
            step.raw_gate,
            step.raw_beta,
            expected_pool,
            step.layer_gates[layer],
            step.query_start_loc,
            self._slots,
            step.num_sampled,
            out=expected,
        )
        self._out.fill_(torch.nan)
        self._verify_pool(index)

        where = f"layer {layer}"
        owned = self._slots.flatten().long()
        unowned = torch.ones(self._num_slots, dtype=torch.bool, device=owned.device)
        unowned[owned] = False
        limit = checklist.limits.state(self._case.state_dtype)
        checklist.error("verify", "out_error", self._out, expected, checklist.limits.out, where)
        checklist.error(
            "verify", "state_error", pool[owned], expected_pool[owned], limit, f"{where}, all tokens' states"
        )
        checklist.equal("verify", "untouched", pool[unowned], before[unowned], f"{where}, slots nobody owns")

    def _check_ragged(self, checklist: Checklist) -> None:
        """With the last window a token shorter, that token's slot and output stay as they were."""
        pool = self._pools[0]
        last_slot = self._slots[-1, -1].long()
        before = pool[last_slot].clone()
        out = torch.full_like(self._out, torch.nan)
        self._verify_into(pool, 0, out, ragged_query_start_loc(self._step.query_start_loc))
        where = "layer 0, last window one token short"
        checklist.equal("verify", "untouched", pool[last_slot], before, f"{where}, its slot")
        checklist.equal("verify", "untouched", out[-1:], torch.full_like(out[-1:], torch.nan), f"{where}, output")

    def num_non_finite(self) -> int:
        return num_non_finite([self._out, self._pools[0], self._pools[-1]])


def num_state_pools(case: BenchCase, l2_bytes: int) -> int:
    """Layers' pools to cycle over: a divisor or a multiple of the layers, so that step follows step in the cycle.

    At least as many bytes as RecoverSSM's checkpoints of all layers, so that address translation favours neither.
    """
    window, num_layers = case.shape.spec_query_len, case.num_layers
    outrun_l2 = rotations(layer_sizes(case).state_bytes * case.num_requests * window, l2_bytes)
    needed = max(outrun_l2, -(-num_layers // window))
    divisors = [count for count in range(1, num_layers + 1) if num_layers % count == 0]
    return next((count for count in divisors if count >= needed), -(-needed // num_layers) * num_layers)
