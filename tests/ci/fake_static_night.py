"""Stands in for benchmarks.static.run in a night: hands out the records that lie in FOLDER, and the problems there.

Usage: fake_static_night.py FOLDER --set S --records TO --out REPORT ... ; each run adds its options to FOLDER/ran.txt.
"""

import json
import shutil
import sys
from pathlib import Path

folder, options = Path(sys.argv[1]), sys.argv[2:]
with (folder / "ran.txt").open("a") as file:
    file.write(" ".join(options) + "\n")
if (folder / "refuses").exists():
    sys.stderr.write("no Triton here\n")
    sys.exit(int((folder / "refuses").read_text()))
to, out = (Path(options[options.index(name) + 1]) for name in ("--records", "--out"))
problems = folder / "problems"
out.parent.mkdir(parents=True, exist_ok=True)
out.write_text(json.dumps({"problems": problems.read_text().splitlines() if problems.exists() else []}))
shutil.copytree(folder / "records", to)
