"""The README's tables of figures, written from a recorded night and the file of peers: no number is typed there."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.harness.records import Case, Night
from reports import derive, text
from reports.derive import Figure, Processes
from reports.league import league_of
from reports.league_table import league_table
from reports.peers import Peers, peers_table
from reports.sources import History

START, END = "<!-- figures:start -->", "<!-- figures:end -->"
SELECTED_CASES = (
    "kimi_k3_tp8_b1_t8_a3.84_*",
    "kimi_k3_tp8_b32_t8_a3.84_*",
    "kimi_k3_tp8_b128_t8_a3.84_*",
)


class NothingToShowError(Exception):
    """No recorded night can fill the table."""


class MarkersError(Exception):
    """The README does not hold the two marker lines exactly once, in order."""


def figures_table(
    history: History, gpu_model: str, patterns: Sequence[str] = SELECTED_CASES, peers: Peers | None = None
) -> str:
    """Markdown between the markers: one line per selected case, what it was measured on, then other projects' kernels.

    Those of the newest league that has such cases, then what was measured by hand.

    Raises:
        NothingToShowError: no night of this GPU model, no readable record, or none of the cases.
    """
    night = derive.shown_night(history.of(gpu_model))
    if night is None:
        known = ", ".join(history.gpu_models()) or "none"
        fix = f"on such a GPU: python -m ci nightly --set nightly --store {'DIR'}"
        raise NothingToShowError(
            f"no night of {gpu_model} is recorded; GPU models with a night: {known}; record one {fix}"
        )
    processes = history.processes(night)
    if not processes.records:
        raise NothingToShowError(f"night {night.id} of {gpu_model} has no readable record")
    cases = _chosen(processes, patterns)
    if not cases:
        raise NothingToShowError(f"night {night.id} of {gpu_model} has no case matching {', '.join(patterns)}")
    header = (
        "| case | verify, one layer | full-state verify | verify overhead | commit per step | step overhead "
        "| memory saved |\n|---|---:|---:|---:|---:|---:|---:|"
    )
    lines = [header, *(_line(case, processes) for case in cases), "", _provenance(night, processes)]
    league = league_of(history, gpu_model)
    beside = league_table(league, patterns) if league else None
    by_hand = peers_table(peers, night, processes, cases) if peers else None
    if beside and by_hand:
        by_hand = f"Measured by hand before, with kernels that this league lacks:\n\n{by_hand}"
    return "\n\n".join(part for part in ("\n".join(lines), beside, by_hand) if part)


def replace_figures(readme: str, table: str) -> str:
    """The README with what lies between the markers replaced."""
    if readme.count(START) != 1 or readme.count(END) != 1 or readme.index(START) > readme.index(END):
        raise MarkersError(f"expected the lines {START} and {END}, once each and in this order")
    before, rest = readme.split(START)
    return f"{before}{START}\n{table}\n{END}{rest.split(END)[1]}"


def read_readme(path: Path) -> str:
    """Raises FileNotFoundError saying which option named the file."""
    if not path.is_file():
        raise FileNotFoundError(f"--readme: expected a file, got {path}")
    return path.read_text(encoding="utf-8")


def _chosen(processes: Processes, patterns: Sequence[str]) -> list[Case]:
    cases = {case.name: case for record in processes.records for case in record.cases}
    wanted = [name for name in cases if any(fnmatchcase(name, pattern) for pattern in patterns)]
    return [cases[name] for name in sorted(wanted, key=text.natural_key) if not processes.skip_reasons(name)]


def _line(case: Case, processes: Processes) -> str:
    head = processes.headline(case.name)
    saved, share = head.memory_saved_bytes.median, head.memory_saved_pct.median
    cells = (
        f"`{case.name}`",
        _time(processes.figure(derive.VERIFY, case.name)),
        _time(processes.figure(derive.FULL_VERIFY, case.name)),
        text.percent(head.verify_overhead_pct.median, signed=True),
        f"{_time(head.commit_us)} ({case.num_layers} layers)" if head.commit_us.n else text.MISSING,
        text.percent(head.step_overhead_pct.median, signed=True),
        text.MISSING if saved is None else f"{text.size(saved)} ({text.percent(share)})",
    )
    return f"| {' | '.join(cells)} |"


def _time(figure: Figure) -> str:
    return text.value_with_unit(figure.median, "us")


def _provenance(night: Night, processes: Processes) -> str:
    record = processes.records[0]
    environment, subject = record.environment, record.subject
    versions = (
        f"driver {environment.driver or 'unknown'}",
        f"torch {environment.torch}",
        f"Triton {environment.triton or 'unknown'}",
    )
    return (
        f"Measured {text.utc(night.created_utc)} on {text.gpu_name(night.gpu_model)} ({', '.join(versions)}), "
        f"{text.short_commit(subject.commit, subject.dirty)}, median over {len(processes.records)} processes; "
        "overheads against full state measured in the same process. "
        f"Written by `python -m reports table` from night `{night.id}`."
    )
