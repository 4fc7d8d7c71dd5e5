"""Other projects' kernels beside ours, from processes that measured both: every ratio is taken inside one of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from benchmarks.harness.records import Case, Night, PeerFacts
from reports import text
from reports.derive import Figure, Processes, Series
from reports.sources import CPU, History

OWN = {
    "recoverssm": PeerFacts(name="recoverssm", title="RecoverSSM, this repository", scheme="recoverssm"),
    "full_state": PeerFacts(name="full_state", title="full state, this repository", scheme="full_state"),
    "torch": PeerFacts(name="torch", title="the reference, float64 torch", scheme="recoverssm"),
}
OPS = ("verify", "commit", "step", "conv")
INVALID = 4  # exit code of a night
PARTS = {"commit": "commit_state"}
"""What stands in for an op that a kernel does not have whole; it is held against the same part of ours."""

ERRORS = {"out_error": "out", "u_error": "u", "state_error": "state"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One implementation in the league."""

    facts: PeerFacts

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def is_own(self) -> bool:
        return self.name in OWN

    @property
    def title(self) -> str:
        """For people, with the version behind the project: "vLLM 0.33.0, full state"."""
        project, comma, kernel = (self.facts.title or self.name).partition(", ")
        return f"{project} {self.facts.version}".strip() + comma + kernel


@dataclass(frozen=True, slots=True)
class Standing:
    """One op of one entry on one case.

    Attributes:
        op: what was timed: the part where the entry does not have the whole.
        figure: its time in µs.
        ours: that of the same op of ours.
        ratio: the two, theirs over ours, in each process that has both; without values for ours itself.
    """

    op: str
    figure: Figure
    ours: Figure
    ratio: Figure


@dataclass(frozen=True, slots=True)
class Defeat:
    """A kernel that was faster than ours, in the median over processes; the full state of this repository is one."""

    entry: Entry
    case: Case
    standing: Standing

    @property
    def is_rivals(self) -> bool:
        """Whether it keeps what a token needs to be taken back."""
        return self.entry.facts.scheme != "last_state"


@dataclass(frozen=True, slots=True)
class League:
    """A night that measured peers, or tried to; ``ops`` are pairs of a provider and an op that it has."""

    night: Night
    processes: Processes
    peers: tuple[PeerFacts, ...]
    ops: frozenset[tuple[str, str]]

    @property
    def on_cpu(self) -> bool:
        return self.night.gpu_model == CPU

    @property
    def ours(self) -> str:
        """The provider that all are held against."""
        return "torch" if self.on_cpu else "recoverssm"

    @property
    def is_invalid(self) -> bool:
        """Whether nobody should believe the night's times."""
        return self.night.exit_code == INVALID

    @property
    def entries(self) -> list[Entry]:
        """Ours first, then the others in the order of the records; those that are missing are left out."""
        own = ["torch"] if self.on_cpu else ["recoverssm", "full_state"]
        others = [facts for facts in self.peers if not facts.missing]
        titles = Counter(facts.title for facts in others)
        named = [replace(one, title=f"{one.title} ({one.name})") if titles[one.title] > 1 else one for one in others]
        return [Entry(facts) for facts in (*(OWN[name] for name in own), *named)]

    @property
    def missing(self) -> list[PeerFacts]:
        return [facts for facts in self.peers if facts.missing]

    @property
    def cases(self) -> list[Case]:
        """Those in which a peer has a series, by heads, window, acceptance, requests and dtype (fp32 first)."""
        names = {entry.name for entry in self.entries if not entry.is_own}
        seen = {line.case for line in self.processes.lines().values() if line.provider in names}
        found = {case.name: case for record in self.processes.records for case in record.cases if case.name in seen}
        return sorted(found.values(), key=_place)

    @property
    def extent(self) -> str:
        """How many cases it has, of which batches and windows, and whether its set has more."""
        batches, windows = (
            ", ".join(map(str, sorted(found)))
            for found in ({case.num_requests for case in self.cases}, {case.spec_query_len for case in self.cases})
        )
        count = f"{len(self.cases)} cases{' of its set' if self.night.is_part else ''}"
        return f"{count}: B = {batches}; T = {windows}"

    def standing(self, entry: Entry, op: str, case: str) -> Standing:
        """The op's time, or that of its part, and how it stands to ours."""
        part = PARTS.get(op, op)
        shown = part if (entry.name, op) not in self.ops and (entry.name, part) in self.ops else op
        theirs, ours = self._series(shown, entry.name), self._series(shown, self.ours)
        over = self.processes.ratio_pct(theirs, ours, case) if entry.name != self.ours else Figure()
        ratio = Figure(tuple(1 + value / 100 for value in over.values), over.reason)
        return Standing(shown, self.processes.figure(theirs, case), self.processes.figure(ours, case), ratio)

    def errors(
        self, entry: Entry, op: str | None = None, cases: Sequence[Case] | None = None
    ) -> dict[str, float | None]:
        """The largest error of each kind: of all checks, or of one op or its part, or some cases. None: not finite."""
        found: dict[str, list[float | None]] = {}
        names = None if cases is None else {case.name for case in cases}
        for check in self.processes.all_checks:
            of_op = op is None or check.op in (op, PARTS.get(op))
            if (
                check.provider == entry.name
                and check.metric in ERRORS
                and of_op
                and (names is None or check.case in names)
            ):
                found.setdefault(ERRORS[check.metric], []).append(check.value)
        return {
            name: None if None in values else max(value for value in values if value is not None)
            for name, values in found.items()
        }

    def untimed(self, entry: Entry) -> dict[str, int]:
        """Why series of the entry have no time, and in how many cases each reason is given."""
        cases: dict[str, set[str]] = {}
        for line, problem in (found for record in self.processes.records for found in record.columns.not_ok()):
            if line.provider == entry.name:
                cases.setdefault(f"{problem.status}: {problem.reason}", set()).add(line.case)
        return {reason: len(names) for reason, names in cases.items()}

    def defeats(self) -> list[Defeat]:
        """Where another kernel is faster than ours: rivals first, then the clearest."""
        others = [entry for entry in self.entries if entry.name != self.ours]
        found = [
            Defeat(entry, case, standing)
            for entry in others
            for case in self.cases
            for op in OPS
            if ((standing := self.standing(entry, op, case.name)).ratio.median or 1.0) < 1.0
        ]
        return sorted(found, key=lambda one: (not one.is_rivals, one.standing.ratio.median or 1.0))

    def num_compared(self, entry: Entry, op: str) -> int:
        """Cases in which an op that was timed, or a part of one, has a ratio to ours."""
        standings = (self.standing(entry, op, case.name) for case in self.cases)
        return sum(standing.op == op and standing.ratio.n > 0 for standing in standings)

    def is_partial(self, entry: Entry, op: str) -> bool:
        """Whether its commit, or that of its step, has parts of ours alone: states without plan or conv windows."""
        return (
            op in ("commit", "step")
            and entry.facts.scheme == "recoverssm"
            and (entry.name, "commit") not in self.ops
            and (entry.name, "commit_state") in self.ops
        )

    def _series(self, op: str, provider: str) -> Series:
        if self.on_cpu:
            return Series("host_us", op, provider, "cpu-reference")
        return Series("device_us", op, provider, "graph-cold")


