"""What a gate folder holds, read once: records in their blocks, static reports, and which blocks count."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness.record_files import decode_record
from benchmarks.harness.records import Record
from ci.exits import UsageError
from ci.policy import ALIASES_FILE, Aliases, Policy, load_aliases, load_policy, policy_hash
from ci.validity import why_unsound

from .plan import STAGES, BlockStage, Plan, Process, State, blocks_to_try, load_plan, load_state, record_path
from .result import FindingKind, Side

GONE = "is gone"


@dataclass(frozen=True, slots=True)
class Block:
    """Two records of each side, measured one after the other in alternating order."""

    base: tuple[Record, Record]
    head: tuple[Record, Record]

    def of(self, side: Side) -> tuple[Record, Record]:
        return self.base if side == "base" else self.head


@dataclass(slots=True)
class Evidence:
    """Everything that is judged, and nothing else.

    Attributes:
        records: by process, with today's names of cases.
        reports: of ``ci static``, likewise.
        damaged: files that cannot be read, or are gone, with the reason.
        strange, unsound, mixed: by name of the process or block, why it does not count.
    """

    plan: Plan
    state: State
    policy: Policy
    records: dict[Process, Record] = field(default_factory=dict)
    reports: dict[Side, Mapping[str, Any]] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    strange: dict[str, str] = field(default_factory=dict)
    unsound: dict[str, str] = field(default_factory=dict)
    mixed: dict[str, tuple[FindingKind, str]] = field(default_factory=dict)
    blocks: dict[BlockStage, list[Block]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Evidence":
        """Raises UsageError: no plan, or another policy than was prepared."""
        plan, state = load_plan(folder), load_state(folder)
        if policy_hash(folder / "policy") != plan.policy_hash:
            raise UsageError(f"{folder / 'policy'}: is not what was prepared", "copy the folder anew, all of it")
        policy = load_policy(folder / "policy")
        if plan.approved_by:  # then what the head renames is renamed
            aliases = load_aliases(folder / "policy-head" / ALIASES_FILE.name)
            policy = Policy(policy.thresholds, policy.known, aliases)
        evidence = cls(plan, state, policy)
        for side in ("base", "head"):
            evidence._read_report(folder, side)
        for stage in STAGES:
            evidence.blocks[stage] = evidence._read_stage(folder, stage)
        return evidence

    def needed(self, stage: BlockStage) -> int:
        return self.state.blocks.get(stage, self.plan.blocks[stage])

    def num_counted(self, stage: BlockStage) -> int:
        return len(self.blocks[stage])

    def records_of(self, side: Side) -> list[Record]:
        """Of the screen, those of blocks that do not count too: what is exact needs no quiet card."""
        return [record for process, record in self.records.items() if (process.side, process.stage) == (side, "screen")]

    def _read_report(self, folder: Path, side: Side) -> None:
        name = f"static/{side}/report.json"
        try:
            report = json.loads((folder / name).read_bytes())
        except FileNotFoundError:
            if self.state.complete and side not in self.state.not_compiled:
                self.damaged[name] = GONE
        except (OSError, ValueError) as error:
            self.damaged[name] = f"{type(error).__name__}: {error}"
        else:
            if isinstance(report, dict) and report.keys() >= {"kernels", "num_launches", "problems"}:
                self.reports[side] = _renamed(report, self.policy.aliases)
            else:
                self.damaged[name] = "expected a report of ci static, got other JSON"

    def _read_stage(self, folder: Path, stage: BlockStage) -> list[Block]:
        counted = []
        for processes in blocks_to_try(self.plan, stage, self.needed(stage)):
            found = [self._read_record(folder, process) for process in processes]
            records = [record for record in found if record is not None]
            self._note_gone(processes, bool(records), folder)
            if len(records) == len(processes) and self._counts(processes, records):
                base, head = (
                    [r for p, r in zip(processes, records, strict=True) if p.side == side] for side in ("base", "head")
                )
                counted.append(Block((base[0], base[1]), (head[0], head[1])))
        return counted

    def _read_record(self, folder: Path, process: Process) -> Record | None:
        path = record_path(folder, process.name)
        try:
            record = decode_record(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            self.damaged[str(path.relative_to(folder))] = f"{type(error).__name__}: {error}"
            return None
        if why := self._why_strange(process, record):
            self.strange[process.name] = why
            return None
        self.records[process] = record = self.policy.aliases.renamed(record)
        return record

    def _note_gone(self, processes: tuple[Process, ...], has_any: bool, folder: Path) -> None:
        """A run that is complete has tried all blocks but spare ones, up to the failures that made it give up."""
        state, stage = self.state, processes[0].stage
        if (
            not state.complete
            or processes[0].block >= self.needed(stage)
            or (stage == "confirm" and not state.suspects)
        ):
            return
        if not any(process.name in state.failures for process in processes) and (has_any or not state.failures):
            paths = [record_path(folder, process.name) for process in processes]
            self.damaged |= {str(path.relative_to(folder)): GONE for path in paths if not path.exists()}

    def _why_strange(self, process: Process, record: Record) -> str:
        expected, found = self.plan.side(process.side).source_hash, record.subject.source_hash
        if found != expected:
            return f"measured sources {found[:12]}, where the {process.side} is {expected[:12]}"
        if record.seed != process.seed:
            return f"its seed is {record.seed}, the plan's {process.seed}: it is of another process"
        if any(record.id == other.id for other in self.records.values()):
            return f"record {record.id} is another process's too"
        if record.calibration is not None or record.backfill is not None:
            return "it was taken for calibration or a backfill, not for a gate"
        return ""

    def _counts(self, processes: tuple[Process, ...], records: list[Record]) -> bool:
        limit_pct = self.policy.thresholds.statistics.drift_limit_pct
        name = processes[0].name.rsplit("-", 2)[0]
        is_sound = True
        for process, record in zip(processes, records, strict=True):
            if why := why_unsound(record, limit_pct):
                self.unsound[process.name] = "; ".join(why)
                is_sound = False
        cards = sorted({_card(record) for record in records})
        environments = {record.environment.cut_key(host=True) for record in records}
        if len(cards) > 1:
            self.mixed[name] = ("gpus-differ", f"its processes ran on different cards: {', '.join(cards)}")
        elif len(environments) > 1:
            self.mixed[name] = ("environments-differ", f"its processes ran {_difference(records)}")
        return is_sound and name not in self.mixed


def _card(record: Record) -> str:
    """As public pages name it."""
    return f"#{hashlib.sha256(str(record.silicon.gpu_uuid).encode()).hexdigest()[:8]}"


def _difference(records: list[Record]) -> str:
    """What of the environment is not the same in all records."""
    facts = [msgspec.structs.asdict(record.environment) for record in records]
    differing = [name for name in facts[0] if name != "missing" and len({str(one[name]) for one in facts}) > 1]
    return "; ".join(f"under {name} {' and '.join(sorted({str(one[name]) for one in facts}))}" for name in differing)


def _renamed(report: dict[str, Any], aliases: Aliases) -> dict[str, Any]:
    """A report of ``ci static`` with today's names of cases."""
    for table in (report["num_launches"], report.get("ops", {})):
        for by_series in table.values():
            for series, by_case in by_series.items():
                by_series[series] = {aliases.now(case): facts for case, facts in by_case.items()}
    for entry in report["kernels"]:
        entry["cases"] = [aliases.now(case) for case in entry["cases"]]
    return report
