"""Real compilations without a GPU, few of them: the same from everywhere, and a failure costs one kernel."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import triton

from benchmarks.harness.record_files import decode_record, samples_path
from benchmarks.static.occupancy import load_limits
from benchmarks.static.run import exit_code

ROOT = Path(__file__).parents[2]
CASE = "kimi_k3_tp8_b32_t8_a3.84_bf16"


def compiled(root, out, archs="sm_90,sm_103", case=CASE, more=()):
    env = {name: value for name, value in os.environ.items() if name not in {"TRITON_INTERPRET", "PYTHONPATH"}}
    command = [sys.executable, "-m", "benchmarks.static.run", "--set", "smoke", "--case", case, "--arch", archs]
    places = ["--out", str(out / "report.json"), "--cache", str(out / "cache")]
    return subprocess.run([*command, *places, *more], cwd=root, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Folder of a run with one architecture that does not exist."""
    out = tmp_path_factory.mktemp("first")
    return out, compiled(ROOT, out, "sm_90,sm_42,sm_103")


@pytest.fixture(scope="module")
def again(first):
    """The same run once more, which leaves records as well; and the report that it found."""
    out, _ = first
    before = (out / "report.json").read_bytes()
    more = ("--records", str(out / "records"), "--commit", "0123abcd")
    return compiled(ROOT, out, "sm_90,sm_42,sm_103", more=more), before


def by_kernel(out):
    report = json.loads((out / "report.json").read_text())
    return {(entry["arch"], entry["kernel"]): entry["figures"] for entry in report["kernels"]}


def test_an_unknown_architecture_is_named_and_the_others_go_on(first):
    out, ended = first
    assert ended.returncode == 2, ended.stderr
    report = json.loads((out / "report.json").read_text())
    assert len(report["problems"]) == 1
    assert report["problems"][0].startswith("sm_42: no limits")
    assert {entry["arch"] for entry in report["kernels"]} == {"sm_90", "sm_103"}
    assert not any(entry["failure"] for entry in report["kernels"])


def test_the_figures_are_those_of_kernels(first):
    figures = by_kernel(first[0])
    for (arch, _), kernel in figures.items():
        assert 0 < kernel["registers"] <= 255
        assert (kernel["stack_bytes"] > 0) == (kernel["instructions"]["by_class"]["local_load"] > 0)
        assert 16 * kernel["instructions"]["total"] <= kernel["code_bytes"]
        assert kernel["decoded_as"] == {"sm_90": "SM90a", "sm_103": "SM100a"}[arch]
    commit = figures["sm_90", "commit_state_async"]
    assert commit["instructions"]["by_width"]["global_store"] == {"16": 16}
    assert commit["ctas_per_sm"] >= 4
    assert figures["sm_90", "verify_wgmma"]["instructions"]["by_class"]["tensor_core"] > 0


def test_an_architecture_that_ptxas_does_not_know_is_told_from_one_without_limits(monkeypatch):
    from benchmarks.static import compiling

    known = load_limits()
    monkeypatch.setattr(compiling, "load_limits", lambda: known | {"sm_999": known["sm_103"]})
    assert re.search(r"^sm_999: ptxas\S* .* does not know it$", compiling.unknown_arch("sm_999"))
    assert compiling.unknown_arch("sm_998").startswith("sm_998: no limits in")
    assert compiling.unknown_arch("sm_103") is None


def test_a_second_run_compiles_nothing_and_writes_the_same_bytes(first, again):
    ended, before = again
    number = re.search(r"(\d+) kernels, (\d+) compiled before", ended.stderr)
    assert number[1] == number[2] != "0"
    assert (first[0] / "report.json").read_bytes() == before


@pytest.mark.usefixtures("again")
def test_a_record_for_each_architecture_holds_the_figures_and_its_compiler(first):
    out, _ = first
    assert sorted(path.name for path in (out / "records").glob("*.json")) == ["sm_103.json", "sm_90.json"]
    record = decode_record((out / "records" / "sm_103.json").read_bytes())
    assert record.is_static
    assert (record.environment.gpu_model, record.environment.compute_capability) == ("sm_103", "10.3")
    assert (record.environment.triton, record.subject.commit) == (triton.__version__, "0123abcd")
    figures = by_kernel(out)["sm_103", "commit_state_async"]
    key = ("registers", "commit_state", "recoverssm", CASE, "static")
    assert {item.key: item.value for item in record.measurements}[key] == figures["registers"]
    assert figures["binary_hash"] in record.subject.binaries.values()
    places = {item.metric: item.reason for item in record.measurements if item.op == "conv"}
    assert re.fullmatch(r"recoverssm/kernels/conv\.py:\d+: tl\.debug_barrier\(\)", places["barriers"])
    assert re.fullmatch(r"recoverssm/kernels/conv\.py:\d+", places["wide_loads"])
    assert samples_path(out / "records" / "sm_103.json").exists()


def test_another_checkout_with_more_comments_has_the_same_binaries(first, tmp_path):
    checkout = tmp_path / "elsewhere" / "checkout"
    for folder in ("recoverssm", "benchmarks"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (checkout / "recoverssm" / "kernels").glob("*.py"):
        path.write_text(re.sub(r"^(    (?=\S).* = .*\n)", r"    # a comment\n\1", path.read_text(), flags=re.M))
    ended = compiled(checkout, tmp_path, "sm_90")
    assert " 0 compiled before" in ended.stderr
    here = by_kernel(first[0])
    assert by_kernel(tmp_path) == {key: figures for key, figures in here.items() if key[0] == "sm_90"}


def test_an_instruction_that_a_target_lacks_and_a_missing_tool_cost_what_needs_them(tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.foreign_targets", str(tmp_path)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ended.stdout)
    failures = {(arch, kernel): failure for arch, kernel, failure, _ in found[:4]}
    assert re.search(r"SIGABRT: LLVM ERROR: Cannot select.*wgmma", failures.pop(("sm_103", "verify_wgmma")))
    assert set(failures.values()) == {None}
    _, _, failure, figures = found[4]
    assert failure is None
    assert figures["instructions"] is None
    assert figures["registers"]


def test_nothing_selected_an_unknown_set_and_a_bad_name_have_codes_of_their_own(tmp_path):
    assert compiled(ROOT, tmp_path, case="nothing*").returncode == 3
    assert compiled(ROOT, tmp_path, archs="hopper").returncode == 2
    assert not (tmp_path / "report.json").exists()


def test_the_code_that_casts_most_doubt_wins():
    assert exit_code(False, (), [None]) == 0
    assert exit_code(True, (), [None]) == 2
    assert exit_code(True, (), [None, "SIGABRT"]) == 4
    assert exit_code(True, ("nvdisasm",), ["SIGABRT"]) == 5
