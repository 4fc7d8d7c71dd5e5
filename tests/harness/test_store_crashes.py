"""Writers that are killed, and many writers at once: a store loses nothing that was finished."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness.store import Store
from ci.history.verify import verify
from tests.harness.stored import make_record, make_table

ROOT = Path(__file__).resolve().parents[2]
# Adds records, and says of each when it is on disk; goes on with the one that the last kill cut short.
WRITER = """
import sys
from pathlib import Path
from benchmarks.harness.errors import AlreadyStoredError
from benchmarks.harness.store import Store
from tests.harness.stored import make_night, make_record, make_table
folder, name, first, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
store = Store(folder)
print("ready", flush=True)
for number in range(first, first + count):
    record = make_record(f"20261129T140000Z-{name}-{number:06d}")
    try:
        store.add_record(record, make_table())
    except AlreadyStoredError:
        pass
    if number % 5 == 0:
        store.records()  # a reader sets aside what a writer left, never what a writer is at
    if number % 10 == 9:
        try:
            store.add_night(make_night(f"20261129T150000Z-{name}-{number:06d}", [record.id]))
        except AlreadyStoredError:
            pass
    print(number, flush=True)
"""

# Adds one record and dies in front of its Nth step on disk: a sync or a rename.
DYING_WRITER = """
import os, signal, sys
from pathlib import Path
from benchmarks.harness.store import Store
from tests.harness.stored import make_record, make_table
left = int(sys.argv[2])
def dying(step):
    def take(*arguments):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*arguments)
    return take
os.fsync, Path.rename = dying(os.fsync), dying(Path.rename)
Store(Path(sys.argv[1])).add_record(make_record(), make_table())
print(left)
"""
NUM_STEPS = 6  # the folder above a new one synced, two files synced, two renames, their folder synced


def start(script: Path, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, str(script), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def finished(output: str) -> list[int]:
    """Numbers of the records that the writer called finished; its last line may be cut."""
    return [int(line) for line in output.rpartition("\n")[0].splitlines() if line.isdecimal()]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "writer.py"
    path.write_text(WRITER)
    return path


def kill_writers(script: Path, folder: Path, moments: int) -> Iterator[list[int]]:
    """Per kill, the records that the killed writer had finished; each writer goes on where the last one was killed."""
    draw, first = random.Random(11), 0
    for _ in range(moments):
        child = start(script, folder, "abc", first, 1_000_000)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        lines = [child.stdout.readline() for _ in range(draw.randint(2, 8))]  # however slow the disk is
        time.sleep(draw.uniform(0.0, 0.05))
        child.kill()
        done = finished("".join(lines) + child.communicate()[0])
        assert child.returncode == -signal.SIGKILL
        yield done
        first = done[-1] + 1


def assert_all_there(folder: Path, numbers: set[int]) -> None:
    store = Store(folder)
    found = {int(record.id[-6:]) for record in store.records()}
    assert numbers <= found
    assert found - numbers <= {max(numbers) + 1}  # one that was on disk, but not yet called finished
    assert {int(night.id[-6:]) for night in store.nights()} >= {n for n in numbers if n % 10 == 9}
    leftovers = [note for note in store.quarantined if "a write was interrupted" not in note]
    assert leftovers == []


def check_after_kills(script: Path, folder: Path, moments: int) -> None:
    numbers: set[int] = set()
    for done in kill_writers(script, folder, moments):
        numbers |= set(done)
        for path in folder.rglob("records/*/*.json"):
            json.loads(path.read_bytes())  # whole at any moment, before anybody has tidied up
    assert len(numbers) > moments
    assert_all_there(folder, numbers)
    assert verify(folder).problems == []  # what killed writers left has been set aside by the reader


def test_writers_killed_at_random_moments_lose_no_finished_record(script: Path, tmp_path: Path):
    check_after_kills(script, tmp_path / "store", moments=4)


@pytest.mark.long
def test_writers_killed_at_fifty_random_moments_lose_no_finished_record(script: Path, tmp_path: Path):
    check_after_kills(script, tmp_path / "store", moments=50)


@pytest.mark.parametrize("step", range(NUM_STEPS + 1))
def test_writer_killed_at_any_step_leaves_the_record_whole_or_not_there(tmp_path: Path, step: int):
    script, folder = tmp_path / "dying.py", tmp_path / "store"
    script.write_text(DYING_WRITER)
    (folder / "records").mkdir(parents=True)
    child = start(script, folder, step)
    output = child.communicate(timeout=60)[0]
    assert (child.returncode, output) == ((0, "0\n") if step == NUM_STEPS else (-signal.SIGKILL, ""))

    written = make_record()
    present = Store(folder, writable=False).records([written.id])
    assert present in ([], [written])
    if not present:
        Store(folder).add_record(written, make_table())
    assert Store(folder).records([written.id]) == [written]
    assert verify(folder).problems == []


@pytest.mark.long
def test_twenty_writers_at_once_lose_no_record(script: Path, tmp_path: Path):
    folder, count = tmp_path / "store", 25
    children = [start(script, folder, f"w{number:02d}", 0, count) for number in range(20)]
    outputs = [child.communicate(timeout=300)[0] for child in children]

    assert [child.returncode for child in children] == [0] * 20
    assert all(finished(output) == list(range(count)) for output in outputs)
    store = Store(folder)
    assert len(store.records()) == 20 * count
    assert len(store.nights()) == 20 * 2
    assert store.quarantined == []
    assert not (folder / "quarantine").exists()
