"""Implementations of the ops that are measured beside each other."""

from .base import Prepared, Provider, Series
from .full_state import FullStateProvider
from .recoverssm import RecoverSSMProvider
from .recoverssm_pdl import CHAINED, chained_providers

PROVIDERS: tuple[Provider, ...] = (RecoverSSMProvider(), FullStateProvider())

__all__ = ["CHAINED", "PROVIDERS", "Prepared", "Provider", "Series", "chained_providers"]
