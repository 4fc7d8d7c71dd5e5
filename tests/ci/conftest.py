from pathlib import Path

import pytest

from tests.ci.nights import FakeNight


@pytest.fixture
def fake_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNight:
    monkeypatch.setenv("RECOVERSSM_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return FakeNight(tmp_path)
