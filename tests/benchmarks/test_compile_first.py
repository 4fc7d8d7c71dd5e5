import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import compile_first
from benchmarks.cases import SETS, kimi_k3
from benchmarks.compile_first import app, distinct, exit_code, launch_all, share_out, small
from benchmarks.cpu_process import shrunken

ROOT = Path(__file__).parents[2]


def test_every_case_is_compiled_by_one_worker_and_kernels_are_shared_within_it():
    shares = share_out(SETS["nightly"], 8)

    assert sorted(case.name for share in shares for case in share) == sorted(case.name for case in SETS["nightly"])
    families = [{(c.shape.num_heads, c.shape.spec_query_len, c.state_dtype) for c in share} for share in shares]
    assert sum(map(len, families)) == len(set().union(*families))
    # The family of the seven batches and three acceptances of TP8 in fp32 is one worker's, and the largest.
    assert max(map(len, shares)) == 10


def test_acceptance_compiles_nothing_of_its_own():
    league, published = (distinct(SETS[name], frozenset()) for name in ("league", "published"))
    likely, all_ = kimi_k3(8, 32, 8, 3.84, "fp32"), kimi_k3(8, 32, 8, 8.0, "fp32")

    assert len(league) == 24
    assert {case.num_requests for case in published if case.shape.spec_query_len == 3} == {1, 96}
    assert distinct([all_, likely], frozenset()) == [all_]
    assert distinct([all_, likely], frozenset({likely.name})) == [likely]
    assert distinct([all_, likely], frozenset({likely.name, all_.name})) == [all_, likely]


def test_no_worker_is_idle():
    assert len(share_out(SETS["smoke"], 8)) == 4
    assert len(share_out(SETS["smoke"], 1)) == 1


@pytest.mark.parametrize(("num_layers", "fewer"), [(69, 3), (32, 16), (3, 3), (2, 2), (1, 1)])
def test_small_case_keeps_what_kernels_are_specialised_on(num_layers, fewer):
    case = replace(kimi_k3(8, 32, 8, 3.84, "fp32"), num_layers=num_layers)

    assert small(case) == replace(case, num_layers=fewer)
    assert (fewer == 1, fewer % 16 == 0) == (num_layers == 1, num_layers % 16 == 0)


def test_every_op_is_called(monkeypatch):
    case = shrunken(kimi_k3(8, 32, 3, 2.73, "fp32"))
    import recoverssm

    called = set()
    for name in ("verify", "commit_plan", "commit_state", "compact_conv", "full_state_verify"):
        original = getattr(recoverssm, name)
        monkeypatch.setattr(recoverssm, name, lambda *a, o=original, n=name, **k: (called.add(n), o(*a, **k))[1])
    commit = recoverssm.CommitContext.commit
    monkeypatch.setattr(recoverssm.CommitContext, "commit", lambda *a, **k: (called.add("commit"), commit(*a, **k))[1])

    launch_all(case, torch.device("cpu"))

    assert called == {"verify", "commit_plan", "commit_state", "compact_conv", "full_state_verify", "commit"}


@pytest.mark.parametrize(("arguments", "code"), [(["--set", "smok"], 2), (["--set", "smoke", "--case", "*zzz*"], 3)])
def test_wrong_command_line_has_the_codes_of_a_measuring_process(arguments, code, monkeypatch):
    monkeypatch.setattr("benchmarks.compile_first.require_clean", lambda **_: None)

    assert CliRunner().invoke(app, arguments).exit_code == code


def test_cases_with_launches_of_their_own_have_a_place_beside_others_of_their_shape(monkeypatch):
    alike = [case.name for case in SETS["roofline"] if "_b32_t8_" in case.name and case.state_dtype == "fp32"]
    followed, sized = alike[-2:]
    given = []
    monkeypatch.setattr(compile_first, "CASES", {"roofline": frozenset({followed})})
    monkeypatch.setattr(compile_first, "SIZED", frozenset({sized}))
    monkeypatch.setattr(compile_first, "require_clean", lambda **_: None)
    monkeypatch.setattr(compile_first, "_fork", lambda work: given.extend(case.name for case in work.args[2]))
    monkeypatch.setattr(os, "waitpid", lambda *_: (0, 0))

    assert CliRunner().invoke(app, ["--set", "roofline", "--workers", "2"]).exit_code == 0
    assert {followed, sized} == set(given) & set(alike)


