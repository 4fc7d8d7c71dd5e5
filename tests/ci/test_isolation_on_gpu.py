"""A case that breaks the CUDA context, never ends or crashes on a real card costs itself and a process."""

import sys
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.cases import select
from benchmarks.harness.lock import GpuLock
from benchmarks.harness.store import Store
from ci.config import load_nightly
from ci.exits import Exit
from ci.gpus import find_gpus
from ci.nightly import run_nightly
from ci.options import Options

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "crashing_run.py"
ROOT = Path(__file__).parents[2]
PATTERN = "*_b32_t3_*"  # two cases, the quickest
CRASHING = "kimi_k3_tp8_b32_t3_a2.73_bf16"


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("illegal", "lost the CUDA context: "),
        ("spin", "hung: no case finished for 30 s"),
        ("segfault", "killed by SIGSEGV"),
    ],
)
def test_case_that_goes_wrong_on_the_card_costs_itself(tmp_path, monkeypatch, what, reason):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RECOVERSSM_LOCK_DIR", str(tmp_path / "locks"))
    config = replace_config(case_cap_s=30)
    monkeypatch.setattr("ci.nightly.load_nightly", lambda: config)
    options = Options(
        case_set="smoke",
        pattern=PATTERN,
        selected=[case.name for case in select("smoke", PATTERN)],
        store=str(tmp_path / "store"),
        out=tmp_path / "out",
        processes=1,
        seed=1,
        page=False,
        command=(sys.executable, str(PROGRAM), what, CRASHING),
    )

    result = run_nightly(options, Console(stderr=True))

    assert result.code == Exit.INVALID
    (record,) = Store(tmp_path / "store").records()
    timed = [m for m in record.measurements if m.contract == "graph-cold"]
    crashed = [m for m in timed if m.case == CRASHING]
    assert crashed
    assert {m.status for m in crashed} == {"failed"}
    assert all(m.reason.startswith(reason) for m in crashed), crashed[0].reason
    assert {m.status for m in timed if m.case != CRASHING} == {"ok"}
    assert len(record.attempts) == 1
    with GpuLock(find_gpus()[0].uuid):
        pass


def replace_config(**changes):
    import msgspec

    return msgspec.structs.replace(load_nightly(), **changes)
