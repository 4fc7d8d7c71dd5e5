"""Which peers a run measures: this folder's, those of installed packages, and classes in files named to it.

A peer that is not installed, does not load or is no peer is found all the same, with the reason why it is missing:
it costs a night one row, never a number of somebody else.
"""

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import entry_points
from itertools import chain, count
from pathlib import Path
from typing import Any, get_args

from ..checks import first_line, printable
from ..harness.records import PeerFacts
from .contained import contained
from .protocol import REQUIRED, NotInstalledError, Peer, Tolerance, require_line
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
OWN_NAMES = frozenset(
    {
        "recoverssm",
        "recoverssm_align",
        "recoverssm_deferred",
        "recoverssm_deferred_pdl",
        "recoverssm_pdl",
        "full_state",
        "torch",
    }
)
TEXTS = ("name", "title", "licence", "source", "scheme", "covers")


class UnknownPeerError(LookupError):
    """No peer has that name, or there is no such file or class."""


@dataclass(frozen=True, slots=True)
class FoundPeer:
    """A peer that was asked for; ``peer`` is None where ``facts.missing`` says why.

    No two found together have one name, and none has a name of ours, so that what is said of one is of nobody else.
    """

    facts: PeerFacts
    peer: Peer | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A peer that was asked for, of which nothing is loaded yet: where it is, and what returns its class."""

    where: str
    find: Callable[[], Any]


Guard = Callable[[str, Callable[[], FoundPeer]], FoundPeer]
"""Given the name of a place and what loads it: does so, or knows why that is not to be tried."""


def find_peers(
    names: str = NONE, files: Sequence[str] = (), guard: Guard = lambda _place, load: load()
) -> list[FoundPeer]:
    """The peers of a command line, each loaded by ``guard`` or with the reason why not; the rest as of ``choose``."""
    found: list[FoundPeer] = []
    for candidate in choose(names, files):
        taken = OWN_NAMES.union(one.facts.name for one in found)
        place = next(name for name in _numbered(candidate.where) if name not in taken)
        found.append(guard(place, partial(_load, candidate, place, taken)))
    return found


def choose(names: str = NONE, files: Sequence[str] = ()) -> list[Candidate]:
    """The peers of a command line, each once; nothing of anybody else is loaded.

    Args:
        names: "all", "none", or names with commas: of adapters, or of entry points.
        files: each ``path/to/file.py:Class``, whatever ``names`` says.
    Raises:
        UnknownPeerError: a name that no peer has (the message has those there are); no such file or class.
    """
    chosen = [] if names == NONE else _named(names)
    return chosen + [_in_file(Path(path), name) for path, name in dict.fromkeys(map(_file_and_class, files))]


def _named(names: str) -> list[Candidate]:
    known: dict[str, list[Candidate]] = {}
    for where in BUILT_IN:
        find = partial(_of_module, f".{where}", __package__)
        known.setdefault(find().name, []).append(Candidate(where, find))
    for point in sorted(entry_points(group=GROUP)):
        known.setdefault(point.name, []).append(Candidate(point.name, point.load))
    wanted = dict.fromkeys(known if names == ALL else (part.strip() for part in names.split(",")))
    for name in wanted:
        if name not in known:
            raise UnknownPeerError(
                f"--providers: expected all, none or names with commas "
                f"({', '.join(known) or 'nobody is installed'}), got {name!r}"
            )
    return [candidate for name in wanted for candidate in known[name]]


def _of_module(where: str, package: str | None = None) -> Any:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module, package), name)


def _file_and_class(where: str) -> tuple[Path, str]:
    file, _, name = where.rpartition(":")
    path = Path(file)
    if not file or not name.isidentifier() or not path.is_file():
        raise UnknownPeerError(f"--provider: expected path/to/file.py:Class of a file that is there, got {where!r}")
    text = path.read_text(errors="replace")
    if not re.search(rf"\b{name}\b|import \*", text):
        known = ", ".join(re.findall(r"^class (\w+)", text, re.MULTILINE)) or "none"
        raise UnknownPeerError(f"--provider: expected a class of {path.name} ({known}), got {name!r}")
    return path.resolve(), name


def _in_file(path: Path, name: str) -> Candidate:
    return Candidate(printable(f"{path.name}:{name}"), partial(_of_file, path, name))


def _of_file(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"recoverssm_provider_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"expected a Python file, got {path.name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Triton and dataclasses look functions and types up there
    spec.loader.exec_module(module)
    return getattr(module, name)


def _require_peer(found: object) -> None:
    """Raises TypeError that says what a peer's class lacks (protocol.Peer)."""
    if not isinstance(found, type):
        raise TypeError(f"expected a class, got an object of {type(found).__name__}")
    cls: Any = found
    for word in TEXTS:
        require_line(getattr(cls, word, None), f"{cls.__name__}.{word}", may_be_empty=word == "covers")
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


def _load(candidate: Candidate, place: str, taken: Collection[str]) -> FoundPeer:
    """The peer under its own name, or why there is none, under the name of its place where its own is not known."""
    try:
        with contained():
            cls = candidate.find()
            _require_peer(cls)
    except Exception as error:  # other people's modules may do anything on import
        return FoundPeer(PeerFacts(name=place, missing=f"{type(error).__name__}: {first_line(error)}"))
    limits = asdict(cls.tolerance)
    facts: dict[str, Any] = {word: str(getattr(cls, word)) for word in TEXTS}
    facts |= {"tolerance_reason": limits.pop("reason"), "tolerance": limits}
    if cls.name in taken:
        why = f"another provider has the name {cls.name!r}: give {cls.__name__} one of its own"
        return FoundPeer(PeerFacts(**facts | {"name": place}, missing=why))
    try:
        with contained():
            peer = cls()
            return FoundPeer(PeerFacts(**facts, version=require_line(peer.version, "version")), peer)
    except NotInstalledError as error:
        return FoundPeer(PeerFacts(**facts, missing=f"not installed: {first_line(error)}"))
    except Exception as error:
        return FoundPeer(PeerFacts(**facts, missing=f"does not load: {type(error).__name__}: {first_line(error)}"))


def _numbered(name: str) -> Iterator[str]:
    """The name, then "name (2)" and so on."""
    return chain([name], (f"{name} ({number})" for number in count(2)))
