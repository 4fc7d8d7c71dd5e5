"""The README's table of figures."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from reports.cli import app
from reports.peers import read_peers
from reports.readme import END, START, MarkersError, figures_table, replace_figures
from reports.sources import read_stores
from tests.reports.golden import HEADLINE


@pytest.fixture
def readme(tmp_path: Path) -> Path:
    path = tmp_path / "README.md"
    path.write_text(f"# Title\n\n{START}\nold\n{END}\n\nThe rest.\n")
    return path


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_the_table_holds_the_figures_and_what_they_were_measured_on(golden_store, readme):
    code, _ = run("table", "--store", golden_store, "--readme", readme)

    text = readme.read_text().replace("\N{NO-BREAK SPACE}", " ")
    line = next(line for line in text.splitlines() if HEADLINE in line)
    assert code == 0
    assert line == (
        f"| `{HEADLINE}` | 63.7 µs | 50.1 µs | +27.2 % | 1,202 µs (69 layers) | +25.0 % | 11.12 GiB (85.9 %) |"
    )
    assert "Measured 2026-01-04 02:59 UTC on NVIDIA H200 (driver 590.00-synthetic, torch 0.0-synthetic" in text
    assert "median over 5 processes" in text
    assert text.count("| `kimi_k3") == 6
    assert "| vLLM 0.33.0, RecoverSSM (Triton) | by hand, 2026-11-29 |" in text
    assert text.startswith("# Title\n")
    assert text.endswith("\nThe rest.\n")
    assert "\nold\n" not in text


def test_check_fails_until_the_table_is_written_and_passes_afterwards(golden_store, readme):
    arguments = ("table", "--store", golden_store, "--readme", readme)
    before = readme.read_text()

    code, output = run(*arguments, "--check")
    assert code == 1
    assert "out of date; run: python -m reports table" in output
    assert readme.read_text() == before

    assert run(*arguments)[0] == 0
    assert run(*arguments, "--check")[0] == 0


def test_a_gpu_model_without_a_night_is_missing_data_and_the_known_ones_are_named(golden_store, readme):
    code, output = run("table", "--store", golden_store, "--readme", readme, "--gpu-model", "nvidia-gb300")

    assert code == 3
    assert "no night of nvidia-gb300 is recorded" in output
    assert "nvidia-h100, nvidia-h200" in output


def test_cases_that_the_night_lacks_are_missing_data(golden_store, readme):
    code, output = run("table", "--store", golden_store, "--readme", readme, "--case", "no_such_*")

    assert code == 3
    assert "no case matching no_such_*" in output


@pytest.mark.parametrize("text", ["no markers", f"{END}\n{START}", f"{START}{START}{END}"])
def test_a_readme_without_both_markers_in_order_is_refused(text):
    with pytest.raises(MarkersError, match="once each"):
        replace_figures(text, "table")


def test_a_missing_readme_is_a_usage_error(golden_store, tmp_path):
    code, output = run("table", "--store", golden_store, "--readme", tmp_path / "none.md")

    assert code == 2
    assert "--readme" in output


def test_a_league_stands_before_what_was_measured_by_hand(golden_store, monkeypatch):
    monkeypatch.setattr("reports.readme.league_of", lambda history, gpu_model: history)
    monkeypatch.setattr("reports.readme.league_table", lambda league, patterns: "| league |")

    table = figures_table(read_stores([str(golden_store)]), "nvidia-h200", peers=read_peers())

    assert table.index("| case |") < table.index("| league |") < table.index("Measured by hand") < table.index("| µs |")
