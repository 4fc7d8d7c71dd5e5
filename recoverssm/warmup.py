"""Warm-up: compiles what a configuration will launch, before a CUDA graph is captured or a request has to wait."""

from itertools import product
from typing import Any

import torch

from recoverssm.committer import CommitContext
from recoverssm.config import RecoverSSMConfig
from recoverssm.ops import verify
from recoverssm.types import AlignInputs, GateParams, RecordRows, Records


def warm_up(
    config: RecoverSSMConfig,
    device: torch.device | str,
    *,
    enable_pdl: bool = False,
    key_gate_recorded: bool = False,
) -> None:
    """Compile every kernel that steps of ``config`` launch on ``device``, for batches of 1 to max_num_requests rows.

    Launches verify and commit of rows without slots, over one token and one slot of memory of its own. On the CPU,
    where Triton interprets, there is nothing to do.

    What Triton compiles depends on strides and addresses too: these are dense tensors, tokens and layers of them from
    any on, and pages that lie a multiple of 64 bytes apart. For others, run a dummy step of the model once before its
    graph is captured; a kernel that is missing then raises ``CaptureError``.

    Args:
        enable_pdl: compile verify both as it is launched with ``enable_pdl`` and without.
        key_gate_recorded: compile verify as it is launched with ``key_gate_recorded``.
    Raises:
        ConfigError: enable_pdl where it cannot be.
    Source: docs/integrating.md section 5.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return
    shape, rows, dtype = config.layer_shape, config.max_num_requests, config.activation_dtype
    entries = config.num_record_rows
    H, C, K, V = shape.num_heads, shape.spec_query_len + config.history_len, shape.key_dim, shape.value_dim

    def zeros(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    layout = config.page_layout()
    states, convs, records = layout.views(zeros(1, layout.page_bytes, dtype=torch.uint8))
    if records is None:
        # Rows without slots record nothing, so that one entry stands for those of all rows.
        correction, key_gate = (
            x.expand(entries, -1, -1, -1) for x in (zeros(1, H, C, V), zeros(1, H, C, 2 * K, dtype=dtype))
        )
        records = Records(correction, key_gate, history_len=config.history_len)
    A_logs, dt_bias = zeros(2, H), zeros(1, H, K)
    gate = GateParams(A_logs[:1], dt_bias, config.gate_lower_bound)
    context = CommitContext(
        [states],
        [records],
        [convs],
        gate,
        max_num_rows=rows,
        conv_width=config.conv_width,
        block_size=config.block_size,
    )
    q, v, raw_betas = zeros(1, H, K, dtype=dtype), zeros(1, H, V, dtype=dtype), zeros(2, 1, H, dtype=dtype)
    key = None if key_gate_recorded else q
    starts_of_verify = (False, True) if enable_pdl else (False,)
    starts, slots, waiting_lens = (zeros(size, dtype=torch.int32) for size in (rows + 1, rows, entries))
    for num_rows in range(1, rows + 1):
        row_starts, row_slots = starts[: num_rows + 1], slots[:num_rows]
        record_rows, deferral = None, dict[str, Any]()
        if config.commit == "deferred":
            record_rows = RecordRows(row_slots, row_slots if context.takes_history(num_rows) else None)
            deferral = {"record_rows": record_rows, "waiting_lens": waiting_lens}
            context.commit_waiting(row_slots, waiting_lens, row_slots)
        # Of the second token or layer on, these two begin at multiples of 16 bytes with some numbers of heads alone.
        for raw_beta, A_log, early in product(raw_betas, A_logs, starts_of_verify):
            layer = (q, key, v, key, raw_beta, states, records, GateParams(A_log, dt_bias[0], gate.lower_bound))
            verify(
                *layer,
                row_starts,
                row_slots,
                enable_pdl=early,
                key_gate_recorded=key_gate_recorded,
                record_rows=record_rows,
            )
        blocks: list[AlignInputs | None] = [None]
        if config.block_size is not None:
            blocks = [AlignInputs(row_slots, row_slots[:, None], config.block_size, kept) for kept in (None, row_slots)]
        for requests in (None, row_slots):
            for align in blocks:
                context.commit(row_slots, row_starts, row_slots, request_indices=requests, align=align, **deferral)
