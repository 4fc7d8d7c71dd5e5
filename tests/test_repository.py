"""What the files around the code promise: packaging, make targets, documents that point at each other."""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")
COMMAND = re.compile(r"python3? -m ((?:ci|reports|benchmarks)\b[.\w]*)([^`;,|&#()\"\n]*)")
SECTION = re.compile(r"docs/(\w+\.md)[, ]+section (\d+)")


def source_files():
    folders = ("recoverssm", "benchmarks", "ci", "reports", "tests", "examples")
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def commands_given():
    """Every ``python -m ...`` of ours in documents, Makefile and help texts: where, the module, its words."""
    places = [*DOCUMENTS, ROOT / "Makefile", *(path for path in source_files() if "tests" not in path.parts)]
    return [
        (path.relative_to(ROOT).as_posix(), module, words.split())
        for path in places
        for module, words in COMMAND.findall(path.read_text())
    ]


def readme_example():
    return re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]


def test_the_example_in_the_readme_runs(tmp_path):
    script = tmp_path / "example.py"
    script.write_text(readme_example())
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}

    # No "-W error": Triton 3.6's interpreter warns by itself, see pyproject.toml.
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)

    assert done.stdout == "torch.Size([8, 2, 128]) [3, 1]\n", done.stderr


def test_the_example_in_the_readme_uses_public_names_only():
    imported = [
        alias.name
        for node in ast.walk(ast.parse(readme_example()))
        if isinstance(node, ast.ImportFrom) and node.module == "recoverssm"
        for alias in node.names
    ]
    public = ast.literal_eval((ROOT / "recoverssm/__init__.py").read_text().partition("__all__ = ")[2])

    assert imported
    assert set(imported) <= set(public)


def test_the_readme_has_the_place_for_figures_once():
    text = (ROOT / "README.md").read_text()

    assert re.findall(r"<!-- figures:(start|end) -->", text) == ["start", "end"]


def test_every_command_that_is_given_exists_with_its_options():
    from typer.main import get_command

    wrong = []
    for where, module, words in commands_given():
        name = {"ci": "ci.__main__", "reports": "reports.cli"}.get(module, module)
        if not hasattr(app := importlib.import_module(name), "app"):
            continue  # argparse: set-up and evidence
        command = root = get_command(app.app)
        for word in words:
            if word in getattr(command, "commands", {}):
                command = command.commands[word]
        known = {option for item in command.params for option in (*item.opts, *item.secondary_opts)} | {"--help"}
        unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
        if unknown or (words and command is root and hasattr(root, "commands")):
            wrong.append(f"{where}: python -m {module} {' '.join(words)}")

    assert not wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document):
    text = re.sub(r"<!--.*?-->", "", document.read_text(), flags=re.DOTALL)
    missing = [target for target, _ in LINK.findall(text) if not (document.parent / target).exists()]

    assert not missing


def test_every_section_that_code_cites_exists():
    missing = [
        f"{path.relative_to(ROOT)}: docs/{document} section {number}"
        for path in source_files()
        for document, number in SECTION.findall(path.read_text())
        if not re.search(rf"^## {number}\. ", (ROOT / "docs" / document).read_text(), re.MULTILINE)
    ]

    assert not missing


def test_every_decision_is_listed():
    listed = set(LINK.findall((ROOT / "docs/decisions/README.md").read_text()))

    assert {name for name, _ in listed} == {path.name for path in ROOT.glob("docs/decisions/[0-9]*.md")}


def test_the_wheel_ships_the_library_alone(tmp_path):
    shutil.copytree(ROOT / "recoverssm", tmp_path / "recoverssm", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("benchmarks", "ci", "reports", "tests"):  # beside it, as in the repository
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "."]

    subprocess.run([*command, "--wheel-dir", "dist"], cwd=tmp_path, check=True)

    (wheel,) = tmp_path.glob("dist/*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    code = {name for name in names if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in code} == {"recoverssm"}
    library = (path for path in (tmp_path / "recoverssm").rglob("*") if path.is_file())
    assert code == {path.relative_to(tmp_path).as_posix() for path in library}  # data too: py.typed, the launch table
    assert any(name.endswith("/LICENSE") for name in names)


def test_the_library_needs_torch_and_triton_alone():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert [re.split("[<>=]", item)[0] for item in project["dependencies"]] == ["torch", "triton"]


@pytest.mark.parametrize(
    "module", ["reports.cli", "benchmarks.harness.record_files", "benchmarks.harness.stats.verdict"]
)
def test_pages_and_statistics_load_neither_torch_nor_triton(module):
    code = f"import sys, {module}; print(*(name for name in ('torch', 'triton') if name in sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == "\n"


def test_ci_calls_make_test_and_nothing_else():
    lines = (ROOT / ".ci/run").read_text().splitlines()

    assert lines == ["#!/usr/bin/env bash", "set -eu", "exec make test"]


def test_make_help_lists_every_target():
    text = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split()

    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)

    assert [target for target in targets if f"  make {target} " not in done.stdout] == []


@pytest.mark.parametrize("target", ["test", "check", "nightly", "site", "test-gpu", "test-gpu-long", "test-long"])
def test_every_target_that_runs_tools_sets_up_first(target):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}

    done = subprocess.run(["make", "-n", target], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)

    position = done.stdout.index("-m ci.setup_venv")
    assert ".venv/bin/" not in done.stdout[:position]


def test_gpu_tests_are_all_run_in_one_of_two_parts(tmp_path):
    python, log = tmp_path / "python", tmp_path / "log"
    python.write_text(f"#!/bin/sh\nprintf '%s|' \"$@\" >> {log}\necho >> {log}\n")
    python.chmod(0o755)

    subprocess.run(["make", "-o", "setup", "test-gpu", f"PY={python}"], cwd=ROOT, capture_output=True, check=True)

    marked = ["-m", "pytest", "-m", "gpu and not long"]
    library, harness = (words[:-1] for line in log.read_text().splitlines() if (words := line.split("|"))[:4] == marked)
    assert {name for name in library if name.startswith("tests/")} == {
        f"tests/{path.name}" for path in (ROOT / "tests").glob("test_*.py")
    }
    assert harness[-3:] == ["tests", "--ignore-glob", "tests/test_*.py"]


def test_another_python_is_refused_with_the_fix():
    done = subprocess.run(["make", "setup", "PYTHON=false"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "make setup PYTHON=python3.12" in done.stdout


def test_commit_hooks_fetch_nothing():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())

    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    assert {hook["language"] for repo in config["repos"] for hook in repo["hooks"]} == {"system"}


def test_tests_are_no_package_and_have_names_of_their_own():
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name.startswith("test_")]

    assert not list((ROOT / "tests").rglob("__init__.py"))
    assert len({path.name for path in files}) == len(files)
