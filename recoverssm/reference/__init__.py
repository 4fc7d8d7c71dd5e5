"""The ops in pure torch and float64, reading like the algebra: the answer the kernels are checked against.

Same names, arguments and in-place behaviour as the public ops; a sequence of tensors stands where an op takes a table
of layers. All arithmetic is float64 whatever comes in, and each result is rounded only when it is stored, to the dtype
of the tensor it goes to: float64 tensors get the float64 answer (torch rounds to 16 bits by way of float32). Any
device. Arguments are not checked, and the host waits for the device where that is simplest.
"""

from recoverssm.reference.align_plan import align_plan
from recoverssm.reference.columns import block_column, block_end
from recoverssm.reference.commit_plan import commit_plan
from recoverssm.reference.commit_state import commit_state
from recoverssm.reference.conv import compact_conv, update_conv_window
from recoverssm.reference.defer_plan import defer_plan
from recoverssm.reference.full_state import full_state_verify
from recoverssm.reference.verify import verify

__all__ = [
    "align_plan",
    "block_column",
    "block_end",
    "commit_plan",
    "commit_state",
    "compact_conv",
    "defer_plan",
    "full_state_verify",
    "update_conv_window",
    "verify",
]