@pytest.mark.gpu
def test_measuring_process_compiles_nothing_after_compiling_ahead(tmp_path):
    from benchmarks.harness.record_files import decode_record
    from ci.gpus import find_gpus

    env = find_gpus()[0].child_env({**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)})
    env.pop("TRITON_INTERPRET", None)
    chosen = ["--set", "smoke", "--case", "*_b32_*"]

    def run(module, *more):
        return subprocess.run(
            [sys.executable, "-m", module, *chosen, *more],
            env=env,
            cwd=ROOT,
            check=False,
            text=True,
            capture_output=True,
        )

    ahead = run("benchmarks.compile_first", "--workers", "4")
    measured = run("benchmarks.run", "--seed", "1", "--out", str(tmp_path / "r.json"))

    assert ahead.returncode == 0, ahead.stdout + ahead.stderr
    assert measured.returncode == 0, measured.stdout + measured.stderr
    found = decode_record((tmp_path / "r.json").read_bytes()).compilations
    assert (found.num_compiled, found.compiled) == (0, [])
    assert found.num_cached > 5


def test_workers_that_find_no_gpu_are_told_of_and_leave_the_rest_to_measuring():
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.compile_first", "--set", "smoke", "--workers", "2"]

    done = subprocess.run(command, env=env, cwd=ROOT, check=False, text=True, capture_output=True)

    assert done.returncode == 5
    assert done.stdout.splitlines()[-1] == "2 workers, 2 of them incomplete (exit codes [5, 5])"
    assert "no GPU: torch sees none; run `python -m ci doctor`" in done.stderr


@pytest.mark.parametrize(
    ("workers", "code"), [([0, 0], 0), ([0, 4], 4), ([5, 0], 4), ([5, 4], 4), ([-11, 5], 4), ([5], 5), ([5, 5], 5)]
)
def test_exit_code_is_of_the_environment_only_where_no_worker_could_work(workers, code):
    assert exit_code(workers) == code


def test_help_names_every_exit_code():
    shown = " ".join(CliRunner().invoke(app, ["--help"]).output.split())

    assert "0 all compiled; 2 usage; 3 nothing selected; 4 not all compiled; 5 no GPU, or unfit to fork" in shown


def test_of_a_peer_is_said_what_was_right(monkeypatch, capsys):
    from benchmarks.compile_first import _compile_peer
    from benchmarks.harness.records import PeerFacts
    from benchmarks.peers import Tolerance
    from benchmarks.peers.discovery import FoundPeer
    from examples.provider import TorchRecurrence

    class Wrong(TorchRecurrence):
        tolerance = Tolerance(out=1e-9)

        def unsupported(self, case, device):
            return "bf16" if case.state_dtype == "bf16" else None

    cases = [shrunken(kimi_k3(8, 32, 3, 2.73, dtype)) for dtype in ("fp32", "bf16")]
    facts, cpu = PeerFacts(name="torch_recurrence", missing="not installed"), torch.device("cpu")

    assert _compile_peer(FoundPeer(facts), cases, cpu) == "not installed"
    assert (
        _compile_peer(FoundPeer(facts, TorchRecurrence()), cases, cpu)
        == "2 of 2 cases compiled and right, 0 not for it"
    )
    assert _compile_peer(FoundPeer(facts, Wrong()), cases, cpu) == "0 of 1 cases compiled and right, 1 not for it"
    assert "WrongResultError: verify out_error" in capsys.readouterr().err

    monkeypatch.setattr(Wrong, "unsupported", lambda *_: 1 / 0)
    assert _compile_peer(FoundPeer(facts, Wrong()), cases, cpu) == "ZeroDivisionError: division by zero"
    monkeypatch.setattr(TorchRecurrence, "prepare", lambda *_: sys.exit(2))
    assert _compile_peer(FoundPeer(facts, TorchRecurrence()), cases, cpu) == "ExitedError: sys.exit(2)"
