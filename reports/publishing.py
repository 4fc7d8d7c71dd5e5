"""Brings a built site to a URL: what differs is sent, pages last, and what the site no longer has goes.

The object ``.recoverssm-site`` names every file with its SHA-256. It is written at the end, so a publication that was
killed is made good by the next one; without it, or with one that cannot be read, everything is sent.
"""

import hashlib
import json
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.objects import Objects
from reports.site import MARKER, ForeignFolderError


@dataclass(frozen=True, slots=True)
class Published:
    num_sent: int
    sent_bytes: int
    num_as_before: int
    num_removed: int


def publish(site: Path, url: str) -> Published:
    """Send the site in a folder to ``url``, which is empty or has an earlier one.

    Raises:
        ForeignFolderError: the folder is no site, or the URL holds something else; nothing was sent.
        StoreError: the URL cannot be used; the site there is whole, of old and new pages.
    """
    if not (site / MARKER).is_file():
        raise ForeignFolderError(f"{site}: expected a built site; python -m reports build --store DIR --out {site}")
    objects = Objects(url)
    known = objects.get([MARKER]).get(MARKER)
    if known is None and not objects.is_empty():
        raise ForeignFolderError(f"{url}: holds objects that no site of ours is made of; name an empty prefix")
    before = _decoded(known)
    paths = {
        path.relative_to(site).as_posix(): path for path in site.rglob("*") if path.is_file() and path.name != MARKER
    }
    # A page comes after what it loads; an old one may live with new data for a moment, as with a server's cache.
    places = sorted(paths, key=lambda place: (place.endswith(".html"), place))
    now: dict[str, str] = {}
    sent = sent_bytes = 0
    for place in places:
        content = paths[place].read_bytes()
        now[place] = hashlib.sha256(content).hexdigest()
        if before.get(place) != now[place]:
            objects.put(place, content, content_type=_content_type(place))
            sent, sent_bytes = sent + 1, sent_bytes + len(content)
    gone = [place for place in before if place not in now]
    objects.remove(gone)
    if now != before:
        objects.put(MARKER, json.dumps(now, indent=0, sort_keys=True).encode())
    return Published(sent, sent_bytes, len(now) - sent, len(gone))


def _decoded(known: bytes | None) -> dict[str, str]:
    try:
        found = json.loads(known or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _content_type(place: str) -> str:
    return mimetypes.guess_type(place)[0] or "application/octet-stream"
