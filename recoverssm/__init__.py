"""Speculative decoding with Kimi Delta Attention from one checkpoint and small records per request."""

from recoverssm.committer import CommitContext
from recoverssm.config import RecoverSSMConfig
from recoverssm.errors import (
    ArgumentError,
    CaptureError,
    ConfigError,
    DeviceError,
    DtypeError,
    RecoverSSMError,
    ShapeError,
    StepError,
    StrideError,
)
from recoverssm.lifecycle import RecoverSSMState, SampledByRow, SampledBySlot
from recoverssm.metadata import (
    MetadataBuilder,
    RequestBatch,
    RequestRow,
    RequestSlot,
    SpecRow,
    StateSlot,
    StepMetadata,
)
from recoverssm.ops import align_plan, commit_plan, commit_state, compact_conv, defer_plan, full_state_verify, verify
from recoverssm.pages import PageLayout, PageViews
from recoverssm.types import (
    AlignInputs,
    AlignPlan,
    Boundaries,
    CommitPlan,
    GateParams,
    KDAShape,
    LayerTable,
    RecordRows,
    Records,
)
from recoverssm.warmup import warm_up

__all__ = [
    "AlignInputs",
    "AlignPlan",
    "ArgumentError",
    "Boundaries",
    "CaptureError",
    "CommitContext",
    "CommitPlan",
    "ConfigError",
    "DeviceError",
    "DtypeError",
    "GateParams",
    "KDAShape",
    "LayerTable",
    "MetadataBuilder",
    "PageLayout",
    "PageViews",
    "RecordRows",
    "Records",
    "RecoverSSMConfig",
    "RecoverSSMError",
    "RecoverSSMState",
    "RequestBatch",
    "RequestRow",
    "RequestSlot",
    "SampledByRow",
    "SampledBySlot",
    "ShapeError",
    "SpecRow",
    "StateSlot",
    "StepError",
    "StepMetadata",
    "StrideError",
    "align_plan",
    "commit_plan",
    "commit_state",
    "compact_conv",
    "defer_plan",
    "full_state_verify",
    "verify",
    "warm_up",
]
