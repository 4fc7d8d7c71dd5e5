"""The cases of a set dealt out to several runs, so that each takes about as long and together they are the set."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from .cases import BenchCase

CASE_S, REQUEST_HEAD_S = 0.85, 0.41 / 384
"""Of a case in a measuring process, and more of it for each head of each request: a line through the 40 cases of the
set nightly (H200, 2026-11-29; it leaves 0.46 of the 0.66 s by which they differ). It needs no store."""


@dataclass(frozen=True, slots=True)
class ShardOf:
    """One part of a set: number ``index`` of ``count``, from 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of "2/3". Raises ValueError that says what was expected."""
        found = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", text)
        if found is None or int(found[1]) > int(found[2]):
            raise ValueError(f"expected I/N with I from 1 to N, as 2/3; got {text!r}")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def seconds(case: BenchCase) -> float:
    """About how long a case takes in one measuring process, for comparing cases alone."""
    return CASE_S + REQUEST_HEAD_S * case.num_requests * case.shape.num_heads


def deal(cases: Sequence[BenchCase], shard: ShardOf) -> list[BenchCase]:
    """The cases of one shard, in the order of the set; empty where there are more shards than cases.

    Longest first, each to the shard that has least so far: the same on every machine.
    """
    loads = [0.0] * shard.count
    dealt: list[str] = []
    for case in sorted(cases, key=lambda case: (-seconds(case), case.name)):
        least = loads.index(min(loads))
        loads[least] += seconds(case)
        if least == shard.index - 1:
            dealt.append(case.name)
    return [case for case in cases if case.name in dealt]
