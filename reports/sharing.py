"""Equal texts and exact values of thousands of records, kept once: a history of two GPU models is 2.8 GB without."""

from typing import Any, TypeVar

from msgspec.structs import force_setattr

from benchmarks.harness.records import Measurement, Night, Record, Verdict

SHARED_OF_MEASUREMENT = ("metric", "op", "provider", "case", "unit", "reason", "read_bytes", "write_bytes")
SHARED_OF_VERDICT = ("metric", "op", "provider", "case", "unit", "reason", "known_reason")
EXACT = ("exact", "static")
T = TypeVar("T")


class Sharing:
    """Makes what records and nights have in common one object. Nothing that can be read of them changes."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def record(self, record: Record) -> Record:
        record.measurements[:] = [self._measurement(item) for item in record.measurements]
        record.cases[:] = [self.one(case) for case in record.cases]
        record.checks[:] = [self.one(check) for check in record.checks]
        return record

    def night(self, night: Night) -> Night:
        for verdict in night.verdicts:
            self._fields(verdict, SHARED_OF_VERDICT)
        return night

    def one(self, value: T) -> T:
        """The first object equal to this one."""
        known: T = self._known.setdefault(value, value)
        return known

    def _measurement(self, item: Measurement) -> Measurement:
        if item.contract in EXACT:
            known: Measurement = self._known.setdefault(
                (item.key, item.unit, item.status, item.value, item.reason), item
            )
            return known if known == item else item
        self._fields(item, SHARED_OF_MEASUREMENT)
        return item

    def _fields(self, item: Measurement | Verdict, names: tuple[str, ...]) -> None:
        known = self._known
        for name in names:
            value = getattr(item, name)
            force_setattr(item, name, known.setdefault(value, value))
