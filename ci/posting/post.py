"""A finished gate's verdict as check run and sticky comment, written anew from its numbers.

The gate ran strangers' code, so what it left is data: unpacked where nothing may be written (``fetch``), bounded,
checked against the commit of GitHub's own event, and rendered, escaped (``post``). No text of it is posted as it came.
"""

from dataclasses import dataclass
from typing import Any

from ci.foreign_text import plain
from ci.gate.outputs.machine import CHECK_NAME, check
from ci.gate.outputs.markdown import MARKER, comment
from ci.gate.result import GateResult, encode

from .artifact import MAX_ARCHIVE_BYTES, NAME, UntrustedArtifactError, read_verdict, unpack_verdict
from .event import FinishedRun
from .github import GitHub

AUTHOR = "github-actions[bot]"  # who a workflow's own token writes as


@dataclass(frozen=True, slots=True)
class Posted:
    """What was written where; lines for people."""

    lines: list[str]
    has_verdict: bool


def fetch(run: FinishedRun, github: GitHub) -> bytes:
    """The verdict that the run left, checked and encoded anew.

    Raises:
        UntrustedArtifactError: it left none, or one that ``read_verdict`` or ``unpack_verdict`` refuses.
        BrokenEnvironmentError: GitHub refused.
    """
    archive = github.artifact(run.run_id, NAME, MAX_ARCHIVE_BYTES)
    if archive is None:
        raise UntrustedArtifactError(f"artifact: the run left no {NAME}")
    try:
        return encode(read_verdict(unpack_verdict(archive), run.head_sha))
    except UntrustedArtifactError as error:  # may quote it, and a line of a log can be a command to GitHub
        raise UntrustedArtifactError(plain(str(error))) from error


def post(run: FinishedRun, github: GitHub, verdict: bytes, *, dry_run: bool = False) -> Posted:
    """Write the check run of the commit, and the comment of the pull request that has it as its newest.

    Without a verdict that can be used the check run says so and fails, and no comment is written.

    Args:
        verdict: what ``fetch`` returned; empty where it raised.
    Raises:
        BrokenEnvironmentError: GitHub refused.
    """
    refused = ""
    result: GateResult | None = None
    if verdict:
        try:
            result = read_verdict(verdict, run.head_sha)
        except UntrustedArtifactError as error:
            refused = str(error)
    content = check(result) if result else _no_verdict(run)
    content |= {"head_sha": run.head_sha, "external_id": str(run.run_id), "details_url": run.url}
    lines = [plain(f"{run.head_sha}: {content['conclusion']}: {content['output']['title']}")]
    lines += [plain(refused)] if refused else []
    if not dry_run:
        lines.append(f"check run: {github.check_run(content)}")
    if result is not None:
        lines += _comment(run, github, comment(result), dry_run=dry_run)
    return Posted(lines, result is not None)


def _comment(run: FinishedRun, github: GitHub, body: str, *, dry_run: bool) -> list[str]:
    numbers = github.pull_requests(run.head_owner, run.head_branch, run.head_sha)
    lines = [] if numbers else ["no open pull request has this commit as its newest: no comment"]
    for number in numbers:
        replaced = github.own_comment(number, MARKER, AUTHOR)
        done = "would be written" if dry_run else github.comment(number, body, replaced)
        lines.append(f"comment of pull request {number}: {done}")
    return lines


def _no_verdict(run: FinishedRun) -> dict[str, Any]:
    # Why may quote the artifact, so that stands in the log of the job that fetched it alone.
    summary = f"The gate ended as `{plain(run.conclusion, 40)}`: it left no verdict, or one that was refused."
    return {
        "name": CHECK_NAME,
        "status": "completed",
        "conclusion": "failure",
        "output": {"title": "no verdict", "summary": summary},
    }
