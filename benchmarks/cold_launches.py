"""Which series a process takes under ``nvbench-cold`` besides its ``graph-cold`` ones, and how it takes one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from .cases import BESIDE, FOLDS_ALONE, BenchCase
from .harness.measure import Samples
from .harness.nvbench_cold import measure_nvbench_cold
from .harness.records import Contract
from .providers import Series

DEVICE_CONTRACTS: tuple[Contract, ...] = ("graph-cold", "nvbench-cold")

KERNELS = frozenset({"verify", "commit_plan", "commit_state", "conv"})
"""Ops of one launch. Of an op of several launches an isolated call says little: an engine replays those as a graph."""

FOLDS = frozenset({"commit", "commit_state", "conv"})
"""Ops that depend on how many tokens are accepted, and with them the step of a provider that has one."""

DEFAULT_CASES = {
    "nightly": frozenset({"kimi_k3_tp8_b32_t8_a3.84_fp32", "kimi_k3_tp8_b32_t8_a3.84_bf16"}),
}
"""By set: cases also measured under ``nvbench-cold`` when nobody chose contracts: ten series of at most 0.4 s each."""


class UnknownContractError(LookupError):
    """No contract for device time has that name."""


@dataclass(frozen=True, slots=True)
class DeviceContracts:
    """Contracts under which a process takes device times.

    Attributes:
        always: for every case.
        cold_cases: names of cases that get ``nvbench-cold`` as well.
        lean: device times of ``PROVIDERS`` (and of peers, if asked for) alone, which are what gates judge: no host
            times, no matched streams.
        folds_alone: names of cases in which only ``FOLDS``, and steps that have one, are measured.
    """

    always: tuple[Contract, ...] = ("graph-cold",)
    cold_cases: frozenset[str] = frozenset()
    lean: bool = False
    folds_alone: frozenset[str] = frozenset()

    def under(self, case: BenchCase, names: Iterable[tuple[str, Contract]]) -> list[tuple[str, Contract]]:
        """Op and contract of every series that this process has of the named ones."""
        names = tuple(names)
        taken = self._ops(case, [op for op, _ in names])
        return [(op, each) for op, contract in names if op in taken for each in self._contracts(case, op, contract)]

    def series_under(self, case: BenchCase, series: Sequence[Series]) -> list[Series]:
        """The series that this process takes: each under every contract chosen for it."""
        taken = self._ops(case, [one.op for one in series])
        return [
            replace(one, contract=each)
            for one in series
            if one.op in taken
            for each in self._contracts(case, one.op, one.contract)
        ]

    def in_graphs(self) -> "DeviceContracts":
        """The same without contracts that launch a call by itself."""
        always = tuple(each for each in self.always if each == "graph-cold")
        return DeviceContracts(always, folds_alone=self.folds_alone)

    def _ops(self, case: BenchCase, ops: Sequence[str]) -> frozenset[str]:
        """Those of a provider's ops that this process takes of the case."""
        if case.name not in self.folds_alone:
            return frozenset(ops)
        folds = FOLDS.intersection(ops)
        return folds | ({"step"}.intersection(ops) if folds else frozenset())

    def _contracts(self, case: BenchCase, op: str, contract: Contract) -> tuple[Contract, ...]:
        if contract != "graph-cold":
            return () if self.lean else (contract,)
        chosen = dict.fromkeys(self.always) | ({"nvbench-cold": None} if case.name in self.cold_cases else {})
        return tuple(each for each in chosen if each == "graph-cold" or op in KERNELS)


GRAPH_COLD = DeviceContracts()


def choose_contracts(text: str | None, case_set: str, *, lean: bool = False) -> DeviceContracts:
    """From a command line's comma-separated list; None for what the set takes by itself, or ``graph-cold`` where lean.

    Sets for other projects' kernels are lean.

    Raises:
        UnknownContractError: a name that is none; the message names those there are.
    """
    lean = lean or case_set in BESIDE
    folds_alone = FOLDS_ALONE if case_set in BESIDE else frozenset[str]()
    if text is None:
        cold_cases = frozenset() if lean else DEFAULT_CASES.get(case_set, frozenset())
        return DeviceContracts(cold_cases=cold_cases, lean=lean, folds_alone=folds_alone)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in DEVICE_CONTRACTS:
            raise UnknownContractError(f"--contracts: expected some of {', '.join(DEVICE_CONTRACTS)}, got {name!r}")
    return DeviceContracts(always=cast("tuple[Contract, ...]", names), lean=lean, folds_alone=folds_alone)


def measure_cold_launches(series: Series, device: torch.device) -> Samples:
    """One series under ``nvbench-cold``; raises as ``measure_nvbench_cold`` does."""
    return measure_nvbench_cold(
        series.calls,
        restore=series.restore,
        num_kernels=series.num_kernels,
        device_index=device.index,
    )
