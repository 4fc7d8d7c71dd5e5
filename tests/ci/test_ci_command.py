"""The command line: help, previews that start nothing, errors with their exit codes, and what a night prints."""

import json
import re

import msgspec
import pytest
from typer.testing import CliRunner

from benchmarks.cases import SETS
from benchmarks.harness import records
from benchmarks.harness.errors import CorruptRecordError, RemoteError
from ci import doctor
from ci.__main__ import app
from ci.exits import BrokenEnvironmentError, Exit
from ci.nightly import Result
from ci.options import COMMAND
from ci.show import next_step, show_night
from tests.ci.clusters import FILE
from tests.ci.nights import QUIET, make_record, make_records, timed
from tests.ci.stores import make_night, put_at_url, store_nights


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("RECOVERSSM_LOCK_DIR", str(tmp_path / "locks"))


@pytest.fixture
def no_process(monkeypatch):
    monkeypatch.setattr("subprocess.Popen", lambda *a, **k: pytest.fail(f"started {a}"))


@pytest.mark.parametrize(
    "command",
    [
        *([], ["nightly"], ["doctor"], ["history"], ["calibrate"], ["calibrate", "collect"]),
        *([name] for name in ("compare", "backfill", "bisect", "reproduce", "trends")),
    ],
    ids=" ".join,
)
def test_help_has_an_example_and_no_boxes(command):
    result = invoke(*command, "--help")

    assert result.exit_code == 0
    assert " ".join(["python -m ci", *command]) in result.output.split("Example")[1]
    assert not re.search("[│╭]", result.output)


def test_list_names_the_cases_and_starts_nothing(no_process):
    result = invoke("nightly", "--set", "smoke", "--list", "--json")

    assert [case["name"] for case in json.loads(result.output)["cases"]] == [case.name for case in SETS["smoke"]]


def test_list_without_a_set_names_every_set_with_its_cases(no_process):
    result = invoke("nightly", "--list", "--json")

    found = {one["set"]: [case["name"] for case in one["cases"]] for one in json.loads(result.output)["sets"]}
    assert found == {name: [case.name for case in cases] for name, cases in SETS.items()}


def test_list_of_all_sets_leaves_out_those_without_a_match(no_process):
    result = invoke("nightly", "--list", "--case", "*_t3_a2.73_*")

    assert [line for line in result.output.splitlines() if line.startswith("set")] == ["set: smoke", "set: nightly"]
    assert invoke("nightly", "--list", "--case", "*zzz*").exit_code == Exit.MISSING


@pytest.mark.parametrize("commit", ["--no-page", "main", ""])
def test_night_of_a_commit_that_is_no_hash_is_refused_before_anything_starts(no_process, commit):
    result = invoke("nightly", "--set", "smoke", "--dry-run", "--commit", commit)

    assert result.exit_code == Exit.USAGE
    assert f"Invalid value for '--commit': expected 7 to 40 hex digits, got {commit!r}" in " ".join(
        result.output.split()
    )


@pytest.mark.parametrize("option", ["--dry-run", "--estimate", "--resume"])
def test_all_but_list_need_a_set_and_say_so(no_process, option):
    result = invoke("nightly", option)

    assert result.exit_code == Exit.USAGE
    assert (
        "--set: expected one of smoke, pr, nightly, roofline, league, published; --list without --set" in result.output
    )


@pytest.mark.parametrize(
    ("raised", "code"), [(RemoteError("s3://b: away"), Exit.BROKEN), (CorruptRecordError("x.json: cut"), Exit.INVALID)]
)
def test_a_store_that_fails_is_told_and_is_no_mistake_of_this_program(monkeypatch, raised, code):
    def fail(*_, **__):
        raise raised

    monkeypatch.setattr("ci.history.layout.open_store", fail)
    result = invoke("history", "query", "--store", "s3://b")

    assert (result.exit_code, result.output) == (code, f"error: {raised}\n")


