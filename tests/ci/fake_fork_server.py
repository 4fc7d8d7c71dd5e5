"""Speaks the protocol of ``benchmarks.fork_server`` and starts a fake: fake_fork_server.py PROGRAM FOLDER TOKEN."""

import json
import subprocess
import sys


def say(news: str) -> None:
    sys.stdout.write(news + "\n")
    sys.stdout.flush()


def main(program: str, folder: str, token: str) -> None:
    say(f"{token}ready")
    for line in sys.stdin:
        child = subprocess.Popen([sys.executable, "-S", program, folder, *json.loads(line)], start_new_session=True)
        say(f"{token}started {child.pid}")
        say(f"{token}ended {child.wait()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
