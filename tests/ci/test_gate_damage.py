"""Gate folders that lost something on the way, or hold what is not theirs: told as that, never as a slower head."""

import json
import shutil

import pytest

from ci.exits import Exit, UsageError
from ci.gate.judge import judge
from ci.gate.plan import block_of
from ci.gate.result import encode
from tests.ci.gates import kinds, library, slower

RECORD, OTHER = (f"records/{process.name}.json" for process in block_of(7, "screen", 0)[:2])
REPORT = "static/head/report.json"

DAMAGES = {
    f"{RECORD}: DecodeError": lambda folder: cut(folder / RECORD),
    f"{RECORD}: is gone": lambda folder: (folder / RECORD).unlink(),
    "32 files of the folder are damaged or gone": lambda folder: shutil.rmtree(folder / "records"),
    f"{REPORT}: JSONDecodeError": lambda folder: cut(folder / REPORT),
    f"{REPORT}: expected a report of ci static": lambda folder: (folder / REPORT).write_text("{}"),
    f"{REPORT}: is gone": lambda folder: (folder / REPORT).unlink(),
}
STRANGE = {
    "its seed is 1": {"seed": 1},
    "is another process's too": {"id": OTHER.removeprefix("records/").removesuffix(".json")},
    "for calibration": {"calibration": {"collection": "a", "delay_pct": 2.0}},
    "or a backfill": {"backfill": "a"},
}
BLOCKS = {"screen_blocks": 4, "confirm_blocks": 4}
UNKNOWN = {"expected a plan of version 1, got 99": {"schema_version": 99}, "date": {"date": "soon"}}


@pytest.fixture
def copies(fake_gate):
    """Copies of one gate that was measured whole, a regression: one for each key."""

    def make(cases):
        for says, case in cases.items():
            copy = fake_gate.tmp / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(whole, copy)
            yield copy, says, case

    whole = fake_gate.prepare(fake_gate.commit(library()), fake_gate.commit(slower(10)), **BLOCKS)
    fake_gate.run(whole)
    return make


def cut(path):
    path.write_bytes(path.read_bytes()[:100])


def edit(path, changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_that_lost_files_says_nothing_of_the_head_and_the_card_makes_them_again(fake_gate, copies):
    for folder, says, damage in copies(DAMAGES):
        whole = encode(judge(folder))
        damage(folder)

        result = judge(folder)
        assert result.exit_code == Exit.BROKEN
        assert result.findings[0].kind == "damaged-folder"
        assert says in result.findings[0].message
        assert not {kind for kind in kinds(result) if kind.startswith("crashed")}

        assert fake_gate.run(folder) == Exit.PASS
        assert encode(judge(folder)) == whole


def test_a_record_that_is_not_its_processs_counts_for_nothing(copies):
    for folder, says, changes in copies(STRANGE):
        edit(folder / RECORD, changes)
        result = judge(folder)
        assert result.exit_code == Exit.INVALID
        assert says in next(finding.message for finding in result.findings if finding.kind == "wrong-tree")


def test_a_plan_that_this_program_does_not_know_is_refused(copies):
    for folder, says, changes in copies(UNKNOWN):
        edit(folder / "plan.json", changes)
        with pytest.raises(UsageError, match=says):
            judge(folder)
