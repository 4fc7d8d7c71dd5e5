"""RecoverSSM's caches of all layers, several sets to rotate through, and the calls on them."""

from collections.abc import Sequence

import torch
from torch import Tensor

import recoverssm
from recoverssm.types import CommitPlan, LayerTable, Records

from .. import inputs
from ..cases import BenchCase
from ..inputs import NUM_UNOWNED_SLOTS, LayerSet
from .base import layer_sizes, requested_bytes, rotations
from .plan_places import NUM_PLACES, PlacedPlans


class RecoverSSMCalls:
    """Rotated sets of all layers' caches, and one commit context for each.

    Attributes:
        chains_verifies: whether the verify of a layer begins while the one before is still running. That of the first
            layer does not: whatever wrote states, slots and starts is complete when it begins.
    """

    chains_verifies = False

    def __init__(
        self, case: BenchCase, device: torch.device, seed: int, l2_bytes: int, expected_bytes_per_set: int
    ) -> None:
        self._case = case
        generator = inputs.seeded_generator(device, seed)
        self._step = inputs.build_step(case, device, generator)
        self._num_slots = case.num_requests + NUM_UNOWNED_SLOTS
        self._slots = inputs.shuffled_slots(self._num_slots, case.num_requests, device, seed)
        self._out = torch.empty_like(self._step.v)
        num_sets, num_conv_sets = count_sets(case, l2_bytes)
        self._sets: list[LayerSet] = []

        def build_set() -> Sequence[Tensor]:
            self._sets.append(inputs.build_layer_set(case, device, generator))
            return self._sets[-1].tensors

        _, requested = requested_bytes(device, build_set)
        self._bytes_off = abs(requested - expected_bytes_per_set)
        for _ in range(1, num_sets):
            build_set()
        self._conv_sets = conv_sets = [layer_set.conv_states for layer_set in self._sets]
        while len(conv_sets) < num_conv_sets:
            conv_sets.append(inputs.build_conv_states(case, case.num_layers, self._num_slots, device, generator))
        self._conv_tables = [LayerTable.of("conv_states", conv_states) for conv_states in conv_sets]
        self._contexts = [self._context(layer_set) for layer_set in self._sets]
        self._plan = CommitPlan(*torch.zeros((3, case.num_requests), dtype=torch.int32, device=device).unbind())
        self._fill_plan()
        self._placed = PlacedPlans(
            self._step.num_sampled,
            self._step.query_start_loc,
            self._slots,
            spec_query_len=case.shape.spec_query_len,
            num_places=NUM_PLACES if l2_bytes else 1,
        )
        self._no_slots, self._none_sampled = torch.zeros_like(self._slots), torch.zeros_like(self._step.num_sampled)

    def _context(self, layer_set: LayerSet) -> recoverssm.CommitContext:
        return recoverssm.CommitContext(
            layer_set.checkpoint_states,
            layer_set.records,
            layer_set.conv_states,
            self._step.gate,
            max_num_rows=self._case.num_requests,
            conv_width=self._case.shape.conv_width,
        )

    def _verify(self, layer_set: LayerSet, layer: int) -> None:
        chained = self.chains_verifies and layer > 0
        states, records = layer_set.checkpoint_states[layer], layer_set.records[layer]
        self._verify_into(states, records, layer, self._out, enable_pdl=chained)

    def _verify_into(
        self,
        checkpoint_state: Tensor,
        records: Records,
        layer: int,
        out: Tensor,
        query_start_loc: Tensor | None = None,
        slots: Tensor | None = None,
        *,
        enable_pdl: bool = False,
    ) -> None:
        step = self._step
        recoverssm.verify(
            step.q,
            step.k,
            step.v,
            step.raw_gate,
            step.raw_beta,
            checkpoint_state,
            records,
            step.layer_gates[layer],
            step.query_start_loc if query_start_loc is None else query_start_loc,
            self._slots if slots is None else slots,
            out=out,
            enable_pdl=enable_pdl,
        )

    def _fill_plan(self) -> None:
        step = self._step
        recoverssm.commit_plan(
            step.num_sampled,
            step.query_start_loc,
            self._slots,
            self._plan,
            spec_query_len=self._case.shape.spec_query_len,
        )

    def _commit(self, context: recoverssm.CommitContext) -> None:
        context.commit(self._step.num_sampled, self._step.query_start_loc, self._slots)

    def _verify_nothing(self) -> None:
        """The same call on rows without slots: the device is done at once, so only the host's part takes time."""
        layer_set = self._sets[0]
        self._verify_into(layer_set.checkpoint_states[0], layer_set.records[0], 0, self._out, slots=self._no_slots)

    def _commit_nothing(self) -> None:
        """Likewise: no request accepted anything, so no state changes."""
        self._contexts[0].commit(self._none_sampled, self._step.query_start_loc, self._slots)

    def _step_call(self, layer_set: LayerSet, context: recoverssm.CommitContext) -> None:
        for layer in range(self._case.num_layers):
            self._verify(layer_set, layer)
        self._commit(context)


def count_sets(case: BenchCase, l2_bytes: int) -> tuple[int, int]:
    """Sets of all layers' caches to rotate through, and how many conv windows of all layers, which are smaller."""
    sizes, num_rows = layer_sizes(case), case.num_requests * case.num_layers
    num_sets = rotations(num_rows * sizes.state_bytes, l2_bytes)
    return num_sets, max(num_sets, rotations(num_rows * sizes.conv_history_bytes, l2_bytes))