@pytest.fixture
def fleet_file(tmp_path):
    (tmp_path / "fleet.toml").write_text(FILE)
    return str(tmp_path / "fleet.toml")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--executor", "slurm"], "--fleet: expected a file"),
        (["--executor", "slurm", "--fleet", "FILE", "--shard", "1/2"], "--shard: on a cluster"),
        (["--fleet", "FILE"], "--fleet: expected with --executor slurm alone"),
        (["--executor", "k8s"], "expected local or slurm, got 'k8s'"),
    ],
)
@pytest.mark.parametrize("also", [[], ["--dry-run"]], ids=["run", "dry"])
def test_options_of_a_cluster_that_do_not_fit_are_refused(no_process, fleet_file, arguments, said, also):
    result = invoke("nightly", "--set", "smoke", *(fleet_file if one == "FILE" else one for one in arguments), *also)

    assert result.exit_code == Exit.USAGE
    assert said in result.output


def test_dry_run_of_a_fleet_tells_its_pools_and_reads_its_file(no_process, fleet_file, tmp_path):
    command = ["nightly", "--set", "smoke", "--executor", "slurm", "--fleet", fleet_file, "--dry-run", "--json"]
    result = invoke(*command, "--store", str(tmp_path / "s"))

    pool = {"partition": "gpu", "gres": None, "shards": 2, "cases": "3+3", "at_most_min": 60}
    assert json.loads(result.output)["gpus"] == {"h200": pool}

    (tmp_path / "fleet.toml").write_text(FILE.replace("shards = 2", "shards = 7"))
    assert "pool h200: 7 shards of 6 cases" in invoke(*command).output


def test_dry_run_says_what_would_run_and_starts_nothing(no_process, tmp_path):
    result = invoke(
        "nightly", "--set", "pr", "--case", "*_b32_*", "--dry-run", "--json", "--store", str(tmp_path / "s")
    )

    facts = json.loads(result.output)
    assert facts["num_cases"] == 2
    assert facts["processes_per_gpu"] == 5
    assert "--case '*_b32_*'" in facts["command"]
    assert not (tmp_path / "s").exists()


def test_estimate_is_from_the_last_night_and_grows_with_processes(fake_night):
    fake_night.night(make_records(duration_s=4.0))

    result = invoke(
        "nightly", "--set", "smoke", "--estimate", "--json", "--store", str(fake_night.store), "--processes", "10"
    )

    seconds = json.loads(result.output)["estimate"]["nvidia-h200"]["seconds_per_gpu"]
    assert seconds == pytest.approx(4.0 * len(SETS["smoke"]) * 10)  # the record has one case


def test_unknown_set_exits_2_with_the_known_ones():
    result = invoke("nightly", "--set", "smok", "--list")

    assert result.exit_code == Exit.USAGE
    assert "smoke, pr, nightly" in result.output


def test_unknown_case_exits_2_with_the_known_ones():
    result = invoke("nightly", "--set", "smoke", "--case", "kimi_k3", "--json")

    assert result.exit_code == Exit.USAGE
    assert SETS["smoke"][0].name in result.output


@pytest.mark.parametrize(
    ("asked", "said"),
    [(("--providers", "theirs"), "(vllm_recoverssm, "), (("--provider", "gone.py:X"), "of a file that is there, got")],
)
def test_a_kernel_that_nobody_has_is_refused_before_anything_starts(no_process, asked, said):
    result = invoke("nightly", "--set", "smoke", *asked)

    assert result.exit_code == Exit.USAGE
    assert said in " ".join(result.output.split())


def test_nothing_selected_exits_3():
    assert invoke("nightly", "--set", "smoke", "--case", "*zzz*").exit_code == Exit.MISSING


