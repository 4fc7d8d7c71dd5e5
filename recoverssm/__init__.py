"""Speculative decoding with Kimi Delta Attention from one checkpoint and small records per request."""

from recoverssm.committer import CommitContext
from recoverssm.errors import (
    ArgumentError,
    ConfigError,
    DeviceError,
    DtypeError,
    RecoverSSMError,
    ShapeError,
    StrideError,
)
from recoverssm.ops import commit_plan, commit_state, compact_conv, full_state_verify, verify
from recoverssm.types import CommitPlan, GateParams, KDAShape, LayerTable, Records

__all__ = [
    "ArgumentError",
    "CommitContext",
    "CommitPlan",
    "ConfigError",
    "DeviceError",
    "DtypeError",
    "GateParams",
    "KDAShape",
    "LayerTable",
    "Records",
    "RecoverSSMError",
    "ShapeError",
    "StrideError",
    "commit_plan",
    "commit_state",
    "compact_conv",
    "full_state_verify",
    "verify",
]
