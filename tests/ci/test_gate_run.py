"""A gate that is cut short, goes on elsewhere, is judged twice: what it finds is the same."""

import json
import shutil

import pytest

from ci.exits import BrokenEnvironmentError, Exit, UsageError
from ci.gate import running
from ci.gate.judge import command, judge
from ci.gate.outputs import FILES
from ci.gate.plan import block_of
from ci.gate.result import encode as encode_result
from tests.ci.command_line import invoke
from tests.ci.gates import OTHER_CARD, kinds, library, slower


def test_blocks_alternate_and_pairs_share_their_seed():
    orders = set()
    for number in range(40):
        block = block_of(7, "screen", number)
        sides = [process.side for process in block]
        orders.add(tuple(sides))
        assert block == block_of(7, "screen", number)
        assert block[0].seed == block[1].seed != block[2].seed == block[3].seed
    assert orders == {("base", "head", "head", "base"), ("head", "base", "base", "head")}
    assert block_of(7, "screen", 0) != block_of(8, "screen", 0)


def test_a_run_that_is_cut_short_goes_on_and_finds_what_one_run_finds(fake_gate):
    base, head = fake_gate.commit(library()), fake_gate.commit(slower(10))
    whole = fake_gate.gate(base, head)
    folder = fake_gate.prepare(base, head, name="parts")

    assert fake_gate.run(folder, max_s=0.0) == Exit.INTERRUPTED
    assert kinds(judge(folder)) == {"unfinished"}
    assert judge(folder).exit_code == Exit.MISSING
    assert fake_gate.run(folder) == Exit.PASS
    sides = {process.position: process for process in block_of(7, "confirm", 3)}
    (folder / "records" / f"{sides[1].name}.json").unlink()  # as if the machine had stopped there
    fake_gate.said.truncate(0)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | {"complete": False}))
    assert fake_gate.run(folder) == Exit.PASS
    assert encode_result(judge(folder)) == encode_result(whole)
    again = [name for name in (process.name for process in sides.values()) if name in fake_gate.said.getvalue()]
    assert again == [sides[0].name, sides[1].name]  # half a pair is no pair


def test_processes_that_are_not_forked_find_the_same(fake_gate):
    base, head = fake_gate.commit(library()), fake_gate.commit(slower(10))
    sizes = {"screen_blocks": 4, "confirm_blocks": 4}
    forked = fake_gate.gate(base, head, **sizes)
    folder = fake_gate.prepare(base, head, name="fresh", **sizes)
    assert fake_gate.run(folder, fork="no") == Exit.PASS
    assert encode_result(judge(folder)) == encode_result(forked)


def test_a_gate_goes_on_where_it_began_and_on_no_other_card(fake_gate, monkeypatch):
    base = fake_gate.commit(library())
    folder = fake_gate.prepare(base, base, screen_blocks=4)
    with pytest.raises(UsageError, match="expected one GPU"):
        fake_gate.run(folder, gpus="all")
    assert fake_gate.run(folder, gpus="GPU-2", max_s=0.0) == Exit.INTERRUPTED  # and nothing was measured there
    assert fake_gate.run(folder) == Exit.PASS
    next((folder / "records").glob("screen-*.json")).unlink()

    with pytest.raises(UsageError, match="was begun on GPU-1, got GPU-2"):
        fake_gate.run(folder, gpus="GPU-2")
    monkeypatch.setattr(running, "find_gpus", lambda: [OTHER_CARD])
    with pytest.raises(UsageError, match="was begun on GPU-1, got GPU-2"):
        fake_gate.run(folder)


@pytest.mark.parametrize("name", ["head/recoverssm/__init__.py", "base/benchmarks/run.py"])
def test_a_folder_that_was_not_copied_whole_is_refused(fake_gate, name):
    folder = fake_gate.prepare(fake_gate.commit(library()), fake_gate.commit(slower(1)))
    (folder / name).write_text("")
    with pytest.raises(BrokenEnvironmentError, match="is not what was prepared"):
        fake_gate.run(folder)


def test_another_policy_than_was_prepared_is_refused(fake_gate):
    base = fake_gate.commit(library())
    folder = fake_gate.prepare(base, base)
    with (folder / "policy" / "thresholds.toml").open("a") as file:
        file.write("# looser\n")
    with pytest.raises(UsageError, match="policy: is not what was prepared"):
        judge(folder)


