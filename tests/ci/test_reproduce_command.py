"""From a verdict to the commands that measure it again."""

import json
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed
from typer.testing import CliRunner

from ci.__main__ import app
from ci.commits import reproduce as command
from ci.commits.stored import read_named
from ci.exits import BrokenEnvironmentError, MissingDataError
from tests.ci.nights import CASE, ENVIRONMENT, QUIET, make_record
from tests.ci.stores import MadeNight, make_night, store_nights

FIRST, SECOND = (f"{day:02d}{'0' * 38}" for day in (1, 2))


@pytest.fixture(autouse=True)
def same_machine(monkeypatch):
    monkeypatch.setattr("ci.commits.reproduce.collect_environment", lambda: ENVIRONMENT)


def of(tmp_path, name, *nights, **filters):
    store_nights(tmp_path / "store", *nights)
    return command.reproduce(read_named([str(tmp_path / "store")], [name], with_bases=True), name, **filters)


def judged(made, name, **facts):
    """The night with this verdict on its first series, most urgent."""
    first, *rest = made.night.verdicts
    night = changed(made.night, verdicts=[changed(first, verdict=name, **facts), *rest])
    return MadeNight(night, made.records)


def lines(found):
    return [str(step) for step in found.steps]


def test_slower_night_is_held_against_its_base_nights_commit_as_a_gate(tmp_path):
    base, slow = make_night(1, levels=QUIET), make_night(2, levels=QUIET)
    slow = judged(MadeNight(changed(slow.night, base_night=base.night.id), slow.records), "regressed")

    found = of(tmp_path, "latest", base, slow)

    out = f"out/reproduce/gate-{FIRST[:12]}-{SECOND[:12]}"
    assert lines(found) == [f"python -m ci gate --base {FIRST} --head {SECOND} --set smoke --case {CASE} --out {out}"]
    assert not found.differs


def test_night_of_the_base_nights_commit_is_measured_again_with_more_processes(tmp_path):
    base, slow = make_night(1, levels=QUIET), make_night(2, levels=QUIET, commit=FIRST)
    slow = judged(MadeNight(changed(slow.night, base_night=base.night.id), slow.records), "regressed")

    found = of(tmp_path, "latest", base, slow)

    assert f"ci nightly --set smoke --case {CASE} --processes 12" in lines(found)[-1]
    assert "same commit" in found.notes[-1]


def test_failed_check_is_run_with_the_seed_that_failed_in_a_checkout_of_its_commit(tmp_path):
    made = make_night(1, levels=QUIET)
    check = changed(make_record([]).checks[0], passed=False)
    records = [changed(record, seed=at, checks=[check] if at == 3 else []) for at, record in enumerate(made.records)]
    made = judged(MadeNight(made.night, records), "invalid")

    checkout, run = lines(of(tmp_path, "latest", made))

    assert checkout == f"git worktree add --detach out/reproduce/010000000000 {FIRST}"
    assert run.startswith("(cd out/reproduce/010000000000 && python -m benchmarks.run --set smoke")
    assert "--seed 3 " in run


def test_commit_that_is_checked_out_needs_no_other_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr("ci.commits.reproduce.commit_of", lambda folder: FIRST)

    found = of(tmp_path, "latest", judged(make_night(1, levels=QUIET), "invalid"))

    assert len(found.steps) == 1
    assert found.steps[0].folder is None


def test_unknown_commit_is_told(tmp_path):
    found = of(tmp_path, "latest", judged(make_night(1, levels=QUIET, commit=None), "invalid"))

    assert found.notes == ["the commit is unknown: this checkout is measured instead"]


def test_compiled_figure_needs_no_gpu(tmp_path):
    made = judged(make_night(1, levels=QUIET), "regressed", contract="static", metric="registers")

    found = of(tmp_path, "latest", made)

    assert not found.needs_gpu
    assert f"ci static --set smoke --case {CASE} --arch nvidia-h200" in lines(found)[-1]


def test_record_is_run_by_its_own_command(tmp_path):
    made = make_night(1, levels=QUIET)
    own = ["python", "-m", "benchmarks.run", "--set", "smoke", "--seed", "7", "--out", "7.json"]
    record = changed(made.records[0], command=own, seed=7)

    found = of(tmp_path, record.id, MadeNight(made.night, [record, *made.records[1:]]))

    assert list(found.steps[-1].argv) == [*own[:-1], f"{record.id}.json"]
    assert found.reason == "seed 7"


