"""The command line: help, errors with their exit codes, and what a night ends with."""

import json
import re

import pytest

from benchmarks.harness.errors import CorruptRecordError, RemoteError
from ci.exits import BrokenEnvironmentError, Exit
from ci.nightly import Result
from ci.options import COMMAND
from tests.ci.command_line import invoke
from tests.ci.nights import make_records

pytestmark = pytest.mark.usefixtures("no_gpu")


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


@pytest.mark.parametrize(
    ("raised", "code"), [(RemoteError("s3://b: away"), Exit.BROKEN), (CorruptRecordError("x.json: cut"), Exit.INVALID)]
)
def test_a_store_that_fails_is_told_and_is_no_mistake_of_this_program(monkeypatch, raised, code):
    def fail(*_, **__):
        raise raised

    monkeypatch.setattr("ci.history.layout.open_store", fail)
    result = invoke("history", "query", "--store", "s3://b")

    assert (result.exit_code, result.output) == (code, f"error: {raised}\n")


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
