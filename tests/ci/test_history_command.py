"""The command line of `ci history`: help, exit codes, what is printed."""

import json
import re

import pytest
from typer.testing import CliRunner

from ci.__main__ import app
from ci.exits import Exit
from tests.ci.stores import contents, make_night, store_nights


def invoke(*arguments):
    return CliRunner().invoke(app, ["history", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path):
    return store_nights(tmp_path / "store", *(make_night(day) for day in (1, 2, 3))).folder


@pytest.mark.parametrize("command", ["verify", "import", "migrate", "prune", "query", "variance"])
def test_help_has_an_example_and_no_boxes(command):
    result = invoke(command, "--help")

    assert result.exit_code == 0
    assert f"python -m ci history {command}" in re.sub(r"\s+", " ", result.output.split("Example")[1])
    assert not re.search("[│╭]", result.output)


def test_verify_exits_0_on_a_good_store(folder):
    result = invoke("verify", "--store", folder)

    assert result.exit_code == Exit.PASS
    assert f"{folder}: 9 records, 3 nights, 0 problems" in result.output


def test_verify_exits_4_and_names_what_is_wrong(folder):
    bad = sorted((folder / "records").rglob("*.json"))[0]
    bad.write_text("{")

    result = invoke("verify", "--store", folder, "--json")

    assert result.exit_code == Exit.INVALID
    assert bad.name in json.loads(result.stdout)["stores"][str(folder)]["problems"][0]


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()], ids=["absent", "empty"])
def test_verify_exits_3_when_there_is_nothing(tmp_path, make):
    make(tmp_path / "none")

    assert invoke("verify", "--store", tmp_path / "none").exit_code == Exit.MISSING


def test_verify_without_a_store_looks_at_the_recorded_nights():
    result = invoke("verify", "--json")

    assert result.exit_code == Exit.PASS
    assert any(spec.endswith("reports/history") for spec in json.loads(result.stdout)["stores"])


def test_import_says_what_came_in_and_again_that_it_is_there(folder, tmp_path):
    target = tmp_path / "target"

    assert "9 records and 3 nights would be imported" in invoke("import", folder, "--store", target, "--dry-run").output
    assert not target.exists()
    assert "9 records and 3 nights imported, 0 were there" in invoke("import", folder, "--store", target).output
    result = invoke("import", folder, "--store", target, "--json")
    assert result.exit_code == Exit.PASS
    assert json.loads(result.stdout)["already_there"] == 12


def test_import_exits_4_with_the_file_and_the_reason(folder, tmp_path):
    next((folder / "records").rglob("*.parquet")).write_bytes(b"PAR1")

    result = invoke("import", folder, "--store", tmp_path / "target")

    assert result.exit_code == Exit.INVALID
    assert "nothing was imported" in result.output
    assert "next: take the named files out" in result.output


def test_import_exits_3_when_there_is_nothing(tmp_path):
    assert invoke("import", tmp_path / "none.zip", "--store", tmp_path / "target").exit_code == Exit.MISSING


def test_prune_says_what_goes_and_then_thins_it(folder):
    before = contents(folder)
    options = ("prune", "--store", folder, "--keep-nights", 1, "--samples", 1)
    planned = json.loads(invoke(*options, "--dry-run", "--json").stdout)
    assert (len(planned["nights"]), len(planned["records"])) == (2, 6)
    assert contents(folder) == before

    result = invoke(*options)

    assert result.exit_code == Exit.PASS
    assert "samples of 6 records of 2 nights thinned" in result.output
    assert [name for name, content in contents(folder).items() if before[name] != content and ".json" in name] == []


def test_prune_without_saying_how_much_is_a_usage_error(folder):
    before = contents(folder)

    assert invoke("prune", "--store", folder).exit_code == Exit.USAGE
    assert contents(folder) == before


def test_migrate_says_how_much_is_newest_already(folder, tmp_path):
    result = invoke("migrate", "--store", folder, "--out", tmp_path / "new")

    assert result.exit_code == Exit.PASS
    assert "0 files rewritten, 12 of the newest version already" in result.output
    assert contents(tmp_path / "new") == contents(folder)


def test_store_that_is_not_there_exits_3(tmp_path):
    for command in (["migrate"], ["prune", "--keep-nights", "1"], ["query"]):
        assert invoke(*command, "--store", tmp_path / "none").exit_code == Exit.MISSING
        assert not (tmp_path / "none").exists()
