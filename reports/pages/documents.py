"""Pages made of tables and figures: their content, with each figure as a file of its own for slides."""

from collections.abc import Iterable

from reports.document import Document
from reports.drawing import Drawing
from reports.pages.page import Content
from reports.templates import TEMPLATES

# Colours of the light page; a file has no page around it to take them from.
STYLE = """text{font:13px system-ui,sans-serif;fill:#1c2128}
.axis{fill:#59636e}.grid{stroke:#dfe3e8;fill:none}.back{fill:#fff}
.line{fill:none;stroke-width:2}.s0{--c:#1f5fbf}.s1{--c:#a05a00}.s2{--c:#14713f}.s3{--c:#b3261e}.s4{--c:#6b3fa0}.s5{--c:#59636e}
.line{stroke:var(--c)}.mark{fill:var(--c)}"""


def document_content(name: str, document: Document, files: Iterable[tuple[str, bytes]] = ()) -> Content:
    """``files``: place in the site and bytes, beside the figures of the page."""
    figures = [(f"figures/{name}-{drawing.chart.key}.svg", svg(drawing)) for drawing in document.drawings]
    return Content(document, files=[*files, *figures])


def svg(drawing: Drawing) -> bytes:
    """A file that needs nothing beside it."""
    return TEMPLATES.get_template("drawing.svg.j2").render(drawing=drawing, style=STYLE).encode()
