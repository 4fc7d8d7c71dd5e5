"""Device memory that a step fills from the host without waiting, and owns until it is done."""

from collections.abc import Sequence

import torch
from torch import Tensor

COPY_ALIGNMENT = 4  # int32 elements: every column begins at a multiple of 16 bytes


class Staging:
    """Device memory of one step in flight. ``owner`` is the step that filled it, until that step is done."""

    def __init__(self, max_num_rows: int, device: torch.device) -> None:
        self._buffer = torch.zeros(4 * _column_len(max_num_rows), dtype=torch.int32, device=device)
        self.owner: int | None = None

    def fill(
        self, state_indices: list[int], query_start_loc: list[int], request_rows: list[int], request_slots: list[int]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Copy four columns in one go; where they lie depends on the number of rows alone."""
        num_rows = len(state_indices)
        length = _column_len(num_rows)
        values: list[int] = []
        for column in (state_indices, query_start_loc, request_rows, request_slots):
            values += column
            values += [0] * (length - len(column))
        front = self._buffer[: 4 * length]
        front.copy_(_on_host(values, torch.int32, self._buffer.device), non_blocking=True)
        slots, starts, rows, requests = front.view(4, length).unbind()
        return slots[:num_rows], starts[: num_rows + 1], rows[:num_rows], requests[:num_rows]


def _column_len(num_rows: int) -> int:
    return -(-(num_rows + 1) // COPY_ALIGNMENT) * COPY_ALIGNMENT


def _on_host(values: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory that torch keeps until copies from it are done, and that the device reads without the host."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")


def to_device(values: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    return _on_host(values, dtype, device).to(device, non_blocking=True)