def test_what_is_no_gate_folder_is_refused(tmp_path):
    for part in ("run", "judge"):
        done = invoke("gate", part, tmp_path)
        assert done.exit_code == Exit.USAGE
        assert "next: python -m ci gate prepare" in done.output


def test_an_architecture_that_nobody_knows_is_no_gate_without_figures(fake_gate):
    base = fake_gate.commit(library())
    folder = fake_gate.prepare(base, base, archs=["sm_90", "sm_1"])
    for _ in range(2):
        with pytest.raises(UsageError, match="sm_1: no limits"):
            fake_gate.run(folder)


def test_the_line_that_repeats_a_gate_has_its_blocks_and_is_safe_to_copy(fake_gate):
    base = fake_gate.commit(library())
    fake_gate.prepare(base, base, screen_blocks=4)
    sides = f"--base {base[:12]} --head {base[:12]} --set pr"
    assert command(fake_gate.plan) == f"python -m ci gate {sides} --blocks 4 --seed 7"
    assert "--case 'x; ls' --blocks" in command(fake_gate.plan, "x; ls")
    assert command(fake_gate.plan, "one", "sm_90").endswith("--case one --blocks 4 --arch sm_90 --seed 7")


def test_a_gate_judged_elsewhere_gives_the_same_bytes(fake_gate, tmp_path):
    folder = fake_gate.prepare(fake_gate.commit(library()), fake_gate.commit(slower(10)))
    fake_gate.run(folder)
    copy = tmp_path / "somewhere" / "else"
    shutil.copytree(folder, copy)

    assert invoke("gate", "judge", folder).exit_code == invoke("gate", "judge", copy).exit_code == Exit.REGRESSED
    for name in FILES:
        assert (folder / name).read_bytes() == (copy / name).read_bytes(), name
    before = (folder / "verdict.json").read_bytes()
    invoke("gate", "judge", folder)
    assert (folder / "verdict.json").read_bytes() == before
    assert str(tmp_path).encode() not in before


def test_the_command_does_all_of_it_and_its_json_is_the_verdict(in_repository, tmp_path):
    in_repository.commit(library())
    in_repository.git("checkout", "--quiet", "-b", "branch")
    in_repository.commit(slower(10))
    out = tmp_path / "out"
    done = invoke("gate", "--base", "main", "--out", out, "--seed", "7", "--json")
    assert done.exit_code == Exit.REGRESSED
    assert json.loads((out / "verdict.json").read_text())["exit_code"] == Exit.REGRESSED
    assert '"verdict": "regressed"' in done.stdout


def test_what_a_gate_would_do_is_told_without_doing_it(in_repository, tmp_path):
    base = in_repository.commit(library())
    in_repository.git("checkout", "--quiet", "-b", "branch")
    in_repository.commit(slower(10))
    arguments = ("--out", tmp_path / "out", "--store", tmp_path / "store", "--gpus", "cpu", "--json")
    facts = json.loads(invoke("gate", "--base", "main", "--dry-run", *arguments).stdout)
    assert facts["base"].startswith(base[:12])
    assert (facts["distance"], facts["screen_processes"], facts["confirm_processes_at_most"]) == (1, 4, 4)
    assert "num_cases" not in json.loads(invoke("gate", "--base", "main", "--estimate", *arguments).stdout)
    assert "kimi_k3_tp8_b1_t8_a3.84_fp32" in invoke("gate", "--list").stdout
    assert not (tmp_path / "out").exists()


def test_the_command_says_how_to_go_on(in_repository, tmp_path):
    in_repository.commit(library())
    done = invoke("gate", "--base", "main", "--out", tmp_path / "out", "--max-seconds", "0")
    assert done.exit_code == Exit.INTERRUPTED
    assert f"go on: python -m ci gate run {tmp_path / 'out'}" in done.output
    assert invoke("gate", "--out", tmp_path / "out", "--resume").exit_code == Exit.PASS
    assert invoke("gate").exit_code == invoke("gate", "--resume", "--base", "main").exit_code == Exit.USAGE
