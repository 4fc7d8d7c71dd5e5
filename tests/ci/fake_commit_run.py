"""Stands in for ``benchmarks.run`` started in the tree of a commit: takes as long as its library says.

Usage: fake_commit_run.py FOLDER --set S --out FILE --seed N --commit C. ``recoverssm/__init__.py`` of the tree is
executed: ``us`` is the time, ``sd_pct`` the spread between processes, ``do`` what happens instead (an exit code, or
``interrupt``, once). FOLDER has ``template.json``, a record, and ``template.parquet``; ``started.txt`` gets a line
``COMMIT SEED`` per process. No imports beyond the standard library: a bisection starts hundreds of these.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import threading
from pathlib import Path


def source_hash(package: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name, content = path.relative_to(package).as_posix(), path.read_bytes()
            digest.update(f"{len(name)} {name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    for name in ("--set", "--seed", "--case", "--commit", "--started"):
        parser.add_argument(name)
    parser.add_argument("--lean", action="store_true")
    args, _ = parser.parse_known_args()
    with (args.folder / "started.txt").open("a") as file:
        file.write(f"{args.commit} {args.seed}{' lean' if args.lean else ''}\n")
    number = len((args.folder / "started.txt").read_text().splitlines())
    library = {"us": 100.0, "sd_pct": 0.3, "do": "0"}
    try:
        exec(Path("recoverssm/__init__.py").read_text(), library)
    except Exception as error:
        sys.exit(f"recoverssm cannot be imported: {error}")
    if library["do"] == "interrupt" and not (args.folder / "interrupted").exists():
        (args.folder / "interrupted").touch()
        os.kill(os.getppid(), signal.SIGINT)
        threading.Event().wait()
    if library["do"] not in ("0", "interrupt"):
        sys.stderr.write("the program calls what this library has not\n")
        sys.exit(int(library["do"]))
    record = json.loads((args.folder / "template.json").read_text())
    noise = random.Random(f"{args.seed} {number}").gauss(0, library["sd_pct"] / 100)
    for measurement in record["measurements"]:
        if measurement["metric"] == "device_us":
            measurement["value"] = library["us"] * (1 + noise)
    record["id"] = f"20261129T{number:06d}Z-{str(args.commit)[:8]}-{number:06x}"
    record["seed"] = int(args.seed)
    record["subject"] |= {"commit": args.commit, "source_hash": source_hash(Path("recoverssm"))}
    shutil.copy(args.folder / "template.parquet", args.out.with_suffix(".parquet"))
    args.out.write_text(json.dumps(record))


if __name__ == "__main__":
    main()