def test_a_record_with_a_kernel_in_a_file_says_that_its_folder_is_not_known(tmp_path):
    made = make_night(1, levels=QUIET)
    own = ["python", "-m", "benchmarks.run", "--provider", "mine.py:Mine", "--out", "7.json"]
    record = changed(made.records[0], command=own)

    found = of(tmp_path, record.id, MadeNight(made.night, [record, *made.records[1:]]))

    assert "folders are not recorded: give the path of each file that --provider names" in found.notes


def test_filters_choose_the_verdict_and_one_that_fits_none_says_so(tmp_path):
    found = of(tmp_path, "latest", make_night(1, levels=QUIET), op="commit")

    assert "device_us/commit/" in found.what
    with pytest.raises(MissingDataError, match="no verdict fits"):
        command.reproduce(read_named([str(tmp_path / "store")], ["latest"]), "latest", op="nothing")


def test_other_gpu_model_is_told_and_not_run_on(tmp_path, monkeypatch):
    here = changed(ENVIRONMENT, gpu_model="nvidia-h100", driver="9")
    monkeypatch.setattr("ci.commits.reproduce.collect_environment", lambda: here)

    found = of(tmp_path, "latest", make_night(1, levels=QUIET))

    assert found.differs == {"gpu_model": ("nvidia-h200", "nvidia-h100")}
    with pytest.raises(BrokenEnvironmentError, match="this machine has nvidia-h100"):
        command.run(found)


def test_steps_run_in_order_up_to_the_first_that_fails(tmp_path):
    found = of(tmp_path, "latest", make_night(1, levels=QUIET))
    program = "import sys; from pathlib import Path; Path(sys.argv[1]).touch(); sys.exit(int(sys.argv[2]))"
    steps = [
        command.Step(["python", "-c", program, str(tmp_path / name), code])
        for name, code in (("a", "0"), ("b", "4"), ("c", "0"))
    ]

    assert command.run(replace(found, steps=steps)) == 4
    assert [(tmp_path / name).exists() for name in "abc"] == [True, True, False]


def test_a_verdict_of_the_gate_that_is_judged_again_keeps_nobody_from_measuring_anew(tmp_path):
    found = of(tmp_path, "latest", make_night(1, levels=QUIET))

    def code(judged):
        steps = [
            command.Step(["python", "-c", f"raise SystemExit({judged})"], only_tells=True),
            command.Step(["python", "-c", "raise SystemExit(0)"]),
        ]
        return command.run(replace(found, steps=steps))

    assert [code(judged) for judged in (1, 3, 4)] == [0, 0, 0]
    assert [code(judged) for judged in (2, 5, 130)] == [2, 5, 130]


def test_gates_folder_is_judged_again_and_measured_anew(tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    one = {"op": "verify", "provider": "recoverssm", "metric": "device_us", "case": "x", "verdict": "regressed"}
    verdicts = [{**one, "op": op, "reproduce": f"python -m ci gate --base a --case {op}"} for op in ("conv", "verify")]
    sides = {"base": {"commit": "a" * 40}, "head": {"commit": "b" * 40}}
    result = {**sides, "reproduce": "python -m ci gate --base a", "verdicts": verdicts}
    (tmp_path / "verdict.json").write_text(json.dumps(result))

    def last(*filters):
        shown = CliRunner().invoke(app, ["reproduce", str(tmp_path), *filters])
        assert shown.exit_code == 0
        judge, measure = shown.output.splitlines()[-2:]
        assert judge == f"python -m ci gate judge {tmp_path}"
        return measure

    out = f"--out out/reproduce/gate-{'a' * 12}-{'b' * 12}"
    assert last() == f"python -m ci gate --base a --case conv {out}"
    assert last("--op", "verify") == f"python -m ci gate --base a --case verify {out}"
    assert last("--op", "commit") == f"python -m ci gate --base a {out}"

    (tmp_path / "verdict.json").write_text("{}")
    shown = CliRunner().invoke(app, ["reproduce", str(tmp_path)])
    assert shown.exit_code == 2
    assert "expected a gate's verdict: KeyError" in shown.output


def test_folder_that_is_no_gate_is_refused(tmp_path):
    shown = CliRunner().invoke(app, ["reproduce", str(tmp_path)])

    assert shown.exit_code == 2
    assert "plan.json" in shown.output


def test_json_has_argv_of_each_step(tmp_path):
    store_nights(tmp_path / "store", make_night(1, levels=QUIET))

    shown = CliRunner().invoke(app, ["reproduce", "latest", "--store", str(tmp_path / "store"), "--json"])

    assert json.loads(shown.stdout)["steps"][-1]["argv"][:3] == ["python", "-m", "ci"]