def league_of(history: History, gpu_model: str) -> League | None:
    """The newest night of the set ``league`` that asked for peers, else of any set; None where none did.

    One that was judged invalid only where there is no other.
    """
    nights = _asked(history, gpu_model)
    nights = [night for night in nights if night.case_set == "league"] or nights
    nights = [night for night in nights if night.exit_code != INVALID] or nights
    return _league(history, nights[-1]) if nights else None


def leagues_of(history: History, gpu_model: str) -> list[League]:
    """That one, and the newest night of each other set: before it what is newer (somebody's own kernel, say)."""
    league = league_of(history, gpu_model)
    if league is None:
        return []
    newest = {night.case_set: night for night in _asked(history, gpu_model)} | {league.night.case_set: league.night}
    newer = [night for night in newest.values() if night.created_utc > league.night.created_utc]
    older = [night for night in newest.values() if night not in (*newer, league.night)]
    before, after = ([_league(history, night) for night in _newest_first(some)] for some in (newer, older))
    return [*before, league, *after]


def _asked(history: History, gpu_model: str) -> list[Night]:
    """Nights with a record that asked for peers, oldest first."""
    records = history.records
    return [n for n in history.of(gpu_model) if any(i in records and records[i].peers for i in n.records)]


def _newest_first(nights: Sequence[Night]) -> list[Night]:
    return sorted(nights, key=lambda night: night.created_utc, reverse=True)


def _league(history: History, night: Night) -> League:
    processes = history.processes(night)
    peers = {facts.name: facts for record in processes.records for facts in record.peers}
    ops = frozenset((line.provider, line.op) for line in processes.lines().values())
    return League(night, processes, tuple(peers.values()), ops)


def rivals(league: League | None, case: str) -> Iterator[tuple[str, float, str]]:
    """Title, time in µs and what it covers of each peer's commit in a case."""
    for entry in league.entries if league else ():
        standing = league.standing(entry, "commit", case) if league and not entry.is_own else None
        if standing is not None and standing.figure.median is not None:
            yield entry.title, standing.figure.median, covers(standing.op)


def covers(op: str) -> str:
    """What a timed commit is of."""
    return "state alone" if op in PARTS.values() else "plan, conv, state"


def errors_text(errors: dict[str, float | None]) -> str:
    """As ``out 1.7e-3, u 8.1e-8``."""
    return ", ".join(f"{name} {text.scientific(value)}" for name, value in errors.items()) or text.MISSING


def _place(case: Case) -> tuple[object, ...]:
    dtype = 0 if case.state_dtype == "fp32" else 1
    return (case.num_heads, case.spec_query_len, case.mean_accepted, case.num_requests, dtype)
