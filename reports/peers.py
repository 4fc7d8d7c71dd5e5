"""Kernels of other projects for the same job, as measured outside this harness (peers.toml), in a table beside ours."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from benchmarks.harness.records import Case, Night
from reports import derive, text
from reports.derive import Processes

PEERS_FILE = Path(__file__).with_name("peers.toml")
Us = Annotated[float, msgspec.Meta(gt=0)]


class PeersError(ValueError):
    """The file of peers cannot be read as one."""


class Method(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How, when and on what all rows of the file were taken."""

    date: date
    gpu_model: str
    environment: str
    timing: str
    processes: str


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One implementation, with its version in the title."""

    name: str
    title: str
    kind: Literal["recoverssm", "full_state"]
    source: str
    commit_covers: str = ""


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one peer took in one case; the comment in the file says what each field means."""

    case: str
    peer: str
    verify_us: Us | None = None
    commit_us: dict[int, Us] = {}
    warm: bool = False


class Peers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: Literal[1]
    method: Method
    peer: list[Peer]
    time: list[Times]

    def of(self, peer: str, case: str) -> Times | None:
        return next((times for times in self.time if (times.peer, times.case) == (peer, case)), None)


def read_peers(path: Path = PEERS_FILE) -> Peers:
    """Raises PeersError that names the file and what is wrong in it."""
    try:
        peers = msgspec.toml.decode(path.read_bytes(), type=Peers, strict=False)
    except (OSError, ValueError) as error:  # msgspec's and tomllib's errors are ValueErrors
        raise PeersError(f"{path}: {error}") from error
    pairs = [(times.peer, times.case) for times in peers.time]
    twice = sorted({pair for pair in pairs if pairs.count(pair) > 1})
    unknown = sorted({times.peer for times in peers.time} - {peer.name for peer in peers.peer})
    if twice or unknown:
        raise PeersError(f"{path}: peers without an entry: {unknown}; measured twice: {twice}")
    return peers


def peers_table(peers: Peers, night: Night, processes: Processes, cases: Sequence[Case]) -> str | None:
    """Ours and theirs at the cases that both have: one line per implementation. None where there is no such case.

    No ratio is formed: the rows are of two contracts.
    """
    shared = [case for case in cases if any(times.case == case.name for times in peers.time)]
    if night.gpu_model != peers.method.gpu_model or not shared:
        return None
    ours = f"`graph-cold`, {night.created_utc[:10]}"
    rows = [
        ["**RecoverSSM, this repository**", ours, *(_ours(case, processes, full_state=False) for case in shared)],
        ["full state, this repository", ours, *(_ours(case, processes, full_state=True) for case in shared)],
    ]
    for peer in peers.peer:
        found = [peers.of(peer.name, case.name) for case in shared]
        if any(found):
            cells = [_theirs(times, peer, case) for times, case in zip(found, shared, strict=True)]
            rows.append([peer.title, f"by hand, {peers.method.date}", *cells])
    heads = ["µs", "measured", *(f"B = {case.num_requests}, {case.state_dtype}" for case in shared)]
    lines = [heads, ["---", "---", *["---:"] * len(shared)], *rows]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", _caption(peers, processes, shared)])


def _ours(case: Case, processes: Processes, *, full_state: bool) -> str:
    verify = processes.figure(derive.FULL_VERIFY if full_state else derive.VERIFY, case.name).median
    commit = None if full_state else processes.figure(derive.COMMIT, case.name).median
    step = processes.figure(derive.FULL_STEP if full_state else derive.STEP, case.name).median
    return _cell(verify, commit, step)


def _theirs(times: Times | None, peer: Peer, case: Case) -> str:
    if times is None:
        return text.MISSING
    commit = times.commit_us.get(_accepted(case))
    parts = [times.verify_us, 0.0 if peer.kind == "full_state" else commit]
    step = None if parts[0] is None or parts[1] is None else case.num_layers * parts[0] + parts[1]
    return _cell(times.verify_us, commit, step) + (" (warm)" if times.warm else "")


def _accepted(case: Case) -> int:
    return round(case.mean_accepted)


def _cell(*times_us: float | None) -> str:
    # Three digits: what two ways of measuring can share.
    digits = [2 if (value or 0) < 10 else 1 if (value or 0) < 100 else 0 for value in times_us]
    shown = (text.number(value, count) for value, count in zip(times_us, digits, strict=True))
    return f"{text.NBSP}/{text.NBSP}".join(shown)


def _caption(peers: Peers, processes: Processes, cases: Sequence[Case]) -> str:
    method, example = peers.method, cases[0]
    said = [
        f"Verify of one layer / commit of {example.num_layers} layers / step, with {example.num_heads} heads and "
        f"{example.spec_query_len} tokens a window.",
        f"**Two contracts, so no ratios across them**: `graph-cold` is this harness's, median over "
        f"{len(processes.records)} processes, states from DRAM, a step one graph with plan and conv in its commit.",
        f"The others were measured outside this harness ({text.gpu_name(method.gpu_model)}, {method.environment}; "
        f"{method.timing}; {method.processes}).",
        f"Their commits accept {_accepted(example)} tokens in every request (ours {example.mean_accepted:g} on "
        "average), and their step is verifies and one commit added up.",
    ]
    if any(times.warm for times in peers.time if times.case in {case.name for case in cases}):
        said.append("*(warm)*: all their states fit in the L2.")
    said.append("Versions, sources and what a commit covers: [reports/peers.toml](reports/peers.toml).")
    return " ".join(said)
