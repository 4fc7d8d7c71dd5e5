"""What GitHub itself says of the finished gate (event ``workflow_run``); nothing here comes from what the gate left."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ci.exits import UsageError

SHA = re.compile(r"[0-9a-f]{40}")
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


class _Owner(msgspec.Struct):
    login: str


class _Repository(msgspec.Struct):
    full_name: str
    owner: _Owner


class _Run(msgspec.Struct):
    id: int
    event: str
    head_sha: str
    head_branch: str
    html_url: str
    conclusion: str | None
    head_repository: _Repository


class _Event(msgspec.Struct):
    workflow_run: _Run
    repository: _Repository


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The run of pr-gate.yml that this one follows."""

    repository: str  # owner/name of ours
    run_id: int
    head_sha: str
    head_owner: str  # of the repository that the pull request comes from
    head_branch: str
    url: str
    conclusion: str


def read_event(path: Path) -> FinishedRun:
    """The event as GitHub wrote it for this job.

    Raises:
        UsageError: no such file, or another event: this command posts for pull requests alone.
    """
    try:
        event = msgspec.convert(json.loads(path.read_bytes()), _Event)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: expected an event workflow_run of GitHub: {error}") from error
    run = event.workflow_run
    _require(run.event == "pull_request", "event", "pull_request", run.event)
    _require(SHA.fullmatch(run.head_sha), "head_sha", "40 hex digits", run.head_sha)
    _require(REPOSITORY.fullmatch(event.repository.full_name), "repository", "owner/name", event.repository.full_name)
    return FinishedRun(
        event.repository.full_name,
        run.id,
        run.head_sha,
        run.head_repository.owner.login,
        run.head_branch,
        run.html_url,
        run.conclusion or "unknown",
    )


def _require(holds: Any, name: str, expected: str, got: str) -> None:
    if not holds:
        raise UsageError(f"workflow_run: {name}: expected {expected}, got {got!r}")
