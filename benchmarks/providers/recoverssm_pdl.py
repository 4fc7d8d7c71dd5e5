"""RecoverSSM with chained verifies: each begins while the one before still runs (programmatic dependent launch)."""

import torch

from recoverssm import triton_compat

from ..cases import BenchCase
from ..harness.records import Contract
from .base import Prepared, Provider, Series, card_arch
from .recoverssm import PreparedRecoverSSM, RecoverSSMProvider

CASES = frozenset(f"kimi_k3_tp8_b{batch}_t8_a3.84_fp32" for batch in (1, 32, 128))
"""The only cases that it is measured on: three batches show what it can gain, and a night has other things to do.

Verifies that follow each other hide each other's beginnings. In an engine their neighbours are other kernels, so its
series are never put in the place of those of ``recoverssm``.
"""


class RecoverSSMPdlProvider(RecoverSSMProvider):
    """The ops of ``recoverssm`` where verifies are launched one after another: in graphs, and nowhere else."""

    name = "recoverssm_pdl"
    series_names: tuple[tuple[str, Contract], ...] = (("verify", "graph-cold"), ("step", "graph-cold"))

    def prepare(self, case: BenchCase, device: torch.device, seed: int, l2_bytes: int) -> Prepared:
        return PreparedRecoverSSMPdl(case, device, seed, l2_bytes, self.set_bytes(case))


class PreparedRecoverSSMPdl(PreparedRecoverSSM):
    """The same memory and checks."""

    chains_verifies = True

    def series(self) -> list[Series]:
        wanted = RecoverSSMPdlProvider.series_names
        return [series for series in super().series() if (series.op, series.contract) in wanted]


CHAINED = RecoverSSMPdlProvider()


def can_chain(device: torch.device) -> bool:
    """Whether verifies may begin early there, in the form that these cases take."""
    return card_arch(device) == 90 and triton_compat.IS_TESTED


def chained_providers(case: BenchCase, device: torch.device) -> tuple[Provider, ...]:
    """``recoverssm_pdl`` where the case gets it and the card can; checks and calls are as in ``PROVIDERS``."""
    return (CHAINED,) if case.name in CASES and can_chain(device) else ()
