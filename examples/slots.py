"""State slots of the toy engine: free, held by requests, or kept for prefixes that may come again."""

from collections import Counter
from collections.abc import Sequence

Prefix = tuple[int, ...]


class SlotPool:
    """Counts who holds a slot. A slot that nobody holds is free, unless it is known as the state after a prefix.

    Args:
        num_slots: of the pools; slot 0 is the null slot and never given.
    """

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(1, num_slots))
        self._holders: Counter[int] = Counter()
        self._slot_of: dict[Prefix, int] = {}  # the least recently used first
        self._prefix_of: dict[int, Prefix] = {}

    def take(self) -> int | None:
        """A slot for a new state, from a prefix that nobody uses if need be; None where all are held."""
        if not self._free:
            idle = next((slot for slot in self._slot_of.values() if not self._holders[slot]), None)
            if idle is None:
                return None
            del self._slot_of[self._prefix_of.pop(idle)]
            self._free.append(idle)
        slot = self._free.pop()
        self._holders[slot] = 1
        return slot

    def release(self, slot: int) -> None:
        self._holders[slot] -= 1
        if not self._holders[slot] and slot not in self._prefix_of:
            self._free.append(slot)

    def keep(self, tokens: Sequence[int], slot: int) -> None:
        """Note that ``slot`` holds the state after ``tokens``, unless another one is known to."""
        if slot not in self._prefix_of and self._slot_of.setdefault(tuple(tokens), slot) == slot:
            self._prefix_of[slot] = tuple(tokens)

    def find(self, tokens: Sequence[int], block_size: int) -> tuple[int, int]:
        """Length of the longest known prefix that leaves a token to compute, and its slot, which is then held."""
        for length in range((len(tokens) - 1) // block_size * block_size, 0, -block_size):
            prefix = tuple(tokens[:length])
            if prefix in self._slot_of:
                slot = self._slot_of[prefix] = self._slot_of.pop(prefix)
                self._holders[slot] += 1
                return length, slot
        return 0, 0
