"""A gate between two real commits, on a machine without a GPU: nothing of it stands in for anything."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ci.exits import Exit
from ci.gate.judge import judge
from ci.gate.result import encode

ROOT = Path(__file__).resolve().parents[2]
MORE = """

_cost_of_verify = verify


def verify(*sizes, **options):
    found = _cost_of_verify(*sizes, **options)
    return Cost(found.read_bytes + 1, found.write_bytes, found.flops)
"""


def test_a_gate_without_a_gpu_judges_what_is_exact_and_fails_nothing_by_a_cpus_times(tmp_path):
    clone, out = tmp_path / "clone", tmp_path / "gate"
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRITON_INTERPRET")}
    env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}

    def run(*command, cwd=clone):
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def git(*arguments, cwd=clone):
        code, said = run("git", "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments, cwd=cwd)
        assert code == 0, said

    git("clone", "--quiet", str(ROOT), str(clone), cwd=tmp_path)
    cost = clone / "recoverssm" / "cost.py"
    cost.write_text(cost.read_text() + MORE)
    git("commit", "--quiet", "--all", "--message", "cost: a byte more")
    gate = (sys.executable, "-m", "ci", "gate", "--base", "HEAD~1", "--out", str(out), "--set", "smoke")
    code, said = run(*gate, "--case", "kimi_k3_tp8_b1_t8_a3.84_fp32", "--arch", "sm_90", "--seed", "1")

    assert code == Exit.REGRESSED, said
    result = json.loads((out / "verdict.json").read_text())
    regressed = [v for v in result["verdicts"] if v["verdict"] == "regressed"]
    found = {(v["op"], v["provider"], v["metric"], v["contract"]) for v in regressed}
    assert ("verify", "recoverssm", "read_bytes", "exact") in found
    assert {(metric, contract) for _, _, metric, contract in found} == {("read_bytes", "exact")}
    assert all(v["head_value"] > v["base_value"] for v in regressed)
    times = [v for v in result["verdicts"] if v["contract"] == "cpu-reference"]
    assert times
    assert not any(v["gated"] for v in times)
    assert any("static figures are the same" in finding["message"] for finding in result["findings"])
    records = [json.loads(path.read_text()) for path in sorted((out / "records").glob("*.json"))]
    assert {record["subject"]["source_hash"] for record in records} == {
        result["base"]["source_hash"],
        result["head"]["source_hash"],
    }
    assert {record["started"] for record in records} == {"forked"}

    replayed = shutil.copytree(out, tmp_path / "elsewhere")
    assert encode(judge(replayed)) == (out / "verdict.json").read_bytes()
