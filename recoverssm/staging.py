"""Device memory that a step fills from the host without waiting, and owns until it is done."""

from collections.abc import Sequence

import torch
from torch import Tensor

COPY_ALIGNMENT = 4  # int32 elements: every column begins at a multiple of 16 bytes


class Staging:
    """Device memory of one step in flight. ``owner`` is the step that filled it, until that step is done."""

    def __init__(self, max_num_rows: int, num_columns: int, device: torch.device) -> None:
        self._buffer = torch.zeros(num_columns * _column_len(max_num_rows), dtype=torch.int32, device=device)
        self.owner: int | None = None

    def fill(self, num_rows: int, *columns: list[int]) -> list[Tensor]:
        """Copy columns of ``num_rows`` or one more in one go; where they lie depends on the number of rows alone."""
        length = _column_len(num_rows)
        values: list[int] = []
        for column in columns:
            values += column
            values += [0] * (length - len(column))
        front = self._buffer[: len(values)]
        front.copy_(_on_host(values, torch.int32, self._buffer.device), non_blocking=True)
        held = front.view(len(columns), length).unbind()
        return [there[: len(column)] for there, column in zip(held, columns, strict=True)]


def _column_len(num_rows: int) -> int:
    return -(-(num_rows + 1) // COPY_ALIGNMENT) * COPY_ALIGNMENT


def _on_host(values: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory that torch keeps until copies from it are done, and that the device reads without the host."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")


def to_device(values: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    return _on_host(values, dtype, device).to(device, non_blocking=True)
