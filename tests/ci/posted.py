"""A gate's verdict, and the archive that GitHub keeps it in."""

import io
import zipfile

from ci.posting.artifact import MEMBER
from tests.ci.gate_results import result, verdict

SHA = "2" * 40
GATE = result([verdict("regressed", 3.0)], exit_code=1)


def archive(*members, name=MEMBER):
    """A zip of these contents; the first one under ``name``."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for index, content in enumerate(members):
            file.writestr(name if index == 0 else f"more-{index}", content)
    return buffer.getvalue()
