"""One commit plan at many places in memory: what a launch of a microsecond takes depends on where its few bytes lie.

A process that has it at one place measures that place. On an H200 process medians fall into two modes 6 % apart, 1.15
and 1.22 us; fresh processes that allocate alike agree within 0.2 %, those that take cases in another order do not.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

import recoverssm
from recoverssm.types import CommitPlan

from .base import Call

NUM_PLACES = 64  # their mean spreads by an eighth of what one place does
PAGE_BYTES = 4096  # between tensors: nearer ones may share the part of the L2 that keeps them


class PlacedPlans:
    """The same inputs and a plan of its own at each place.

    Args:
        num_sampled, query_start_loc, state_indices: as ``recoverssm.commit_plan`` takes them; copied to every place.
    Attributes:
        calls: for each place, one call that fills its plan.
        plans: what the calls fill; -1 before.
    """

    def __init__(
        self,
        num_sampled: Tensor,
        query_start_loc: Tensor,
        state_indices: Tensor,
        *,
        spec_query_len: int,
        num_places: int = NUM_PLACES,
    ) -> None:
        plan = torch.full((3, len(state_indices)), -1, dtype=torch.int32, device=state_indices.device)
        calls, self.plans = list[Call](), list[CommitPlan]()
        for sampled, starts, slots, rows in _copies([num_sampled, query_start_loc, state_indices, plan], num_places):
            own = CommitPlan(*rows.unbind())
            self.plans.append(own)
            calls.append(partial(recoverssm.commit_plan, sampled, starts, slots, own, spec_query_len=spec_query_len))
        self.calls = tuple(calls)


def _copies(tensors: Sequence[Tensor], num_places: int) -> list[list[Tensor]]:
    # One allocation, so that all places lie in few large pages of the card, as an engine's buffers do.
    sizes = [PAGE_BYTES * math.ceil(tensor.nbytes / PAGE_BYTES) for tensor in tensors]
    device = tensors[0].device
    places = []
    for place in torch.empty((num_places, sum(sizes)), dtype=torch.uint8, device=device):
        parts = torch.split(place, sizes)
        own = [part[: t.nbytes].view(t.dtype).view(t.shape) for part, t in zip(parts, tensors, strict=True)]
        for copy, tensor in zip(own, tensors, strict=True):
            copy.copy_(tensor)
        places.append(own)
    return places
