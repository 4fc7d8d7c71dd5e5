"""Exit codes and messages of ``python -m reports``."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.harness.store import Store
from reports.cli import app
from tests.reports.golden import NightPlan, golden_cases, write_night


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_build_prints_the_path_of_the_page(golden_store, tmp_path):
    code, output = run("build", "--store", golden_store, "--out", tmp_path / "site")

    assert code == 0
    assert str(tmp_path / "site" / "index.html") in output
    assert "5 GPU nights, 1 CPU night, 0 compiled nights, " in output


def test_build_of_an_empty_store_passes_with_a_notice(tmp_path):
    (tmp_path / "store").mkdir()

    code, output = run("build", "--store", tmp_path / "store", "--out", tmp_path / "site")

    assert code == 0
    assert "no night is recorded" in output
    assert (tmp_path / "site" / "index.html").is_file()


def test_build_leaves_its_cache_beside_the_site_and_does_without_one_that_cannot_be_written(golden_store, tmp_path):
    (tmp_path / "file").touch()

    plain = run("build", "--store", golden_store, "--out", tmp_path / "site")
    code, output = run(
        "build", "--store", golden_store, "--out", tmp_path / "other", "--cache", tmp_path / "file" / "cache"
    )

    assert plain[0] == code == 0
    assert sorted(path.name for path in (tmp_path / ".site.cache").iterdir()) == ["parts.json", "records"]
    assert "notice: cache: " in output
    assert (tmp_path / "other" / "index.html").is_file()


def test_build_of_a_store_that_is_not_there_is_a_usage_error(tmp_path):
    code, output = run("build", "--store", tmp_path / "nowhere", "--out", tmp_path / "site")

    assert code == 2
    assert "--store: expected a folder" in output
    assert not (tmp_path / "site").exists()


def test_build_into_a_foreign_folder_is_a_usage_error(golden_store, tmp_path):
    (tmp_path / "mine.txt").touch()

    code, output = run("build", "--store", golden_store, "--out", tmp_path)

    assert code == 2
    assert "--out" in output


def test_build_of_markdown_writes_one_file_with_the_pages_asked_for(golden_store, tmp_path):
    out = tmp_path / "job" / "summary.md"

    code, output = run("build", "--store", golden_store, "--format", "markdown", "--page", "about", "--out", out)

    assert (code, output.strip()) == (0, str(out))
    assert out.read_text().startswith("# RecoverSSM nights\n")
    assert "\n# About\n" in out.read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--page", "about"], "--format markdown"),
        (["--format", "markdown", "--page", "index"], "expected some of league, gpus"),
        (["--trust", "nowhere"], "--trust: expected a folder of trust records"),
    ],
)
def test_build_refuses_pages_and_folders_that_are_not_there(golden_store, tmp_path, options, words):
    code, output = run("build", "--store", golden_store, "--out", tmp_path / "out", *options)

    assert code == 2
    assert words in output
    assert not (tmp_path / "out").exists()


def test_build_with_a_corrupt_trust_record_names_it_and_exits_4(tmp_path):
    for name in ("store", "trust"):
        (tmp_path / name).mkdir()
    (tmp_path / "trust" / "bad.json").write_text("{")

    code, output = run(
        "build", "--store", tmp_path / "store", "--trust", tmp_path / "trust", "--out", tmp_path / "site"
    )

    assert code == 4
    assert "left out, unreadable: bad.json" in output
    assert "bad.json" in (tmp_path / "site" / "trust.html").read_text()


def test_build_with_a_corrupt_record_names_it_writes_the_page_and_exits_4(tmp_path):
    write_night(Store(tmp_path / "store"), NightPlan(1), golden_cases()[:1])
    victim = sorted((tmp_path / "store" / "records").rglob("*.json"))[0]
    victim.write_text("{")

    code, output = run("build", "--store", tmp_path / "store", "--out", tmp_path / "site")

    assert code == 4
    assert f"left out, unreadable: store/{victim.relative_to(tmp_path / 'store')}" in output
    assert victim.exists()
    assert (tmp_path / "site" / "index.html").is_file()


def test_a_screenshot_shows_the_built_page(tmp_path):
    write_night(Store(tmp_path / "store"), NightPlan(1, processes=1), golden_cases()[:2])
    run("build", "--store", tmp_path / "store", "--out", tmp_path / "site")
    picture = tmp_path / "docs" / "page.png"

    code, _ = run(
        "screenshot", "--site", tmp_path / "site", "--out", picture, "--dark", "--width", 800, "--height", 600
    )

    data = picture.read_bytes()
    assert code == 0
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (800, 600)


def test_a_screenshot_of_a_page_waits_for_no_figure_that_is_hidden(golden_site, tmp_path):
    night = "20260104T020000Z-h200-abc123"
    for address in ("series", f"series#gpu=nvidia-h200&night={night}"):
        code, _ = run("screenshot", "--site", golden_site, "--page", address, "--out", tmp_path / "page.png")

        assert code == 0
        assert (tmp_path / "page.png").stat().st_size > 20_000


def test_a_screenshot_of_no_site_is_a_usage_error(tmp_path):
    code, output = run("screenshot", "--site", tmp_path, "--out", tmp_path / "page.png")

    assert code == 2
    assert "build a site: python -m reports build" in output


@pytest.mark.parametrize("command", [[], ["build"], ["today"], ["publish"], ["table"], ["screenshot"]], ids=" ".join)
def test_help_of_each_command_has_an_example(command):
    code, output = run(*command, "--help")

    assert code == 0
    assert " ".join(["Example: python -m reports", *command]) in " ".join(output.split())


def test_reading_records_needs_no_torch():
    code = "import sys, reports.cli, reports.site, reports.readme; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[2]

    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
