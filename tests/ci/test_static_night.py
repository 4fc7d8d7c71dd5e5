"""The compiled part of a night: a record and a night for each architecture, judged by their own limits."""

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.cases import select
from benchmarks.harness import record_files, records
from benchmarks.harness.records import Measurement
from benchmarks.harness.samples import SCHEMA
from benchmarks.static.planning import plan
from ci.config import NIGHTLY_FILE, load_nightly
from ci.exits import Exit
from ci.show import next_step
from tests.ci.nights import CASE, make_record, make_records


def figure(metric, value, **changes):
    facts = {"metric": metric, "op": "conv", "provider": "recoverssm", "case": CASE, "contract": "static"}
    return Measurement(
        **{**facts, "unit": "instructions", "value": value, "reason": "conv.py:25: barrier()", **changes}
    )


def compiled(*figures, arch="sm_90", triton="3.6.0", **changes):
    environment = records.Environment(gpu_model=arch, python="any", torch="any", harness="1", triton=triton)
    facts = {"environment": environment, "controls": [], "checks": [], "case_set": "smoke"}
    return make_record(figures, **facts | changes)


@pytest.fixture
def static_night(fake_night, tmp_path):
    """Runs a night in which these records are compiled, beside processes that measure as always."""
    folder = tmp_path / "compiled"

    def night(*found, problems="", refuses=False, code=1, measured=make_records, **changes):
        (folder / "records").mkdir(parents=True, exist_ok=True)
        for record in found:
            path = folder / "records" / f"{record.environment.gpu_model}.json"
            path.write_bytes(record_files.encode(record))
            pq.write_table(SCHEMA.empty_table(), path.with_suffix(".parquet"))
        (folder / "problems").write_text(problems)
        if refuses:
            (folder / "refuses").write_text(str(code))
        program = (sys.executable, "-S", str(Path(__file__).with_name("fake_static_night.py")), str(folder))
        result = fake_night.night(measured(), static=True, static_command=program, **changes)
        return result, {night.gpu_model: night for night in result.nights}

    night.ran = lambda: (folder / "ran.txt").read_text().splitlines()
    return night


def progress(fake_night):
    return (fake_night.tmp / "progress.txt").read_text()


def verdicts(night):
    return {item.metric: item.verdict for item in night.verdicts}


def test_each_architecture_is_a_night_of_one_record_and_a_base_for_the_next(static_night):
    result, nights = static_night(compiled(figure("barriers", 1)), compiled(figure("barriers", 2), arch="sm_103"))

    assert result.code == Exit.PASS
    assert set(nights) == {"nvidia-h200", "sm_90", "sm_103"}
    assert all(nights[arch].accepted and len(nights[arch].records) == 1 for arch in ("sm_90", "sm_103"))

    _, later = static_night(compiled(figure("barriers", 1)), compiled(figure("barriers", 2), arch="sm_103"))
    assert later["sm_103"].base_night == nights["sm_103"].id
    assert verdicts(later["sm_103"]) == {"barriers": "unchanged"}


def test_what_got_worse_fails_the_night_and_names_its_line(static_night):
    good = (figure("barriers", 1), figure("code_bytes", 1000), figure("registers", 100))
    static_night(compiled(*good))
    result, nights = static_night(
        compiled(figure("barriers", 2), figure("code_bytes", 1050), figure("registers", 101)),
    )

    night = nights["sm_90"]
    assert result.code == Exit.REGRESSED
    assert (nights["nvidia-h200"].exit_code, night.exit_code) == (0, 1)
    assert verdicts(night) == {"barriers": "regressed", "code_bytes": "unchanged", "registers": "regressed"}
    assert next_step(night, "S") == f"see the kernels: python -m ci static --set smoke --case '{CASE}' --arch sm_90"
    worst = night.verdicts[0]
    assert (worst.metric, worst.gated) == ("barriers", True)
    assert worst.reason == "exact value went from 1 to 2; lower is better; conv.py:25: barrier()"
    assert not next(item for item in night.verdicts if item.metric == "registers").gated


def test_another_compiler_is_another_series(static_night):
    static_night(compiled(figure("barriers", 1)))
    result, nights = static_night(compiled(figure("barriers", 2), triton="3.9.0"))
    assert result.code == Exit.PASS
    assert verdicts(nights["sm_90"]) == {"barriers": "new"}


def test_what_does_not_compile_makes_its_architecture_invalid_alone(static_night):
    broken = figure("barriers", None, status="failed", reason="does not compile: SIGABRT")
    result, nights = static_night(compiled(broken), compiled(figure("barriers", 2), arch="sm_103"))
    assert result.code == Exit.INVALID
    assert {model: night.exit_code for model, night in nights.items()} == {"nvidia-h200": 0, "sm_90": 4, "sm_103": 0}
    assert "SIGABRT" in nights["sm_90"].verdicts[0].reason


def test_a_missing_tool_is_named_and_the_rest_of_the_night_goes_on(static_night):
    result, nights = static_night(compiled(figure("code_bytes", 1)), problems="nvdisasm is missing from Triton")
    assert result.code == Exit.BROKEN
    assert "not compiled or not read: nvdisasm is missing from Triton" in result.messages
    assert {night.exit_code for night in nights.values()} == {0}

    result, nights = static_night(refuses=True)
    assert result.code == Exit.BROKEN
    assert "nothing was compiled: no Triton here" in result.messages
    assert set(nights) == {"nvidia-h200"}


def test_a_resumed_night_compiles_nothing_again(static_night):
    first, _ = static_night(compiled(figure("barriers", 1)), measured=lambda: [*make_records()[:4], None])
    assert first.code == Exit.INVALID
    again, nights = static_night(measured=make_records, resume=True)
    assert again.code == Exit.PASS
    assert nights["sm_90"].exit_code == 0
    assert len(static_night.ran()) == 1


def test_the_night_asks_for_its_own_cases_and_archs(static_night):
    static_night(compiled(figure("barriers", 1)), pattern="*_b32_*", commit="0123abcd")
    (ran,) = static_night.ran()
    assert "--case kimi_k3_tp8_b[138]*_t8_a3.84_* --case *_b32_* --arch sm_90,sm_100,sm_103 --records" in ran
    assert "--commit 0123abcd" in ran


def test_a_night_without_a_case_of_the_selection_compiles_nothing_and_is_no_worse(static_night, fake_night):
    result, nights = static_night(refuses=True, code=3)
    assert result.code == Exit.PASS
    assert set(nights) == {"nvidia-h200"}
    assert "nothing to compile: no case of this night matches kimi_k3_tp8_b[138]*" in progress(fake_night)


def test_without_processes_that_measure_the_night_is_invalid_whatever_was_compiled(static_night):
    result, nights = static_night(compiled(figure("barriers", 1)), measured=lambda: [None, None])
    assert result.code == Exit.INVALID
    assert set(nights) == {"sm_90"}
    assert result.messages[0].startswith("no process left a record that can be read")


def test_the_shipped_selection_is_as_small_as_promised():
    config = load_nightly(NIGHTLY_FILE).static
    jobs = plan(select("nightly", config.case), config.archs).jobs
    assert {job.arch for job in jobs} == {"sm_90", "sm_100", "sm_103"}
    assert 40 <= len(jobs) <= config.max_compilations == 64
