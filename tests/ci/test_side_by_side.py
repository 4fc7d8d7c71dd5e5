"""Several GPUs of one host, measured at once by prepared processes."""

import os
import signal
import sys
import threading

import msgspec
import pytest

from benchmarks.harness.errors import LockHeldError
from benchmarks.harness.lock import GpuLock
from benchmarks.harness.records import Silicon
from ci.exits import BrokenEnvironmentError, Exit, Interrupted
from ci.gpus import Gpu
from ci.processes import interruptible
from ci.session import load
from ci.side_by_side import side_by_side
from tests.ci.nights import CONTROLS, QUIET, make_records

COPY = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[3])"
GPUS = [Gpu("GPU-1", "NVIDIA H200"), Gpu("GPU-2", "NVIDIA H200")]


@pytest.fixture
def two_gpus(fake_night, monkeypatch):
    monkeypatch.setattr("ci.nightly.find_gpus", lambda: GPUS)
    monkeypatch.setattr("ci.nightly.require_usable", lambda gpu: None)
    os.mkfifo(fake_night.folder / "meeting")
    return fake_night


def test_gpus_are_measured_at_once_each_with_its_own_processes(two_gpus):
    result = two_gpus.night(make_records(QUIET * 2), do={0: "meet", 1: "meet"}, gpus="all")

    (night,) = result.nights
    assert (result.code, len(night.records)) == (Exit.PASS, 10)
    assert sorted(line.rsplit(maxsplit=1)[1] for line in two_gpus.started) == ["GPU-1"] * 5 + ["GPU-2"] * 5
    assert max(record.neighbours for record in two_gpus.stored()) == 1
    assert "measured while up to 1 other GPUs of the host were measured too" in night.notes


def beside(took_us, uuid):
    """Records whose copy control took so long at the start of the process, on one card."""
    controls = [msgspec.structs.replace(control, median_us=took_us) for control in CONTROLS]
    return make_records(controls=controls, silicon=Silicon(gpu_uuid=uuid))


def test_controls_beside_others_are_held_against_those_alone(two_gpus):
    found = [record for pair in zip(beside(252.5, "1"), beside(260.0, "2"), strict=True) for record in pair]
    alone = two_gpus.tmp / "alone.json"
    alone.write_bytes(msgspec.json.encode(CONTROLS[:1]))
    command = (sys.executable, "-S", "-c", COPY, str(alone))

    night = two_gpus.night(found, gpus="all", controls_command=command, do={0: "meet", 1: "meet"}).nights[0]

    assert all(record.controls_alone == CONTROLS[:1] for record in two_gpus.stored())
    notes = [note for note in night.notes if note.startswith("controls of GPU")]
    assert notes == [
        "controls of GPU 1 beside others against alone: copy +1.0 %",
        "controls of GPU 2 beside others against alone: copy +4.0 %: above 2 %, measure with --exclusive",
    ]


def test_controls_that_cannot_be_measured_alone_cost_the_night_nothing(two_gpus):
    result = two_gpus.night(make_records(QUIET * 2), gpus="all")

    assert result.code == Exit.PASS
    assert "controls were not measured alone: exit code 5" in (two_gpus.tmp / "progress.txt").read_text()


def test_each_gpu_is_locked_while_all_are_measured(two_gpus, monkeypatch):
    held = []

    def look(measure, gpus, stop):
        for gpu in gpus:
            with pytest.raises(LockHeldError):
                GpuLock(gpu.uuid).__enter__()
            held.append(gpu.uuid)

    monkeypatch.setattr("ci.nightly.side_by_side", look)
    two_gpus.night([], gpus="all")

    assert held == ["GPU-1", "GPU-2"]


def test_interrupted_night_ends_the_processes_of_all_gpus_and_goes_on_later(two_gpus):
    two_gpus.prepare(make_records(QUIET * 2), do={0: "hang", 1: "interrupt"})

    first = two_gpus.run(gpus="all")
    begun = len(two_gpus.started)
    two_gpus.prepare(make_records(QUIET * 2))
    second = two_gpus.run(gpus="all", resume=True)

    assert (first.code, second.code) == (Exit.INTERRUPTED, Exit.PASS)
    assert begun == 2
    assert [len(records) for records in load(two_gpus.options.out).records.values()] == [5, 5]


def test_gpu_that_breaks_ends_the_night_when_the_others_are_done(two_gpus):
    broken, done = threading.Event(), []

    def measure(gpu):
        if gpu is GPUS[0]:
            broken.set()
            raise BrokenEnvironmentError("GPU-1 has fallen off the bus", "restart")
        broken.wait()
        done.append(gpu)

    with pytest.raises(BrokenEnvironmentError, match="fallen off the bus"):
        side_by_side(measure, GPUS, threading.Event())
    assert done == [GPUS[1]]


def test_signal_stops_every_gpu():
    stop, at_work = threading.Event(), threading.Barrier(2)

    def measure(gpu):
        if at_work.wait() == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        stop.wait()
        raise Interrupted("the night ends")

    with interruptible(), pytest.raises(Interrupted, match="SIGTERM"):
        side_by_side(measure, GPUS, stop)
    assert stop.is_set()
