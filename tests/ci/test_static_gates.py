"""Regressions planted in a copy of the sources, compiled for sm_90: each is caught by the gate that is meant for it."""

import copy
import json
import re
import shutil
from pathlib import Path

import pytest

from ci.config import load_thresholds
from ci.exits import Exit, MissingDataError, UsageError
from ci.static import judge, read_report
from ci.static_gates import regressions
from tests.benchmarks.test_static_compiling import CASE, compiled

ROOT = Path(__file__).parents[2]
LIMITS = load_thresholds()

PLANTS = {  # file below recoverssm/, what stands there, what is put there
    "a barrier": (
        "kernels/conv.py",
        "    row = tl.program_id(0)\n",
        "    row = tl.program_id(0)\n    tl.debug_barrier()\n",
    ),
    "narrow loads": ("ops/conv.py", '"ALIGNED": aligned', '"ALIGNED": False'),
    "a spill": ("launch.py", "constants=shape | tile", 'constants=shape | tile | {"maxnreg": 64}'),
    "a lost dot": ("ops/verify.py", "return triton_compat.IS_TESTED and is_sized", "return False and is_sized"),
    "a second launch": (
        "committer.py",
        "        if self._convs is not None:\n",
        "        if self._convs is not None:\n            compact_conv(self._convs, plan, conv_width=4)\n",
    ),
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Of the sources as they are, and of a copy with all plants."""
    folder = tmp_path_factory.mktemp("planted")
    checkout = folder / "checkout"
    for name in ("recoverssm", "benchmarks"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in PLANTS.values():
        path = checkout / "recoverssm" / file
        assert path.read_text().count(old) == 1, (file, old)
        path.write_text(path.read_text().replace(old, new))
    found = []
    for root, out in ((ROOT, folder / "base"), (checkout, folder / "head")):
        ended = compiled(root, out, "sm_90")
        assert ended.returncode == 0, ended.stderr
        found.append(json.loads((out / "report.json").read_text()))
    return found


def test_each_planted_regression_is_caught_by_its_gate_with_its_line(reports):
    found = regressions(*reports, LIMITS)
    for op, words, line in (
        ("conv", "1 barriers became 2", r"conv\.py:\d+, recoverssm/kernels/conv\.py:\d+: tl\.debug_barrier\(\)"),
        ("conv", "3 16-byte loads became 0", r"conv\.py:\d+ of the base: history = tl\.load\(.*\)"),
        ("commit_state", "0 loads and stores of spilled registers became", r"commit_state_async\.py:\d+: .*"),
        ("commit_state", "0 bytes of stack became", r"commit_state_async\.py:\d+: .*"),
        ("verify", "tensor-core instructions became 0", r"probes\.py:\d+ of the base: .*"),
    ):
        named = re.compile(rf"sm_90 recoverssm/{op}: .*{words}.* \(recoverssm/kernels/{line}\): {CASE}")
        assert any(map(named.fullmatch, found)), (op, words, found)
    assert f"sm_90 recoverssm/commit: 3 launches a call became 4: {CASE}" in found


def test_unchanged_sources_regress_in_nothing(reports):
    assert regressions(reports[0], reports[0], LIMITS) == []
    assert judge(Exit.PASS, reports[0], reports[0])[0] == Exit.PASS


def test_a_regression_fails_but_hides_no_worse_trouble(reports):
    code, judged = judge(Exit.PASS, reports[1], reports[0])
    assert code == Exit.REGRESSED
    assert judged["regressions"] == regressions(*reports, LIMITS)
    assert judge(Exit.INVALID, reports[1], reports[0])[0] == Exit.INVALID


def test_fewer_programs_on_an_sm_are_a_regression(reports):
    worse = copy.deepcopy(reports[0])
    (entry,) = (entry for entry in worse["kernels"] if entry["kernel"] == "commit_plan")
    entry["figures"]["ctas_per_sm"] -= 1
    (line,) = regressions(reports[0], worse, LIMITS)
    assert re.search(r"16 CTAs that fit an SM became 15 \(recoverssm/kernels/commit_plan\.py:\d+\): ", line)


def test_size_and_counts_have_a_band(reports):
    for factor, is_caught in ((1.09, False), (1.11, True)):
        longer = copy.deepcopy(reports[0])
        entry = next(entry for entry in longer["kernels"] if entry["kernel"] == "verify_wgmma")
        before = entry["figures"]["code_bytes"]
        entry["figures"]["code_bytes"] = after = round(before * factor)
        found = regressions(reports[0], longer, LIMITS)
        assert (f"{before} bytes of code became {after}, more than 10 % (" in "".join(found)) == is_caught


def test_what_cannot_be_compared_is_not_judged(reports):
    other = copy.deepcopy(reports[0])
    other["compiler"]["triton"] = "9.9.9"
    with pytest.raises(MissingDataError, match=r"Triton 9\.9\.9"):
        regressions(other, reports[0], LIMITS)
    nothing = reports[0] | {"num_launches": {}}
    with pytest.raises(MissingDataError, match="no op, case"):
        regressions(nothing, reports[0], LIMITS)


def test_a_base_that_is_no_report_is_wrong_usage(tmp_path):
    for text in ("{", "[]", "{}"):
        (tmp_path / "base.json").write_text(text)
        with pytest.raises(UsageError, match="expected a report of ci static"):
            read_report(tmp_path / "base.json")


def test_a_base_of_another_version_is_missing(tmp_path):
    (tmp_path / "base.json").write_text('{"schema_version": 1, "kernels": [], "compiler": {}, "num_launches": {}}')
    with pytest.raises(MissingDataError, match="expected a report of version 2, got 1"):
        read_report(tmp_path / "base.json")
