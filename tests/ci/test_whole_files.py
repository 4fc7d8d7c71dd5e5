"""State on a full disk: the old file stays, nothing is left beside it, and the error says where and what to do."""

import errno
import os

import pytest

from ci import whole_files
from ci.commits.backfill import FILE as BACKFILL_FILE
from ci.commits.backfill import BackfillState, save_state
from ci.commits.bisect_state import FILE as BISECT_FILE
from ci.commits.bisect_state import BisectState
from ci.commits.bisect_state import save as save_bisect
from ci.exits import BrokenEnvironmentError
from ci.gate.plan import STATE_FILE as GATE_FILE
from ci.gate.plan import State as GateState
from ci.gate.plan import save as save_gate
from ci.session import STATE_FILE as NIGHT_FILE
from ci.session import State as NightState
from ci.session import save as save_night
from ci.trends import report
from ci.whole_files import replace_file

WRITERS = {
    NIGHT_FILE: lambda folder: save_night(NightState(None, {}), folder),
    GATE_FILE: lambda folder: save_gate(folder, GateState()),
    BACKFILL_FILE: lambda folder: save_state(BackfillState(None), folder),
    BISECT_FILE: lambda folder: save_bisect(BisectState(plan=None), folder),
}


@pytest.fixture
def full_disk(monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(whole_files.os, "fsync", full)


@pytest.mark.parametrize("name", WRITERS)
def test_state_on_a_full_disk_stays_what_it_was(name, tmp_path, full_disk):
    (tmp_path / name).write_text("old")

    with pytest.raises(BrokenEnvironmentError, match="cannot be written: No space left on device") as caught:
        WRITERS[name](tmp_path)

    assert caught.value.next_step
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "old")]


def test_trends_on_a_full_disk_leave_nothing(tmp_path, full_disk, monkeypatch):
    monkeypatch.setattr(report, "as_json", lambda found, case_set: {})
    found = type("Found", (), {"gpu_model": "nvidia-h200"})

    with pytest.raises(BrokenEnvironmentError, match=r"trends-nvidia-h200\.json: cannot be written"):
        report.write(found, "pr", tmp_path)

    assert not list(tmp_path.iterdir())


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path):
    path = tmp_path / "state.json"
    path.write_bytes(b"old")

    assert replace_file(path, b"new") == path
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("state.json", b"new")]
