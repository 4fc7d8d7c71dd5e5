import importlib
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.harness.command_line import CommandLine, CommitOption

app = CommandLine()
HEX = "0123456789abcdef" * 3


@app.command()
def go(
    commit: CommitOption = None,
    out: Annotated[Path | None, typer.Option()] = None,
    stores: Annotated[list[str] | None, typer.Option("--store")] = None,
    page: Annotated[bool, typer.Option()] = True,
    count: Annotated[int, typer.Option()] = 1,
) -> None:
    typer.echo(f"{commit} {out} {stores} {page} {count}")


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("commit", [HEX[:7], HEX[:40], HEX[:12].upper()])
def test_hash_long_enough_to_name_a_commit_is_taken(commit: str):
    assert run("--commit", commit).output.split()[0] == commit


@pytest.mark.parametrize("commit", ["--no-page", "", "main", "HEAD", HEX[:6], HEX[:41], f"{HEX[:7]}\n", "g" * 40])
def test_commit_that_is_no_hash_is_refused_with_what_to_do(commit: str):
    result = run("--commit", commit)

    assert result.exit_code == 2
    words = " ".join(result.output.replace("│", " ").split())
    assert "expected 7 to 40 hex digits" in words
    assert repr(commit) in words
    assert "leave --commit out where it is unknown" in words


@pytest.mark.parametrize("arguments", [("--out", "--no-page"), ("--store", "x", "--store", "--out")])
def test_option_never_takes_the_next_option_for_its_value(arguments: tuple[str, ...]):
    result = run(*arguments)

    assert result.exit_code == 2
    words = " ".join(result.output.replace("│", " ").split())
    assert f"Invalid value for '{arguments[-2]}'" in words
    assert f"expected a value, got the option {arguments[-1]!r}" in words


def test_values_that_are_no_options_pass():
    assert run("--out", "a-b", "--store", "branch:x", "--no-page", "--count", "-1").output == (
        "None a-b ['branch:x'] False -1\n"
    )


@pytest.mark.parametrize(
    "module",
    [
        *("benchmarks.agreement", "benchmarks.compile_first", "benchmarks.launch_once", "benchmarks.run"),
        *("ci.__main__", "ci.night_commands", "ci.kernel_commands", "ci.history.cli", "reports.cli"),
    ],
)
def test_every_command_line_is_guarded(module: str):
    assert isinstance(importlib.import_module(module).app, CommandLine)


def test_no_command_line_is_made_beside_the_guarded_one():
    root = Path(__file__).parents[2]
    makers = [
        path.relative_to(root).as_posix()
        for folder in ("benchmarks", "ci", "reports")
        for path in (root / folder).rglob("*.py")
        if "typer.Typer(" in path.read_text(encoding="utf-8")
    ]

    assert makers == []
