"""Which peers a run measures: this folder's, those of installed packages, and classes in files named to it.

A peer that is not installed, does not load or is no peer is found all the same, with the reason why it is missing:
it costs a night one row, never a number of somebody else.
"""

import importlib
import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args

from ..checks import first_line
from ..harness.records import PeerFacts
from .protocol import REQUIRED, NotInstalledError, Peer, Tolerance
from .workload import Scheme

GROUP = "recoverssm.providers"
"""Entry points that a package declares to be found: ``name = "module:Class"``."""

BUILT_IN: tuple[str, ...] = (
    "vllm:VllmRecoverSSM",
    "vllm:VllmCuteCommit",
    "vllm:VllmNative",
    "flashinfer:FlashinferWy",
    "flashinfer:FlashinferRecurrent",
    "sglang:SglangRing",
    "sglang:SglangSnapshots",
    "fla:FlaRecurrent",
    "fla:FlaChunk",
)
"""``module:Class`` of this folder, in the order of tables. Classes are there whether or not their packages are."""

ALL, NONE = "all", "none"
NAME = re.compile(r"[a-z][a-z0-9_]*")
OWN_NAMES = frozenset({"recoverssm", "recoverssm_align", "recoverssm_pdl", "full_state", "torch"})
TEXTS = ("name", "title", "licence", "source", "scheme", "covers")


class UnknownPeerError(LookupError):
    """No peer has that name, or there is no such file."""


@dataclass(frozen=True, slots=True)
class FoundPeer:
    """A peer that was asked for; ``peer`` is None where ``facts.missing`` says why."""

    facts: PeerFacts
    peer: Peer | None = None


def find_peers(names: str = NONE, files: Sequence[str] = ()) -> list[FoundPeer]:
    """The peers of a command line, each loaded or with the reason why not.

    Args:
        names: "all", "none", or names with commas.
        files: each ``path/to/file.py:Class``, whatever ``names`` says.
    Raises:
        UnknownPeerError: a name that no peer has (the message has those there are), or a file that is not there.
    """
    classes = [] if names == NONE else _chosen(names, _known_classes())
    classes += [_class(Path(where).name, lambda where=where: _of_file(where)) for where in files]
    taken = Counter(OWN_NAMES)
    found = []
    for one in classes:
        name = _text(one, "name")
        taken[name] += 1
        found.append(one if isinstance(one, FoundPeer) else _load(one, is_taken=taken[name] > 1))
    return found


def _chosen(names: str, known: Sequence[type | FoundPeer]) -> list[type | FoundPeer]:
    by_name = {_text(one, "name"): one for one in known}
    if names == ALL:
        return list(known)
    wanted = dict.fromkeys(part.strip() for part in names.split(","))
    for name in wanted:
        if name not in by_name:
            known_names = ", ".join(by_name) or "nobody's is installed"
            raise UnknownPeerError(
                f"--providers: expected all, none or names with commas ({known_names}), got {name!r}"
            )
    return [by_name[name] for name in wanted]


def _known_classes() -> list[type | FoundPeer]:
    own = [_class(where, lambda where=where: _of_module(f".{where}", __package__)) for where in BUILT_IN]
    return own + [_class(point.name, point.load) for point in sorted(entry_points(group=GROUP))]


def _class(where: str, find: Callable[[], Any]) -> type | FoundPeer:
    """What ``find`` returns, if it can be a peer; else why not, under the name of the place."""
    try:
        found = find()
        _require_peer(found)
    except UnknownPeerError:
        raise
    except (Exception, SystemExit) as error:  # other people's modules may do anything on import
        return FoundPeer(PeerFacts(name=where, missing=f"{type(error).__name__}: {first_line(error)}"))
    return found


def _of_module(where: str, package: str | None = None) -> Any:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module, package), name)


def _of_file(where: str) -> Any:
    file, _, name = where.rpartition(":")
    path = Path(file)
    if not file or not name.isidentifier() or not path.is_file():
        raise UnknownPeerError(f"--provider: expected path/to/file.py:Class of a file that is there, got {where!r}")
    spec = importlib.util.spec_from_file_location(f"recoverssm_provider_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UnknownPeerError(f"--provider: expected a Python file, got {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Triton and dataclasses look functions and types up there
    spec.loader.exec_module(module)
    return getattr(module, name)


def _require_peer(cls: Any) -> None:
    """Raises TypeError that says what a peer's class lacks (protocol.Peer)."""
    if not isinstance(cls, type):
        raise TypeError(f"expected a class, got {cls!r}")
    for word in TEXTS:
        if not isinstance(getattr(cls, word, None), str):
            raise TypeError(f"{cls.__name__}.{word}: expected text, got {getattr(cls, word, None)!r}")
    if not NAME.fullmatch(cls.name):
        raise TypeError(f"{cls.__name__}.name: expected lower-case letters, digits and underscores, got {cls.name!r}")
    if cls.scheme not in get_args(Scheme):
        raise TypeError(f"{cls.__name__}.scheme: expected one of {', '.join(get_args(Scheme))}, got {cls.scheme!r}")
    allowed = [op for scheme, op in REQUIRED if scheme == cls.scheme]
    ops = getattr(cls, "ops", ())
    if not ops or not set(ops) <= set(allowed):
        raise TypeError(f"{cls.__name__}.ops: expected some of {', '.join(allowed)}, got {ops!r}")
    if not isinstance(getattr(cls, "tolerance", None), Tolerance):
        raise TypeError(f"{cls.__name__}.tolerance: expected a Tolerance, got {getattr(cls, 'tolerance', None)!r}")
    for method in ("unsupported", "prepare"):
        if not callable(getattr(cls, method, None)):
            raise TypeError(f"{cls.__name__}.{method}: expected a method, as in benchmarks/peers/protocol.py")


def _load(cls: Any, *, is_taken: bool) -> FoundPeer:
    limits = asdict(cls.tolerance)
    facts = {word: getattr(cls, word) for word in TEXTS}
    facts |= {"tolerance_reason": limits.pop("reason"), "tolerance": limits}
    if is_taken:
        return FoundPeer(PeerFacts(**facts, missing=f"another provider has the name {cls.name!r}"))
    try:
        peer = cls()
        return FoundPeer(PeerFacts(**facts, version=str(peer.version)), peer)
    except NotInstalledError as error:
        return FoundPeer(PeerFacts(**facts, missing=f"not installed: {first_line(error)}"))
    except (Exception, SystemExit) as error:
        return FoundPeer(PeerFacts(**facts, missing=f"does not load: {type(error).__name__}: {first_line(error)}"))


def _text(one: Any, word: str) -> str:
    return str(getattr(one.facts if isinstance(one, FoundPeer) else one, word))
