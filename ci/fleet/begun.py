"""What a night on a cluster was asked for, kept in its folder, so that the same night goes on after anything."""

from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

import msgspec

from ci.exits import UsageError
from ci.options import Options
from ci.shards import require_plain_name
from ci.whole_files import json_bytes, replace_file

from .config import Fleet

FILE = "fleet-night.json"


class Begun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A night by its name, and what its shards are shards of."""

    night: str
    case_set: str
    pattern: str
    store: str
    shards: dict[str, int]  # by pool


def begin(options: Options, fleet: Fleet, name: str | None, folder: Path) -> str:
    """The name of the night in ``folder``: a new one, or with ``--resume`` the one begun there.

    Raises:
        UsageError: no plain name, or that of an earlier night; nothing to go on with, or something else was begun.
    """
    path, shards = folder / FILE, {pool.name: pool.shards for pool in fleet.pool}
    if options.resume:
        begun = _load(path)
        asked = Begun(name or begun.night, options.case_set, options.pattern, options.store, shards)
        if asked != begun:
            raise UsageError(f"--resume: begun with {_told(begun)}, now asked for {_told(asked)}")
        return begun.night
    if name is None:
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{token_hex(3)}"
    require_plain_name(name)
    if (folder / name).exists():
        raise UsageError(
            f"--night {name}: {folder / name} has shards of it", "go on with --resume, or give another name"
        )
    replace_file(path, json_bytes(Begun(name, options.case_set, options.pattern, options.store, shards)))
    return name


def _load(path: Path) -> Begun:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Begun)
    except FileNotFoundError:
        raise UsageError(f"--resume: nothing to go on with, {path} does not exist") from None
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", "remove it and start without --resume") from error


def _told(begun: Begun) -> str:
    return ", ".join(f"{name} {value}" for name, value in msgspec.to_builtins(begun).items())
