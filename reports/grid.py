"""The values of all processes of a GPU model in arrays, for pages that go through every series over all nights."""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reports.process import ColumnName, Columns, Key, Shape

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
        self._blocks = [(shape, np.array(places), own) for shape, places, own in rows.values()]
        self._arrays: dict[ColumnName, list[Floats]] = {}
        lengths = [len(night) for night in nights]
        self._size = sum(lengths), len(nights), max([1, *lengths])
        self._night = np.repeat(np.arange(len(nights)), lengths)
        self._slot = np.concatenate([np.arange(length) for length in lengths]) if lengths else np.array([], int)

    def values(self, key: Key, name: ColumnName = "values") -> Floats:
        """One per process."""
        if name not in self._arrays:
            self._arrays[name] = [np.array([getattr(one, name) for one in own]) for _, _, own in self._blocks]
        found = np.full(self._size[0], np.nan)
        for (shape, rows, _), block in zip(self._blocks, self._arrays[name], strict=True):
            place = shape.places.get(key)
            if place is not None:
                found[rows] = block[:, place]
        return found

    def ratio_pct(self, numerator: Key, denominator: Key) -> Floats:
        """One per process, as ``Processes.ratio_pct``."""
        top, bottom = self.values(numerator), self.values(denominator)
        above: Floats = top / np.where(bottom == 0, np.nan, bottom) - 1
        return 100 * above

    def by_night(self, values: Floats) -> list[list[float]]:
        """Of each night its valid values, in order."""
        valid = ~np.isnan(values)
        ends = np.cumsum(np.bincount(self._night[valid], minlength=self._size[1])).tolist()
        listed = values[valid].tolist()
        return [listed[start:end] for start, end in itertools.pairwise([0, *ends])]

    def nights(self, values: Floats) -> tuple[Floats, Counts]:
        """Of each night the median of its valid values, as ``statistics.median`` takes it, and how many they are."""
        table = np.full(self._size[1:], np.nan)
        table[self._night, self._slot] = values
        table.sort(axis=1)  # NaN comes last
        counts = (~np.isnan(table)).sum(axis=1)
        nights, last = np.arange(len(table)), np.maximum(counts - 1, 0)
        return (table[nights, last // 2] + table[nights, (last + 1) // 2]) / 2, counts
