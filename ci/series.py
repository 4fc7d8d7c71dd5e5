"""Gathers the measurements of one series over the records of a night, and says where they cannot be judged at all."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.records import Check, Measurement, Record, VerdictName

from .config import EXACT_CONTRACTS
from .night import Base, Tonight

HOST_CONTRACTS = ("host-dispatch", "cpu-reference")


@dataclass(frozen=True, slots=True)
class Gathered:
    """One series: an example to read its names from, and what each of tonight's records has of it (normally one).

    Records of another shard, which were not asked for its case, are not among them.
    """

    example: Measurement
    found: Sequence[Sequence[Measurement]]
    base: Sequence[float | None] | None  # None: nothing to compare with, ``base_reason`` says why
    base_reason: str = ""

    @property
    def exact(self) -> bool:
        return self.example.contract in EXACT_CONTRACTS

    @property
    def values(self) -> list[float | None]:
        return [items[0].value for items in self.found if items]

    @property
    def skip_reason(self) -> str | None:
        """Why every record skipped it; None when any has tried."""
        if (
            not self.found
            or not all(self.found)
            or any(item.status != "skipped" for items in self.found for item in items)
        ):
            return None
        return self.found[0][0].reason or "no reason given"

    def trouble(self, failed_check: Check | None) -> tuple[VerdictName, str] | None:
        """Why there is nothing to judge, before any number is looked at; None when all records hold one value each."""
        total, present = len(self.found), [items for items in self.found if items]
        if failed_check is not None and not self.exact:
            return (
                "invalid",
                f"its correctness check failed ({failed_check.op} {failed_check.metric}), so no time counts",
            )
        if not present:
            return "missing", f"the base night has it, none of {total} processes has"
        if any(len(items) > 1 for items in present):
            return "invalid", "a record holds this series twice"
        bad = [items[0] for items in present if items[0].status in ("failed", "invalid")]
        if bad:
            return (
                "invalid",
                f"{bad[0].status} in {len(bad)} of {total} processes: {bad[0].reason or 'no reason given'}",
            )
        skipped = [items[0] for items in present if items[0].status == "skipped"]
        if skipped:
            return (
                "missing",
                f"skipped in {len(skipped)} of {total} processes: {skipped[0].reason or 'no reason given'}"
                + ("; the base night has it" if self.base else ""),
            )
        if len(present) < total:
            return "missing", f"only {len(present)} of {total} processes have it"
        return None


def gather(tonight: Tonight, base: Base | None) -> list[Gathered]:
    """All series of tonight, and those of the base night that tonight should have; sorted by key."""
    tables = [_by_key(record) for record in tonight.records]
    before = [_by_key(record) for record in base.records] if base else []
    examples = {key: items[0] for table in reversed(tables) for key, items in table.items()}
    if base:
        for table in before:
            for key, items in table.items():
                if items[0].status == "ok" and tonight.expects(key[3], base):
                    examples.setdefault(key, items[0])
    hosts = {record.environment.cut_key(host=True) for some in (tonight, base) if some for record in some.records}
    asked = [{case.name for case in record.cases} if record.shard else None for record in tonight.records]
    result = []
    for key, example in sorted(examples.items()):
        values: list[float | None] = [
            old[0].value for table in before if (old := table.get(key)) and old[0].status == "ok"
        ]
        reason = (
            ""
            if values
            else "the base night has no such series"
            if base
            else "no accepted night of this environment yet"
        )
        if values and len(hosts) > 1 and example.contract in HOST_CONTRACTS:
            values, reason = [], "the CPU or OS kernel is not the base night's"
        having = zip(tables, asked, strict=True)
        found = [table.get(key, []) for table, cases in having if cases is None or key[3] in cases]
        result.append(Gathered(example, found, values or None, reason))
    return result


def _by_key(record: Record) -> dict[tuple[str, ...], list[Measurement]]:
    table: dict[tuple[str, ...], list[Measurement]] = {}
    for measurement in record.measurements:
        table.setdefault(measurement.key, []).append(measurement)
    return table
