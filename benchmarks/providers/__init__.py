"""Implementations of the ops that are measured beside each other."""

from .base import Prepared, Provider, Series
from .full_state import FullStateProvider
from .recoverssm import RecoverSSMProvider

PROVIDERS: tuple[Provider, ...] = (RecoverSSMProvider(), FullStateProvider())

__all__ = ["PROVIDERS", "Prepared", "Provider", "Series"]
