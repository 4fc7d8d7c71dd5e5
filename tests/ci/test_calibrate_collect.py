"""Collections of prepared processes: the order they run in, what marks their records, what is refused and resumed."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.harness.records import Calibration
from benchmarks.harness.store import Store
from ci.__main__ import app
from ci.calibrate.collect import Asked, collect, schedule
from ci.exits import Exit, UsageError
from ci.gpus import Gpu
from ci.measuring import Measuring
from ci.session import load
from tests.ci.nights import make_record, make_records, timed

DELAYS = (1.0, 2.0, 5.0)
MARK = Calibration(collection="20261129T000000Z-01234567-abcdef")


@pytest.fixture
def one_gpu(monkeypatch):
    for module in ("ci.nightly", "ci.calibrate.collect"):
        monkeypatch.setattr(f"{module}.find_gpus", lambda: [Gpu("GPU-1", "NVIDIA H200")])
    monkeypatch.setattr("ci.nightly.require_usable", lambda gpu: None)


@pytest.fixture
def run(fake_night):
    def collecting(found=(), do=None, **changes):
        fake_night.prepare(found, do)
        options = replace(fake_night.options, fork="yes", processes=changes.pop("processes", 2))
        asked = {name: changes.pop(name) for name in ("delays", "each", "max_minutes") if name in changes}
        with (fake_night.tmp / "progress.txt").open("w") as file:
            return collect(Asked(replace(options, **changes), **asked), Console(file=file, width=200))

    return collecting


def test_schedule_has_every_process_once_in_the_same_order_for_the_same_seed():
    seeds, delays = schedule(7, 24, DELAYS, 6)

    assert len(set(seeds)) == len(seeds) == 42
    assert Counter(delays.values()) == dict.fromkeys(DELAYS, 6)
    assert (seeds, delays) == schedule(7, 24, DELAYS, 6)
    assert seeds != schedule(8, 24, DELAYS, 6)[0]


@pytest.mark.parametrize("seed", range(5))
def test_half_a_schedule_holds_about_half_of_each_kind(seed):
    seeds, delays = schedule(seed, 24, DELAYS, 6)
    half = Counter(delays.get(one) for one in islice(seeds, 21))

    assert 10 <= half[None] <= 14
    assert all(2 <= half[pct] <= 4 for pct in DELAYS)


def test_each_process_leaves_one_record_and_no_night(run, fake_night, one_gpu):
    done = run(make_records((100.0, 102.0, 100.1, 102.1)), delays=(2.0,), each=2)

    assert (done.code, done.done, done.total) == (Exit.PASS, 4, 4)
    assert len(fake_night.stored()) == 4
    assert Store(fake_night.store).nights() == []
    assert "2 as they are, 2 +2 %" in done.messages[-1]


def test_processes_are_told_their_delay_and_their_collection(run, fake_night, one_gpu, monkeypatch):
    arguments = []
    whole = Measuring._arguments
    monkeypatch.setattr(Measuring, "_arguments", lambda *a: arguments.append(whole(*a)) or arguments[-1])
    done = run(make_records((100.0, 102.0)), processes=1, delays=(2.0,), each=1)

    told = sorted(" ".join(one[one.index("--lean") :]) for one in arguments)
    plain = f"--lean --collection {done.collection}"
    assert told == [plain, f"{plain} --delay-pct 2"]


def test_collection_that_ran_out_of_minutes_goes_on(run, fake_night, one_gpu):
    first = run(max_minutes=0.0)
    second = run(make_records((100.0, 100.1)), resume=True)

    assert (first.code, first.done) == (Exit.PASS, 0)
    assert "go on, on the same start of the same machine: python -m ci calibrate collect" in first.messages[-1]
    assert (second.code, second.done, second.collection) == (Exit.PASS, 2, first.collection)


def test_interrupted_collection_keeps_what_it_has_and_goes_on(run, fake_night, one_gpu):
    first = run(make_records((100.0, 100.1)), do={1: "interrupt"}, fork="no")
    second = run(make_records((100.1,)), resume=True)

    assert (first.code, first.done) == (Exit.INTERRUPTED, 1)
    assert "1 of 2 processes are in" in first.messages[1]
    assert (second.code, second.done) == (Exit.PASS, 2)
    assert len(fake_night.stored()) == 2


def test_process_without_a_record_is_told_and_can_be_run_again(run, one_gpu):
    first = run([make_record([timed(100.0)]), None])
    second = run([make_record([timed(100.0)])], resume=True)

    assert (first.code, first.done) == (Exit.INVALID, 1)
    assert (second.code, second.done) == (Exit.PASS, 2)


def test_delays_without_a_gpu_are_refused(run):
    with pytest.raises(UsageError, match="expected a GPU, whose windows become longer"):
        run(delays=(2.0,), each=1)


def test_night_and_collection_do_not_resume_each_other(run, fake_night, one_gpu):
    run(max_minutes=0.0)
    with pytest.raises(UsageError, match="holds a collection"):
        fake_night.night([], resume=True)

    state = load(fake_night.options.out)
    night = msgspec.structs.replace(state.plan, delays=None)
    (fake_night.options.out / "night-state.json").write_bytes(msgspec.json.encode({"plan": night, "records": {}}))
    with pytest.raises(UsageError, match="holds no collection"):
        run(resume=True)


def test_no_night_takes_a_calibrated_process_for_a_measurement(fake_night):
    found = [msgspec.structs.replace(record, calibration=MARK) for record in make_records()]
    result = fake_night.night(found)

    assert result.code == Exit.INVALID
    assert not result.nights[0].accepted
    assert "was taken for calibration" in " ".join(result.nights[0].notes)


def test_dry_run_says_what_would_run_and_starts_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr("subprocess.Popen", lambda *a, **k: pytest.fail(f"started {a}"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    arguments = ["--processes", "24", "--each", "6", "--dry-run", "--store", str(tmp_path)]
    result = CliRunner().invoke(app, ["calibrate", "collect", *arguments], catch_exceptions=False)

    assert result.exit_code == 0
    assert "processes_per_gpu: 54" in result.output
    assert "slowed: 6 processes for each of 1,2,3,5,10 %" in result.output


@pytest.mark.parametrize("delays", ["two", "0", "2,2", "200"])
def test_delays_that_are_no_percentages_are_refused(delays):
    result = CliRunner().invoke(app, ["calibrate", "collect", "--delays", delays, "--each", "1"])

    assert result.exit_code == 2
    assert "expected different percentages" in result.output
