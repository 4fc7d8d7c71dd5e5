"""The values of all processes of a GPU model in arrays, for pages that go through every series over all nights."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reports.process import Columns, Key, Shape

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


class Grid:
    """Made of the processes of each night, in order; NaN stands where a process has no valid value."""

    def __init__(self, nights: Sequence[Sequence[Columns]]) -> None:
        rows: dict[int, tuple[Shape, list[int], list[Columns]]] = {}
        for row, columns in enumerate(columns for night in nights for columns in night):
            _, places, own = rows.setdefault(id(columns.shape), (columns.shape, [], []))
            places.append(row)
            own.append(columns)
        self._blocks = [
            (shape, np.array(places), np.array([columns.values for columns in own]))
            for shape, places, own in rows.values()
        ]
        lengths = [len(night) for night in nights]
        self._size = sum(lengths), len(nights), max(lengths, default=0)
        self._night = np.repeat(np.arange(len(nights)), lengths)
        self._slot = np.concatenate([np.arange(length) for length in lengths]) if lengths else np.array([], int)

    def values(self, key: Key) -> Floats:
        """One per process."""
        found = np.full(self._size[0], np.nan)
        for shape, rows, block in self._blocks:
            place = shape.places.get(key)
            if place is not None:
                found[rows] = block[:, place]
        return found

    def nights(self, values: Floats) -> tuple[Floats, Counts]:
        """Of each night the median of its valid values, as ``statistics.median`` takes it, and how many they are."""
        table = np.full(self._size[1:], np.nan)
        table[self._night, self._slot] = values
        table.sort(axis=1)  # NaN comes last
        counts = (~np.isnan(table)).sum(axis=1)
        nights, last = np.arange(len(table)), np.maximum(counts - 1, 0)
        return (table[nights, last // 2] + table[nights, (last + 1) // 2]) / 2, counts
