"""Nights as an Atom feed and as badges: what failed, what got better, what an owner decided.

The same nights give the same bytes.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from benchmarks.harness.records import Night, Verdict
from ci.exits import Exit
from ci.foreign_text import plain
from ci.judging import URGENCY
from ci.show import again

ATOM = "http://www.w3.org/2005/Atom"
ENTRIES = 60
LINES = 20  # verdicts of one entry
NEWS = ("regressed", "missing", "invalid", "improved")
TOLD = (*NEWS, "acknowledged")
WORDS = {
    Exit.PASS: ("passed", "brightgreen"),
    Exit.REGRESSED: ("regressed", "red"),
    Exit.MISSING: ("incomplete", "orange"),
    Exit.INVALID: ("invalid", "orange"),
}


def is_news(night: Night) -> bool:
    """Whether somebody who follows the feed wants to know."""
    told = any(v.gated and (v.verdict in NEWS or v.known) for v in night.verdicts)
    return night.exit_code != Exit.PASS or told or night.acceptance is not None


def feed(nights: Iterable[Night], url: str = "") -> bytes:
    """The newest nights worth telling, newest first. ``url`` is that of the page, where there is one.

    Raises:
        ValueError: no night at all, so that the feed would have no date.
    """
    ordered = sorted(nights, key=lambda night: (_updated(night), night.id), reverse=True)
    if not ordered:
        raise ValueError("nights: expected at least one")
    ET.register_namespace("", ATOM)
    root = ET.Element(_tag("feed"))
    _text(root, "id", _id("feed"))
    _text(root, "title", "RecoverSSM performance nights")
    _text(root, "updated", _updated(ordered[0]))
    _text(ET.SubElement(root, _tag("author")), "name", "RecoverSSM")
    if url:
        ET.SubElement(root, _tag("link"), href=url)
    for night in [night for night in ordered if is_news(night)][:ENTRIES]:
        _entry(root, night, url)
    ET.indent(root, " ")
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def badge(night: Night) -> dict[str, Any]:
    """The state of one card for shields.io (https://shields.io/badges/endpoint-badge)."""
    word, colour = WORDS.get(Exit(night.exit_code), ("broken", "lightgrey"))
    return {"schemaVersion": 1, "label": plain(night.gpu_model, 40), "message": word, "color": colour}


def _entry(root: ET.Element, night: Night, url: str) -> None:
    entry = ET.SubElement(root, _tag("entry"))
    _text(entry, "id", _id(f"{night.gpu_model}/{night.id}"))
    _text(entry, "title", plain(_title(night)))
    _text(entry, "updated", _updated(night))
    _text(entry, "published", night.created_utc)
    if url:
        ET.SubElement(entry, _tag("link"), href=url)
    content = _text(entry, "content", "\n".join(_lines(night)))
    content.set("type", "text")


def _title(night: Night) -> str:
    counts = Counter(_word(v) for v in night.verdicts if v.gated)
    words = [f"{counts[name]} {name}" for name in (*URGENCY, "acknowledged") if counts[name] and name in TOLD]
    word, _ = WORDS.get(Exit(night.exit_code), ("broken", ""))
    return f"{night.gpu_model}: {word}" + (f" ({', '.join(words)})" if words else "")


def _lines(night: Night) -> list[str]:
    lines = [plain(f"night {night.id}, base {night.base_night or 'none'}, {len(night.records)} processes")]
    if by := night.acceptance:
        lines.append(plain(f"accepted by {by.owner}: {by.reason}"))
    lines += [plain(f"alarm: {alarm}") for alarm in night.alarms[:LINES]]
    told = [v for v in night.verdicts if v.gated and (v.verdict in NEWS or v.known)]
    for v in told[:LINES]:
        reason = "; ".join(part for part in (v.reason, v.known_reason) if part)
        series = f"{v.metric}/{v.op}/{v.provider}/{v.case}/{v.contract}"
        state = f" ({v.known})" if v.known and v.known != "acknowledged" else ""
        lines.append(plain(f"{_word(v)}{state} {series}: {reason}"))
        lines += [plain(f"again: {again(night, v)}")] if v.fails else []
    if len(told) > LINES:
        lines.append(f"{LINES} of {len(told)} shown, strongest evidence first; the night's file has all")
    if night.exit_code in (Exit.INVALID, Exit.MISSING):
        lines += [plain(f"note: {note}") for note in night.notes[:LINES]]
    return lines


def _word(v: Verdict) -> str:
    return "acknowledged" if v.known == "acknowledged" else v.verdict


def _updated(night: Night) -> str:
    return night.acceptance.at_utc if night.acceptance else night.created_utc


def _id(name: str) -> str:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"recoverssm/{name}").urn


def _tag(name: str) -> str:
    return f"{{{ATOM}}}{name}"


def _text(parent: ET.Element, name: str, text: str) -> ET.Element:
    child = ET.SubElement(parent, _tag(name))
    child.text = text
    return child


def newest(nights: Sequence[Night]) -> dict[str, Night]:
    """The last night of each GPU model and architecture."""
    return {night.gpu_model: night for night in sorted(nights, key=lambda night: (night.created_utc, night.id))}
