"""Public operations: checks, then one launch each; as ``torch.ops.recoverssm`` where torch traces them."""

from recoverssm.ops import registered as registered
from recoverssm.ops.align_plan import align_plan
from recoverssm.ops.commit_plan import commit_plan
from recoverssm.ops.commit_state import commit_state
from recoverssm.ops.conv import compact_conv
from recoverssm.ops.defer_plan import defer_plan
from recoverssm.ops.full_state import full_state_verify
from recoverssm.ops.verify import verify

__all__ = ["align_plan", "commit_plan", "commit_state", "compact_conv", "defer_plan", "full_state_verify", "verify"]
