"""Implementations of the ops that are measured beside each other."""

import torch

from ..cases import BenchCase
from .base import OwnProvider, Prepared, Provider, Series
from .full_state import FullStateProvider
from .recoverssm import RecoverSSMProvider
from .recoverssm_align import ALIGN, align_providers
from .recoverssm_deferred import CHAINED_DEFERRED, DEFERRED, deferred_providers
from .recoverssm_pdl import CHAINED, chained_providers

PROVIDERS: tuple[OwnProvider, ...] = (RecoverSSMProvider(), FullStateProvider())
CHAINS: tuple[OwnProvider, ...] = (CHAINED, CHAINED_DEFERRED)
"""Of verifies that begin beside the one before."""

__all__ = [
    "ALIGN",
    "CHAINED",
    "CHAINED_DEFERRED",
    "CHAINS",
    "DEFERRED",
    "PROVIDERS",
    "OwnProvider",
    "Prepared",
    "Provider",
    "Series",
    "chained_providers",
    "deferred_providers",
    "extra_providers",
]


def extra_providers(case: BenchCase, device: torch.device) -> tuple[Provider, ...]:
    """What a process measures of some cases alone, besides ``PROVIDERS``."""
    return (*align_providers(case), *chained_providers(case, device), *deferred_providers(case, device))
