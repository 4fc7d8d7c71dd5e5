"""What a peer is given for a case: the inputs of our own kernels, in states of as many layers as outrun the L2."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from recoverssm.types import GateParams

from .. import inputs
from ..cases import BenchCase
from ..checks import bits_of
from ..inputs import NUM_UNOWNED_SLOTS, StepInputs
from ..providers.base import layer_sizes, rotations
from ..providers.full_state import num_state_pools

Scheme = Literal["recoverssm", "full_state", "last_state"]


@dataclass(frozen=True, slots=True)
class Workload:
    """Inputs of one case on one device. Launches may use states and windows in place, or memory filled from them once;
    everything else is read alone, and ``prepare`` leaves all of it as it is.

    All rows have full windows: request n owns tokens n*T to n*T + T - 1. q and k are to be normalised by
    ``1 / sqrt(sum of squares + 1e-6)``, q scaled by ``K**-0.5`` as well; beta is ``sigmoid(raw_beta)``; the log decay
    is ``lower_bound * sigmoid(exp(A_log) * (raw_gate + dt_bias))`` (docs/algorithm.md section 1).

    A *place* is one layer's memory: ``states[place]`` belongs to layer ``layer(place)``, whose gate parameters are
    ``gate(place)``. In scheme ``recoverssm`` and ``last_state`` places come in sets of all layers; in ``full_state``
    there are as many as outrun the L2.

    Attributes:
        step: q, k, raw_gate [M, H, K], v [M, H, V], raw_beta [M, H], all bf16, shared by all layers; query_start_loc
            [N + 1] int32; num_sampled [N] int32, tokens that each request accepts, the bonus token included, in this
            step and in the one before.
        slots: [N] int32, the slot of each request; [N, T] in scheme ``full_state``: the state after token t belongs in
            slot ``slots[n, t]``, and the window starts from slot ``slots[n, num_sampled[n] - 1]``. Slot 0 is nobody's.
        states: pools [P, H, V, K], fp32 or bf16, K contiguous.
        conv_states: windows [P, conv_width - 1 + T - 1, 3HD] bf16, one per place; none in scheme ``full_state``.
            Request n's history after a commit lies at positions ``a - 1`` to ``a + conv_width - 3``, with a tokens
            accepted, and is to be copied to the front.
    """

    case: BenchCase
    scheme: Scheme
    step: StepInputs
    slots: Tensor
    states: tuple[Tensor, ...]
    conv_states: tuple[Tensor, ...]

    @property
    def device(self) -> torch.device:
        return self.slots.device

    @property
    def num_layers(self) -> int:
        return self.case.num_layers

    @property
    def num_sets(self) -> int:
        """Sets of all layers; 1 in scheme ``full_state``, which may have fewer places than layers."""
        return max(1, len(self.states) // self.num_layers)

    def places(self, number: int) -> range:
        """The places of set ``number``, layer by layer."""
        return range(number * self.num_layers, (number + 1) * self.num_layers)

    def layer(self, place: int) -> int:
        return place % self.num_layers

    def gate(self, place: int) -> GateParams:
        """A_log [H], dt_bias [H, K], both fp32, and lower_bound of a place's layer."""
        return self.step.layer_gates[self.layer(place)]

    def sums(self) -> dict[str, list[int]]:
        """Of the bits of every input, by its name, a sum for each tensor: another one where a value has changed."""
        step = self.step
        words = ("q", "k", "v", "raw_gate", "raw_beta", "query_start_loc", "num_sampled")
        given: dict[str, tuple[Tensor, ...]] = {word: (getattr(step, word),) for word in words}
        given |= {"gate": (step.gate.A_log, step.gate.dt_bias), "slots": (self.slots,)}
        given |= {"states": self.states, "conv_states": self.conv_states}
        return {
            name: torch.stack([bits_of(tensor).sum(dtype=torch.int64) for tensor in tensors]).tolist()
            for name, tensors in given.items()
            if tensors
        }


def build_workload(case: BenchCase, scheme: Scheme, device: torch.device, seed: int, l2_bytes: int) -> Workload:
    """As our own providers build theirs from the same seed; ``l2_bytes`` of 0 asks for no rotation."""
    generator = inputs.seeded_generator(device, seed)
    step = inputs.build_step(case, device, generator)
    num_places, num_owned = sizes(case, scheme, l2_bytes)
    num_slots = num_owned + NUM_UNOWNED_SLOTS
    slots = inputs.shuffled_slots(num_slots, num_owned, device, seed)
    if scheme == "full_state":
        pools = inputs.build_state_pools(case, num_places, num_slots, device, generator)
        return Workload(case, scheme, step, slots.view(case.num_requests, case.shape.spec_query_len), pools, ())
    states, conv_states = list[Tensor](), list[Tensor]()
    for _ in range(num_places // case.num_layers):
        states += inputs.build_state_pools(case, case.num_layers, num_slots, device, generator)
        conv_states += inputs.build_conv_states(case, case.num_layers, num_slots, device, generator)
    return Workload(case, scheme, step, slots, tuple(states), tuple(conv_states))


def sizes(case: BenchCase, scheme: Scheme, l2_bytes: int) -> tuple[int, int]:
    """Places, and slots that requests own in each."""
    if scheme == "full_state":
        return num_state_pools(case, l2_bytes), case.num_requests * case.shape.spec_query_len
    layer_bytes = case.num_requests * case.num_layers * layer_sizes(case).state_bytes
    return case.num_layers * rotations(layer_bytes, l2_bytes), case.num_requests
