"""Commit plan: which prefix of its window each row keeps, from the sampled counts, on the device."""

from collections.abc import Sequence

from torch import Tensor

from recoverssm.checks import check_device, check_plan, check_row_vector, check_spec_query_len
from recoverssm.dispatch import Prepared, TensorMeta
from recoverssm.kernels.commit_plan import _commit_plan_kernel
from recoverssm.triton_compat import KernelLaunch
from recoverssm.types import CommitPlan

BLOCK_ROWS = 128  # one warp per 32 rows; a batch rarely has more rows than one program holds


def commit_plan(
    num_sampled: Tensor,
    query_start_loc: Tensor,
    state_indices: Tensor,
    plan: CommitPlan,
    *,
    spec_query_len: int,
    request_indices: Tensor | None = None,
) -> None:
    """Fill ``plan`` in place: row i keeps min(num_sampled of its request, its tokens, T) tokens.

    Row i belongs to request row request_indices[i], or i without them. A row without tokens, without a slot (0 or
    less), without sampled tokens or with a request row outside num_sampled gets zeros: commit then leaves everything
    alone.

    Args:
        num_sampled: [number of request rows] int32, sampled tokens per request, the bonus token included.
        query_start_loc: [N + 1] int32. state_indices: [N] int32. request_indices: [N] int32 or None.
        plan: three int32 tensors [N], written.
        spec_query_len: T of the records.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError: before any launch.
    Source: docs/algorithm.md section 3.
    """
    has_request_indices = request_indices is not None
    requests = state_indices if request_indices is None else request_indices
    rows = (plan.commit_lens, plan.source_slots, plan.final_slots)
    _commit_plan((num_sampled, query_start_loc, state_indices, requests, *rows), spec_query_len, has_request_indices)


@Prepared
def _commit_plan(tensors: Sequence[TensorMeta], spec_query_len: int, has_request_indices: bool) -> KernelLaunch | None:
    num_sampled, query_start_loc, state_indices, request_indices, *plan = tensors
    device = num_sampled.device
    check_device("num_sampled", device)
    check_row_vector("num_sampled", num_sampled, None, device)
    check_row_vector("state_indices", state_indices, None, device)
    (num_rows,) = state_indices.shape
    check_row_vector("query_start_loc", query_start_loc, num_rows + 1, device)
    check_plan(plan, num_rows, device)
    check_spec_query_len("spec_query_len", spec_query_len)
    if has_request_indices:
        check_row_vector("request_indices", request_indices, num_rows, device)
    if num_rows == 0:
        return None
    return KernelLaunch(
        _commit_plan_kernel,
        (-(-num_rows // BLOCK_ROWS),),
        device,
        scalars=(num_rows, num_sampled.shape[0]),
        constants={"T": spec_query_len, "HAS_REQUEST_INDICES": has_request_indices, "BN": BLOCK_ROWS, "num_warps": 4},
    )
