"""What is left out on a command line that measures is the same for each of them."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from benchmarks.cases import SETS
from ci.__main__ import app
from ci.config import load_nightly
from ci.exits import UsageError
from ci.options import asked

NOTHING = {"processes": None, "seed": None, "fork": None, "gpus": None, "commit": None, "resume": False, "wait_s": 0.0}


def ask(**changes):
    facts = {"store": "out/store", "out": Path("out/nightly"), **NOTHING, **changes}
    return asked("smoke", "*", SETS["smoke"], **facts)


@pytest.fixture
def configured(monkeypatch):
    """A file that has nothing as the code would have it."""
    config = replace(load_nightly(), processes=7, fork="mixed", exclusive=True)
    monkeypatch.setattr("ci.options.load_nightly", lambda: config)


def test_what_is_left_out_is_as_the_file_has_it(configured):
    options = ask()

    assert (options.processes, options.fork, options.exclusive) == (7, "mixed", True)
    assert list(options.selected) == [case.name for case in SETS["smoke"]]


def test_what_is_said_counts(configured):
    options = ask(processes=2, fork="no", seed=0)

    assert (options.processes, options.fork, options.seed) == (2, "no", 0)
    with pytest.raises(UsageError, match="--fork: expected no, yes or mixed, got 'maybe'"):
        ask(fork="maybe")


def test_seed_is_drawn():
    assert len({ask().seed for _ in range(5)}) > 1


@pytest.mark.parametrize(
    ("command", "measured", "forked"),
    [
        (("nightly", "--set", "smoke"), "ci.nightly.run_nightly", "mixed"),
        (("neighbours", "--set", "smoke"), "ci.neighbours.measure_neighbours", "mixed"),
        (("calibrate", "collect", "--set", "smoke"), "ci.calibrate.collect.collect", "yes"),
    ],
)
def test_every_command_that_measures_holds_to_it(configured, monkeypatch, command, measured, forked):
    told = []

    def take(first, *_):
        told.append(getattr(first, "options", first))
        raise UsageError("nothing is measured here")

    monkeypatch.setattr(measured, take)
    CliRunner().invoke(app, [*command, "--seed", "3", "--wait", "60"])

    (options,) = told
    assert (options.fork, options.seed, options.wait_s, options.exclusive) == (forked, 3, 60.0, True)
