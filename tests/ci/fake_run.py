"""Stands in for ``benchmarks.run``: hands out prepared records, one per process, and does what the script says.

Usage: fake_run.py FOLDER --set S --out FILE --seed N. FOLDER holds ``N.json`` with ``N.parquet`` for the Nth process
started, and may hold ``N.do``: an exit code, ``interrupt`` (signals the parent, then hangs), ``hang``, or ``meet``.
"""

import argparse
import fcntl
import os
import shutil
import signal
import sys
import threading
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    for name in ("--set", "--seed", "--case", "--commit", "--started", "--collection", "--delay-pct"):
        parser.add_argument(name)
    parser.add_argument("--lean", action="store_true")
    args = parser.parse_args()
    started = args.folder / "started.txt"
    with started.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # processes on several GPUs start at once
        file.seek(0)
        index = len(file.read().splitlines())
        file.write(
            f"{os.getpid()} {args.seed} {args.set} {args.case} {args.commit} {os.environ['CUDA_VISIBLE_DEVICES']}\n"
        )
    sys.stdout.write(f"case 1 of 1, seed {args.seed}\n")
    sys.stdout.flush()
    script = args.folder / f"{index}.do"
    do = script.read_text().strip() if script.exists() else "0"
    if do == "meet":  # goes on once two processes are here, and so never where they run one after the other
        with (args.folder / "meeting").open("rb" if index % 2 else "wb"):
            do = "0"
    if do == "interrupt":
        os.kill(os.getppid(), signal.SIGINT)
    if do in ("interrupt", "hang"):
        threading.Event().wait()
    prepared = args.folder / f"{index}.json"
    if prepared.exists():
        shutil.copy(prepared.with_suffix(".parquet"), args.out.with_suffix(".parquet"))
        shutil.copy(prepared, args.out)
    sys.exit(int(do))


if __name__ == "__main__":
    main()
