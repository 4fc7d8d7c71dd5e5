"""The verdict that a gate left, read as a stranger's file: bounded while it is unpacked, checked before it is used."""

import io
import re
import stat
import zipfile

import msgspec

from ci.exits import CommandError, Exit
from ci.gate.result import GateResult, decode, exit_code

NAME = "gate-verdict"
MEMBER = "verdict.json"
MAX_ARCHIVE_BYTES = 4 << 20
MAX_VERDICT_BYTES = 16 << 20  # about 20,000 series
MAX_ITEMS = 20_000
# The commands that a reader may copy into a shell: ours, without anything that a shell would do besides.
COMMAND = re.compile(r"python -m (?:ci|benchmarks\.run)(?: [\w./=,:~*?\[\]-]+| '[\w./=,:~*?\[\] -]*')*")


class UntrustedArtifactError(CommandError):
    """The artifact is not what the gate of this commit leaves; nothing of it is shown."""

    code = Exit.INVALID


def unpack_verdict(archive: bytes) -> bytes:
    """The one file within the archive, as it is.

    Raises:
        UntrustedArtifactError: too large, or not one plain file.
    """
    try:
        return _only_member(archive)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise UntrustedArtifactError(f"artifact: not a readable archive: {error}") from error


def read_verdict(content: bytes, head_sha: str) -> GateResult:
    """The result that the file of a verdict holds.

    Raises:
        UntrustedArtifactError: too large, not our schema, of another commit, with an exit code that its verdicts do
            not make, or with commands that are not ours.
    """
    if len(content) > MAX_VERDICT_BYTES:
        raise UntrustedArtifactError(f"artifact: {MEMBER} has more than {MAX_VERDICT_BYTES} bytes")
    try:
        result = decode(content)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UntrustedArtifactError(f"artifact: {MEMBER} is no result of a gate: {error}") from error
    if result.head.commit != head_sha:
        raise UntrustedArtifactError(f"artifact: of commit {result.head.commit[:40]!r}, the run was of {head_sha}")
    if max(len(result.verdicts), len(result.findings)) > MAX_ITEMS:
        raise UntrustedArtifactError(f"artifact: more than {MAX_ITEMS} verdicts or findings")
    _require_sum(result)
    commands = [result.reproduce, *(verdict.reproduce for verdict in result.verdicts)]
    strange = next((command for command in commands if command and not COMMAND.fullmatch(command)), None)
    if strange is not None:
        raise UntrustedArtifactError(f"artifact: a command that is none of ours: {strange[:80]!r}")
    return result


def _require_sum(result: GateResult) -> None:
    try:
        code = int(exit_code(result.verdicts, result.findings))
    except ValueError as error:  # of a finding: a code that no gate ends with
        raise UntrustedArtifactError(f"artifact: {MEMBER} is no result of a gate: {error}") from error
    if result.exit_code != code:
        raise UntrustedArtifactError(f"artifact: exit code {result.exit_code}, its verdicts and findings make {code}")


def _only_member(archive: bytes) -> bytes:
    if len(archive) > MAX_ARCHIVE_BYTES:
        raise UntrustedArtifactError(f"artifact: {len(archive)} bytes, {MAX_ARCHIVE_BYTES} at most")
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        members = opened.infolist()
        if [member.filename for member in members] != [MEMBER]:
            names = [member.filename[:40] for member in members[:5]]
            raise UntrustedArtifactError(f"artifact: expected {MEMBER} alone, got {len(members)} members: {names}")
        mode = members[0].external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise UntrustedArtifactError(f"artifact: {MEMBER}: expected a plain file, got mode {mode:o}")
        with opened.open(members[0]) as file:
            return file.read(MAX_VERDICT_BYTES + 1)  # whatever the header says