def test_night_is_one_json_object_with_its_exit_code(fake_night, monkeypatch):
    night = fake_night.night(make_records())
    monkeypatch.setattr("ci.nightly.run_nightly", lambda options, console: night)

    result = invoke("nightly", "--set", "smoke", "--json")

    found = json.loads(result.stdout)
    assert result.exit_code == found["exit_code"] == 0
    assert {v["verdict"] for v in found["nights"][0]["verdicts"]} == {"new"}


def test_exit_code_of_a_night_is_that_of_the_command(monkeypatch):
    monkeypatch.setattr("ci.nightly.run_nightly", lambda options, console: Result(Exit.INTERRUPTED, messages=["kept"]))

    result = invoke("nightly", "--set", "smoke")

    assert result.exit_code == 130
    assert "kept" in result.stdout


def test_broken_environment_is_an_error_with_a_next_step(monkeypatch):
    def broken(options, console):
        raise BrokenEnvironmentError("GPU GPU-1: in use by pid 7", "wait for it")

    monkeypatch.setattr("ci.nightly.run_nightly", broken)

    result = invoke("nightly", "--set", "smoke", "--json")

    assert result.exit_code == Exit.BROKEN
    assert json.loads(result.stdout) == {"exit_code": 5, "error": "GPU GPU-1: in use by pid 7", "next": ["wait for it"]}
    assert "next: wait for it" in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(28, "No space left on device"), 5, "No space left"),
        (ModuleNotFoundError("No module named 'scipy'"), 5, "python -m ci doctor"),
        (ZeroDivisionError("oops"), 5, "a mistake in this program: ZeroDivisionError: oops"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_no_error_exits_1_which_would_mean_regressed(monkeypatch, error, code, said):
    def broken(options, console):
        raise error

    monkeypatch.setattr("ci.nightly.run_nightly", broken)

    result = invoke("nightly", "--set", "smoke")

    assert result.exit_code == code
    assert said in result.stderr


def test_measuring_process_is_the_benchmarks_command():
    assert COMMAND[1:] == ("-m", "benchmarks.run")


class TestTable:
    def shown(self, night, console_factory, **options):
        console, read = console_factory
        show_night(night, console, **options)
        return read()

    @pytest.fixture
    def plain(self, tmp_path):
        from rich.console import Console

        file = (tmp_path / "table.txt").open("w+")
        yield Console(file=file, width=80), lambda: (file.seek(0), file.read())[1]
        file.close()

    def test_many_findings_are_counted_sorted_and_cut_with_a_word(self, fake_night, plain):
        before = [make_record([timed(v, op=f"op{i:03}") for i in range(60)]) for v in QUIET]
        after = [make_record([timed(v * (1.5 if i == 59 else 1.1), op=f"op{i:03}") for i in range(60)]) for v in QUIET]
        fake_night.night(before)
        night = fake_night.night(after).nights[0]

        text = self.shown(night, plain, rows=40)

        rows = [line for line in text.splitlines() if line.startswith("regressed ")]
        assert "60 series: 60 regressed" in text
        assert "40 of 60 shown, strongest evidence first" in text
        assert len(rows) == 40
        assert "op059" in rows[0]

    def test_what_is_not_gated_is_counted_apart(self, fake_night, plain):
        peers = [records.PeerFacts(name="theirs")]
        theirs = timed(None, provider="theirs", status="failed", reason="wrong")
        night = fake_night.night([make_record([timed(v), theirs], peers=peers) for v in QUIET]).nights[0]

        assert "2 series: 1 new; not gated: 1 invalid" in self.shown(night, plain)

    def test_lines_are_whole_whatever_the_width(self, fake_night, plain):
        fake_night.night(make_records())
        night = fake_night.night(make_records([2 * v for v in QUIET])).nights[0]

        text = self.shown(night, plain)

        assert "device_us/verify/recoverssm/kimi_k3_tp8_b32_t8_a3.84_fp32/graph-cold 200 us +100.00 %:" in text

    def test_new_and_unchanged_series_are_counted_but_not_listed(self, fake_night, plain):
        night = fake_night.night(make_records()).nights[0]

        text = self.shown(night, plain)

        assert f"{len(night.verdicts)} new" in text
        assert "graph-cold" not in text

    def test_regression_says_how_to_measure_it_again(self, fake_night):
        fake_night.night(make_records())
        night = fake_night.night(make_records([2 * v for v in QUIET])).nights[0]

        step = next_step(night, "S")

        assert "--case 'kimi_k3_tp8_b32_t8_a3.84_fp32' --processes 12 --store S" in step

    def test_night_that_lacks_a_shard_says_how_it_comes_in(self, fake_night):
        night = msgspec.structs.replace(fake_night.night(make_records()).nights[0], lacks=["2/3"], exit_code=3)

        assert next_step(night, "S") == (
            "bring shard 2/3 in: python -m ci history import SRC --store S; or measure it; then merge again"
        )

    def test_every_alarm_says_how_to_measure_it_again(self, fake_night, plain):
        fake_night.night(make_records())
        night = fake_night.night(make_records([2 * v for v in QUIET])).nights[0]

        series = "--case kimi_k3_tp8_b32_t8_a3.84_fp32 --op verify --metric device_us"
        assert f"  again: python -m ci reproduce {night.id} {series}\n" in self.shown(night, plain)


class TestDoctor:
    def test_machine_without_a_gpu_can_run_the_nightly(self, tmp_path):
        result = invoke("doctor", "--json", "--store", str(tmp_path / "store"))

        found = json.loads(result.output)
        assert result.exit_code == found["exit_code"] == 0
        assert {f["level"] for f in found["findings"]} <= {"ok", "limited"}
        assert any("on the CPU" in what for what in found["will_run"])
        assert any("device times" in what for what in found["will_not_run"])

    def test_absent_nvml_is_no_ok(self, tmp_path, quick):
        result = invoke("doctor", "--json", "--store", str(tmp_path / "store"))

        nvml = next(f for f in json.loads(result.output)["findings"] if f["name"] == "nvml")
        assert (nvml["level"] == "ok") == nvml["found"].startswith("driver ")
        assert nvml["level"] == "ok" or "no GPU to watch" in nvml["found"]

    def test_missing_package_is_named_with_its_repair_and_exits_5(self, monkeypatch, tmp_path, quick):
        real = doctor.importlib.util.find_spec
        monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name == "scipy" else real(name))

        result = invoke("doctor", "--store", str(tmp_path))

        assert result.exit_code == Exit.BROKEN
        assert re.search(r"BROKEN +scipy +not installed\n +fix: make setup", result.output)
        assert "will not run: the nightly, until this is repaired: scipy" in result.output

    def test_interpreter_that_fails_is_found(self, monkeypatch, tmp_path):
        monkeypatch.setattr(doctor, "ROOT", tmp_path)  # there is no probe there
        monkeypatch.setattr(
            doctor, "ask_torch", lambda env: doctor.importlib.import_module("ci.gpus").TorchView("2", None, (), None)
        )

        examination = doctor.examine(str(tmp_path))

        (finding,) = [f for f in examination.findings if f.name == "interpreter"]
        assert finding.level == "broken"
        assert "numpy" in finding.found

    def test_held_lock_is_named_and_torch_leaves_that_gpu_alone(self, monkeypatch, tmp_path, quick):
        from benchmarks.harness.lock import GpuLock
        from ci.gpus import Gpu

        monkeypatch.setattr(doctor, "find_gpus", lambda: [Gpu("GPU-1", "NVIDIA H200")])
        monkeypatch.setattr(doctor, "ask_torch", lambda env: pytest.fail("asked"))
        with GpuLock("GPU-1", command="a night"):
            examination = doctor.examine(str(tmp_path))

        levels = {f.name: (f.level, f.found) for f in examination.findings}
        assert levels["lock"][0] == levels["torch"][0] == "limited"
        assert "a night" in levels["lock"][1]

    def test_lock_that_cannot_be_kept_is_a_finding_and_not_the_end(self, monkeypatch, tmp_path, quick):
        from ci.gpus import Gpu

        (tmp_path / "locks").write_text("no folder")
        monkeypatch.setattr(doctor, "find_gpus", lambda: [Gpu("GPU-1", "NVIDIA H200")])
        monkeypatch.setattr(doctor, "ask_torch", lambda env: pytest.fail("asked"))

        found = {f.name: f for f in doctor.examine(str(tmp_path)).findings}

        assert (found["lock"].level, found["torch"].level) == ("broken", "limited")
        assert "no lock of GPU GPU-1 can be kept" in found["lock"].found

    def test_no_git_is_limited_and_says_how_to_name_the_commit(self, monkeypatch, tmp_path, quick):
        monkeypatch.setattr(doctor, "ROOT", tmp_path)

        (finding,) = [f for f in doctor.examine(str(tmp_path)).findings if f.name == "git"]

        assert finding.level == "limited"
        assert "--commit SHA" in finding.fix

    def test_branch_store_needs_a_repository(self, monkeypatch, tmp_path, quick):
        monkeypatch.chdir(tmp_path)

        (finding,) = [f for f in doctor.examine("branch:perf-history").findings if f.name == "store"]

        assert finding.level == "broken"
        assert "in no git repository" in finding.found

    @pytest.mark.parametrize(
        ("installed", "machine", "level", "found"),
        [
            ({"cuda.bench", "cuda.bindings"}, "x86_64", "ok", "cuda-bench of unknown version"),
            (
                {"cuda.bindings"},
                "x86_64",
                "limited",
                "cuda-bench is not installed: series under nvbench-cold are skipped",
            ),
            ({"cuda.bench"}, "x86_64", "limited", "without cuda-bindings"),
            (set(), "aarch64", "limited", "no wheel for aarch64"),
        ],
    )
    def test_nvbench_is_there_or_its_series_are_skipped(self, monkeypatch, installed, machine, level, found):
        monkeypatch.setattr(doctor, "_installed", installed.__contains__)
        monkeypatch.setattr(doctor, "_version", lambda _: "of unknown version")
        monkeypatch.setattr(doctor.platform, "machine", lambda: machine)

        finding = doctor._nvbench(on_gpu=True)

        assert finding.level == level
        assert found in finding.found

    def test_a_module_of_a_package_that_is_not_there_is_not_installed(self):
        assert doctor._installed("no_such_package.bench") is False
        assert doctor._installed("importlib.metadata") is True

    def test_damaged_store_is_named_and_left_as_it_is(self, fake_night, quick):
        night = fake_night.night(make_records()).nights[0]
        path = next(fake_night.store.rglob(f"nights/**/{night.id}.json"))
        path.write_text("{")

        (finding,) = [f for f in doctor.examine(str(fake_night.store)).findings if f.name == "store"]

        assert finding.level == "limited"
        assert night.id in finding.found
        assert path.read_text() == "{"

    @pytest.fixture
    def quick(self, monkeypatch):
        from ci.gpus import TorchView

        monkeypatch.setattr(doctor, "ask_torch", lambda env: TorchView("2.11", None, (), None))
        monkeypatch.setattr(doctor, "_interpreter", lambda: doctor.Finding("interpreter", "ok", "not tried"))


def test_a_preview_reads_the_last_night_alone(tmp_path, monkeypatch):
    url, asked = put_at_url(store_nights(tmp_path / "from", *map(make_night, range(1, 8))), tmp_path, monkeypatch)

    result = CliRunner().invoke(app, ["nightly", "--set", "smoke", "--dry-run", "--json", "--store", url])

    assert list(json.loads(result.stdout)["last_accepted"]) == ["nvidia-h200"]
    assert {name.split("/")[2][:8] for name in asked} == {"20261107"}
    assert len([name for name in asked if name.startswith("records")]) == 3
