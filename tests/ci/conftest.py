from pathlib import Path

import pytest

from ci.gate import running
from tests.ci.clusters import FakeFleet
from tests.ci.gates import CARD, OTHER_CARD, FakeGate
from tests.ci.nights import FakeNight


@pytest.fixture
def fake_night(tmp_path: Path, no_gpu: None) -> FakeNight:
    return FakeNight(tmp_path)


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("RECOVERSSM_LOCK_DIR", str(tmp_path / "locks"))


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *a, **k: pytest.fail(f"started {a}"))


@pytest.fixture
def cluster(fake_night: FakeNight, monkeypatch: pytest.MonkeyPatch) -> FakeFleet:
    return FakeFleet(fake_night, monkeypatch)


@pytest.fixture
def fake_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGate:
    """On a card that exists only here."""
    monkeypatch.setenv("RECOVERSSM_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr(running, "find_gpus", lambda: [CARD, OTHER_CARD])
    monkeypatch.setattr(running, "require_usable", lambda _: None)
    return FakeGate(tmp_path)


@pytest.fixture
def in_repository(fake_gate: FakeGate, monkeypatch: pytest.MonkeyPatch) -> FakeGate:
    """The command line, in the fake's repository."""
    monkeypatch.setattr("ci.measuring.ROOT", fake_gate.root)
    return fake_gate
