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
from recoverssm.ops import align_plan, commit_plan, commit_state, compact_conv, full_state_verify, verify
from recoverssm.types import AlignInputs, AlignPlan, Boundaries, CommitPlan, GateParams, KDAShape, LayerTable, Records

__all__ = [
    "AlignInputs",
    "AlignPlan",
    "ArgumentError",
    "Boundaries",
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
    "align_plan",
    "commit_plan",
    "commit_state",
    "compact_conv",
    "full_state_verify",
    "verify",
]
