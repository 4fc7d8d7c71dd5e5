"""What a night consists of: what was asked for, its records, and the earlier night it is judged against."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.harness.records import Night, Record, repetitions
from benchmarks.patterns import matches

from .policy import Aliases


@dataclass(frozen=True, slots=True)
class Base:
    """The accepted night that tonight is judged against, with its records."""

    night: Night
    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class Tonight:
    """What was asked for and what came of it, on one GPU model."""

    case_set: str
    pattern: str  # glob of case names
    selected: Sequence[str]  # case names
    records: Sequence[Record]
    quarantined: Sequence[str] = ()  # records that could not be read, with the reason
    failures: Sequence[str] = ()  # processes that left no record, with the reason
    lacks: Sequence[str] = ()  # shards of which there is no record
    gone: Sequence[str] = ()  # GPUs that should have measured too and are not here

    def processes_needed(self, min_processes: int) -> int:
        """How many processes this night needs to be judged and to be a base; compiled figures need one."""
        return 1 if all(record.is_static for record in self.records) else min_processes

    def expects(self, case: str, base: Base) -> bool:
        """Whether a series of this case, present in the base night, should be there tonight too.

        A case that has left its set is expected while the base night is of the same set: nothing vanishes silently.
        """
        return case in self.selected or (base.night.case_set == self.case_set and matches(case, self.pattern))


def choose_base(
    nights: Iterable[Night],
    read_records: Callable[[list[str]], Sequence[Record]],
    tonight: Tonight,
    min_processes: int,
    aliases: Aliases | None = None,
) -> Base | None:
    """The newest accepted night of tonight's environment that has all of tonight's cases, else most of them.

    Its records have today's names of cases that were renamed.
    So a night of one case, or of a smaller set, never becomes the base that hides what has vanished. One that has lost
    records, and with them the ``min_processes`` to judge by, serves only where there is no other. Nor does one from the
    future, written by a clock that ran ahead, stay the newest for ever. A night of some of the same records is
    none: it is an earlier merging of tonight's shards.
    """
    aliases = aliases or Aliases()
    min_processes = tonight.processes_needed(min_processes)
    now = max(record.created_utc for record in tonight.records)
    environment = tonight.records[0].environment.cut_key(host=False)
    wanted, own = set(tonight.selected), {record.id for record in tonight.records}
    best: Base | None = None
    best_rank = (False, 0)
    for night in sorted(nights, key=lambda n: (n.created_utc <= now, n.created_utc, n.id), reverse=True):
        count = len(wanted & {aliases.now(v.case) for v in night.verdicts})
        if not night.accepted or not count or (True, count) <= best_rank or not own.isdisjoint(night.all_records):
            continue
        records = [
            aliases.renamed(r) for r in read_records(night.records) if r.environment.cut_key(host=False) == environment
        ]
        rank = (repetitions(records) >= min_processes, count)
        if records and rank > best_rank:
            best, best_rank = Base(night, records), rank
        if best_rank == (True, len(wanted)):
            break
    return best


def night_before(nights: Iterable[Night], tonight: Tonight) -> Night | None:
    """The newest night that shares no process with tonight: what both say, two measurements say."""
    own = {record.id for record in tonight.records}
    others = [night for night in nights if own.isdisjoint(night.all_records)]
    return max(others, key=lambda night: (night.created_utc, night.id), default=None)
