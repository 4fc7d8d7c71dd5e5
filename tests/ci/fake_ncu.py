"""Stands in for Nsight Compute: fake_ncu.py FOLDER (--export R ... PROGRAM ... --listing L | --import R ...).

FOLDER holds table.csv and listing.json to hand out, and may hold ``refuse``, with what to say instead; words that begin
``unknown`` name a metric this tool does not have.
"""

import sys
from pathlib import Path


def main(folder: Path, arguments: list[str]) -> int:
    refuse = folder / "refuse"
    with (folder / "asked.txt").open("a") as file:
        file.write(" ".join(arguments) + "\n")
    if "--import" in arguments:
        sys.stdout.write((folder / "table.csv").read_text())
        return 0
    said = refuse.read_text() if refuse.exists() else ""
    if said.startswith("unknown"):
        metric = said.split()[1]
        if metric in arguments[arguments.index("--metrics") + 1].split(","):
            sys.stdout.write(f"==ERROR== Failed to find metric {metric}\n")
            return 1
    elif said:
        sys.stdout.write(said)
        return 1
    Path(arguments[arguments.index("--export") + 1]).write_bytes(b"report")
    Path(arguments[arguments.index("--listing") + 1]).write_bytes((folder / "listing.json").read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
