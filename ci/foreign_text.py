"""Foreign text made harmless: case names, reasons and commit messages may come from a stranger's pull request.

They hold a place in a line of ours and never more than that: no line break, no control character, no markup, nobody
mentioned, no issue referred to, no link, no picture.
"""

import html
import re
import unicodedata

LONGEST = 400  # characters of one piece of foreign text; a reason of ours has about 200
PLAIN_NAME = re.compile(r"[\w./=,+~:-]+(?: [\w./=,+~:-]+)*")  # what may stand in a code span of a table as it is
BREAK = "\u200b"  # takes no room on a page and keeps GitHub from seeing a mention, a reference or an address
# Characters without a picture of their own that change how others look or read: formats, surrogates, private ones.
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_MARKUP = re.compile(r"([\\`*_\[\]|~])")
_REFERENCE = re.compile(r"(@|#|\bGH-|://|\bwww\.)", re.IGNORECASE)


def plain(text: str, longest: int = LONGEST) -> str:
    """One line of visible characters, cut where it is too long. For terminals, XML and JSON."""
    line = " ".join(text.split())
    line = "".join("\ufffd" if unicodedata.category(char) in _INVISIBLE else char for char in line)
    return line if len(line) <= longest else line[: longest - 1] + "…"


def markdown(text: str, longest: int = LONGEST) -> str:
    """The text for the middle of a line of GitHub's Markdown, in tables too; read there as it is written here."""
    broken = _REFERENCE.sub(lambda found: found[0] + BREAK, plain(text, longest))
    escaped = _MARKUP.sub(r"\\\1", broken)
    # GitHub sets what stands between dollars as mathematics, and knows no escape but this.
    return html.escape(escaped, quote=False).replace("$", "<span>$</span>")


def code(text: str, longest: int = LONGEST) -> str:
    """A name as a code span, where it is one; else as ``markdown``."""
    line = plain(text, longest)
    return f"`{line}`" if PLAIN_NAME.fullmatch(line) else markdown(text, longest)


def fenced(*lines: str, language: str = "") -> str:
    """Lines as a code block that none of them can end."""
    body = [plain(line, longest=4000) for line in lines]
    longest = max((len(run) for line in body for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([fence + language, *body, fence])
