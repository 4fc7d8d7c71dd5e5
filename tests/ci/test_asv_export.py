"""Records as asv's results; asv itself reads and compares what was written."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import msgspec
import pytest
from typer.testing import CliRunner

from benchmarks.harness.records import Environment, PeerFacts, Subject
from benchmarks.harness.store import open_store
from ci.__main__ import app
from ci.asv_export import benchmark_name, counted_records, export, read_counted
from ci.exits import BrokenEnvironmentError, MissingDataError
from tests.ci.nights import CASE, ENVIRONMENT, QUIET, exact, make_case, make_record, timed
from tests.ci.stores import LEVELS, MadeNight, leave_out, make_night, put_at_url, store_nights

VERIFY = "kimi_k3_tp8.verify.recoverssm.device.graph_cold"
CACHE = "kimi_k3_tp8.state.recoverssm.cache.exact"


@pytest.fixture
def repo(tmp_path):
    """A repository with two commits, the older one first."""
    folder = tmp_path / "repo"
    folder.mkdir()

    def git(*arguments):
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
        command = ["git", "-C", str(folder), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet", "--initial-branch=main")
    commits = []
    for message in ("one", "two"):
        git("commit", "--quiet", "--allow-empty", "--message", message)
        commits.append(git("rev-parse", "HEAD"))
    return folder, commits


def records_of(commit, values=QUIET, **changes):
    subject = Subject(commit=commit, source_hash="abc", version="0.1.0", dirty=False)
    return [make_record([timed(value), exact(1000.0)], subject=subject, **changes) for value in values]


def rows(path):
    results = json.loads(Path(path).read_text())
    columns = results["result_columns"]
    return results, {name: dict(zip(columns, row, strict=True)) for name, row in results["results"].items()}


def test_one_sample_of_asv_is_one_of_our_processes(repo, tmp_path):
    folder, (commit, _) = repo

    done = export(records_of(commit), tmp_path / "results", folder)

    (path,) = done.results
    results, found = rows(path)
    assert found[VERIFY]["samples"] == [[value * 1e-6 for value in QUIET]]
    assert found[VERIFY]["result"] == [median(QUIET) * 1e-6]
    assert (found[VERIFY]["stats_repeat"], found[VERIFY]["stats_number"]) == ([len(QUIET)], [1])
    assert found[VERIFY]["params"] == [["32"], ["8"], ["'fp32'"], ["3.84"]]
    assert (found[CACHE]["result"], found[CACHE]["samples"]) == ([1000.0], [None])
    assert results["commit_hash"] == commit
    assert results["params"]["gpu"] == "nvidia-h200"
    assert results["env_vars"]["driver"] == "580.1"
    assert path.parent.name == "nvidia-h200"


def test_times_of_other_projects_are_no_benchmarks_of_our_commits(repo, tmp_path):
    folder, (commit, _) = repo
    peers = [PeerFacts(name="theirs")]
    found = [
        msgspec.structs.replace(one, measurements=[*one.measurements, timed(9.0, provider="theirs")], peers=peers)
        for one in records_of(commit)
    ]

    assert export(found, tmp_path / "results", folder).benchmarks == [CACHE, VERIFY]


def test_a_shortened_commit_is_the_commit_it_is_short_for(repo, tmp_path):
    folder, (commit, _) = repo

    done = export([*records_of(commit[:10], [100.0]), *records_of(commit, [102.0])], tmp_path / "results", folder)

    (path,) = done.results
    results, found = rows(path)
    assert results["commit_hash"] == commit
    assert found[VERIFY]["samples"] == [[100.0 * 1e-6, 102.0 * 1e-6]]


@pytest.mark.parametrize("name", ["main", "HEAD~1", "--output={folder}/written"])
def test_a_commit_that_is_no_hash_is_left_out_and_git_is_not_asked(repo, tmp_path, name):
    folder, (commit, _) = repo
    name = name.format(folder=folder)

    done = export([*records_of(commit), *records_of(name, [1.0], id="odd")], tmp_path / "results", folder)

    assert done.left_out == [f"odd: {name} is not in git here"]
    assert not list(folder.glob("written*"))


def test_writing_again_changes_nothing(repo, tmp_path):
    folder, (commit, _) = repo
    records = records_of(commit)
    export(records, tmp_path / "results", folder)
    before = {path: path.read_bytes() for path in (tmp_path / "results").rglob("*.json")}

    export(records, tmp_path / "results", folder)

    assert {path: path.read_bytes() for path in (tmp_path / "results").rglob("*.json")} == before


def test_bytes_saved_and_capacity_stay_here_because_more_is_better(repo, tmp_path):
    folder, (commit, _) = repo
    saved = exact(5.0, metric="memory_saved_bytes")

    done = export([*records_of(commit), *_records([saved], commit)], tmp_path / "results", folder)

    assert done.benchmarks == sorted([VERIFY, CACHE])


def _records(measurements, commit, **changes):
    subject = Subject(commit=commit, source_hash="abc", version="0.1.0", dirty=False)
    return [make_record(measurements, subject=subject, **changes)]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_refused_by_name(repo, tmp_path, value):
    folder, (commit, _) = repo

    with pytest.raises(ValueError, match=f"device_us/verify/recoverssm/{CASE}/graph-cold: expected a finite value"):
        export(_records([timed(value)], commit), tmp_path / "results", folder)

    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("status", "shown"), [("failed", None), ("invalid", None), ("skipped", math.nan)], ids=["failed", "invalid", "n/a"]
)
def test_failed_is_null_and_skipped_is_nan(repo, tmp_path, status, shown):
    folder, (commit, _) = repo
    done = export(_records([timed(None, status=status), exact(1.0)], commit), tmp_path / "results", folder)

    result = rows(done.results[0])[1][VERIFY]["result"]

    assert repr(result) == repr([shown])


def test_one_failed_process_fails_the_series(repo, tmp_path):
    folder, (commit, _) = repo
    records = records_of(commit) + _records([timed(None, status="failed")], commit)

    found = rows(export(records, tmp_path / "results", folder).results[0])[1]

    assert (found[VERIFY]["result"], found[VERIFY]["samples"]) == ([None], [None])


def test_a_case_that_was_never_measured_is_no_failure(repo, tmp_path):
    folder, (commit, _) = repo
    small, large = "kimi_k3_tp8_b1_t8_a3.84_fp32", "kimi_k3_tp8_b32_t8_a3.84_bf16"
    cases = [make_case(small, 1), msgspec.structs.replace(make_case(large), state_dtype="bf16")]
    measurements = [timed(10.0, case=small), timed(20.0, case=large)]

    done = export(_records(measurements, commit, cases=cases), tmp_path / "results", folder)

    found = rows(done.results[0])[1][VERIFY]
    assert found["params"] == [["1", "32"], ["8"], ["'bf16'", "'fp32'"], ["3.84"]]
    assert repr(found["result"]) == repr([math.nan, 10.0 * 1e-6, 20.0 * 1e-6, math.nan])


def test_exact_figures_that_differ_between_processes_are_refused(repo, tmp_path):
    folder, (commit, _) = repo

    with pytest.raises(ValueError, match="an exact figure differs between processes"):
        export(_records([exact(1.0)], commit) + _records([exact(2.0)], commit), tmp_path / "results", folder)


def test_environments_stay_apart_and_host_times_are_cut_by_the_host(repo, tmp_path):
    folder, (commit, _) = repo
    other = msgspec.structs.replace(ENVIRONMENT, driver="590.2")
    host = timed(5.0, metric="host_us", contract="host-dispatch")

    def export_with(*environments: Environment, measurement):
        records = [record for one in environments for record in _records([measurement], commit, environment=one)]
        return len(export(records, tmp_path / f"results{len(list(tmp_path.iterdir()))}", folder).results)

    moved = msgspec.structs.replace(ENVIRONMENT, os_kernel="6.2")
    assert export_with(ENVIRONMENT, other, measurement=timed(5.0)) == 2
    assert export_with(ENVIRONMENT, moved, measurement=timed(5.0)) == 1
    assert export_with(ENVIRONMENT, moved, measurement=host) == 2


def test_records_that_asv_could_only_show_wrongly_are_left_out_with_the_reason(repo, tmp_path):
    folder, (commit, _) = repo
    changed = make_record(
        [timed(1.0)], subject=Subject(commit=commit, source_hash="abc", version="0.1.0", dirty=True), id="changed"
    )
    nameless = make_record([timed(1.0)], subject=Subject(source_hash="abc", version="0.1.0"), id="nameless")
    unknown = _records([timed(1.0)], "f" * 40, id="unknown")[0]

    done = export([*records_of(commit), changed, nameless, unknown], tmp_path / "results", folder)

    assert done.left_out == [
        f"changed: measured changed sources, not {commit[:10]}",
        "nameless: names no commit",
        f"unknown: {'f' * 40} is not in git here",
    ]


def ids(*records):
    return {record.id for record in records}


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_night_that_passed_regressed_or_lost_a_case_goes_out(code):
    made = make_night(1, exit_code=code, accepted=code == 0)

    assert counted_records([made.night], ids(*made.records)) == (ids(*made.records), [])


def test_a_night_judged_invalid_is_left_out_with_the_number_of_its_records():
    good, bad = make_night(1), make_night(2, exit_code=4, accepted=False)

    counted, left_out = counted_records([good.night, bad.night], ids(*good.records, *bad.records))

    assert counted == ids(*good.records)
    assert left_out == [f"3 records of night {bad.night.id}, which was judged invalid"]


def test_a_record_that_a_later_night_counts_goes_out():
    made = make_night(1, exit_code=4, accepted=False)
    resumed = msgspec.structs.replace(made.night, id="later", exit_code=0)

    assert counted_records([made.night, resumed], ids(*made.records)) == (ids(*made.records), [])


def test_a_process_that_its_night_left_out_is_left_out():
    made = leave_out(make_night(1))

    assert counted_records([made.night], ids(*made.records)) == (
        ids(*made.records[1:]),
        [f"1 record that night {made.night.id} left out"],
    )


def test_records_that_no_night_counts_are_left_out_with_their_number():
    made = make_night(1)
    night = msgspec.structs.replace(made.night, records=made.night.records[1:])

    counted, left_out = counted_records([night], ids(*made.records))

    assert counted == ids(*made.records[1:])
    assert left_out == ["1 record that no night counts"]


def test_of_a_store_the_newest_nights_are_read_and_the_records_that_go_out(tmp_path, monkeypatch):
    made = [make_night(day) for day in range(1, 6)]
    made[4] = MadeNight(msgspec.structs.replace(made[4].night, exit_code=4, accepted=False), made[4].records)
    made[3] = leave_out(made[3])
    url, asked = put_at_url(store_nights(tmp_path / "store", *made), tmp_path, monkeypatch)

    records, left_out = read_counted(open_store(url, writable=False), 3)

    wanted = [*made[2].records, *made[3].records[1:]]
    assert list(records) == wanted
    assert [line.partition(" night")[0] for line in left_out] == ["1 record that", "3 records of"]
    assert sorted(Path(name).name for name in asked if name.startswith("records/")) == [
        f"{one.id}.json" for one in wanted
    ]
    assert len([name for name in asked if name.startswith("nights/")]) == 3


def test_the_command_leaves_invalid_nights_out_and_says_how_many_records(repo, tmp_path, monkeypatch):
    folder, (commit, _) = repo
    monkeypatch.setattr("ci.setup_venv.ROOT", folder)
    store = tmp_path / "store"
    store_nights(
        store, make_night(1, commit=commit), make_night(2, commit=commit, exit_code=4, accepted=False, levels=[900.0])
    )

    done = CliRunner().invoke(
        app, ["asv-export", "--store", str(store), "--results-dir", str(tmp_path / "results"), "--json"]
    )

    facts = json.loads(done.output)
    assert [line for line in facts["left_out"] if "judged invalid" in line] == [
        f"1 record of night 20261102T090000Z-{commit[:8]}-000009, which was judged invalid"
    ]
    (path,) = facts["results"]
    assert rows(path)[1][VERIFY]["samples"] == [[value * 1e-6 for value in LEVELS]]


def test_nothing_but_invalid_nights_is_missing_data_with_the_reason(repo, tmp_path):
    bad = make_night(2, exit_code=4, accepted=False)
    records, left_out = read_counted(store_nights(tmp_path / "store", bad), 400)

    with pytest.raises(MissingDataError, match="judged invalid"):
        export(records, tmp_path / "results", repo[0], left_out)


def test_nothing_to_export_is_missing_data_with_the_reasons(repo, tmp_path):
    with pytest.raises(MissingDataError, match=r"unknown: f+ is not in git here"):
        export(_records([timed(1.0)], "f" * 40, id="unknown"), tmp_path / "results", repo[0])


def test_what_asv_measured_in_the_same_folder_is_kept(repo, tmp_path):
    folder, (commit, _) = repo
    results = tmp_path / "results"
    results.mkdir()
    (results / "benchmarks.json").write_text('{"bench_x.track_y": {"name": "bench_x.track_y"}, "version": 2}')

    export(records_of(commit), results, folder)

    assert set(json.loads((results / "benchmarks.json").read_text())) == {"bench_x.track_y", VERIFY, CACHE, "version"}


@pytest.mark.parametrize("text", ["{", '{"version": 1}', "[]"])
def test_a_folder_of_another_kind_is_refused(repo, tmp_path, text):
    folder, (commit, _) = repo
    results = tmp_path / "results"
    results.mkdir()
    (results / "benchmarks.json").write_text(text)

    with pytest.raises(BrokenEnvironmentError, match=r"benchmarks\.json"):
        export(records_of(commit), results, folder)


def test_a_case_without_sizes_in_its_name_keeps_its_name():
    assert benchmark_name(timed(1.0, case="mixed")) == "mixed.verify.recoverssm.device.graph_cold"


def test_cases_with_the_unbounded_gate_are_a_benchmark_of_their_own():
    unbounded = timed(1.0, case="kimi_k3_tp8_b32_t8_a4.00_bf16_unbounded")
    assert benchmark_name(unbounded) == "kimi_k3_tp8_unbounded.verify.recoverssm.device.graph_cold"


def test_asv_publishes_and_compares_exported_nights(repo, tmp_path):
    folder, (old, new) = repo
    records = records_of(old) + records_of(new, [1.5 * value for value in QUIET])
    export(records, tmp_path / "results", folder)
    config = {
        "version": 1,
        "project": "test",
        "repo": str(folder),
        "branches": ["HEAD"],
        "environment_type": "existing",
    }
    config |= {"results_dir": str(tmp_path / "results"), "html_dir": str(tmp_path / "html")}
    (tmp_path / "asv.conf.json").write_text(json.dumps(config))
    environment = {**os.environ, "HOME": str(tmp_path), "COLUMNS": "200"}

    def asv(*arguments):
        command = [sys.executable, "-m", "asv", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shown = asv("compare", old, new, "--machine", "nvidia-h200")
    (line,) = [one for one in shown.splitlines() if f"{VERIFY}(32, 8, 'fp32', 3.84)" in one]
    assert line.startswith("| + ")  # worse, and asv's own statistics say so
    assert "100±" in line
    assert "150±" in line
    assert " 1.5 " in line
    asv("publish")
    index = json.loads((tmp_path / "html/index.json").read_text())
    assert set(index["benchmarks"]) == {VERIFY, CACHE}
    assert len(index["revision_to_hash"]) == 2
