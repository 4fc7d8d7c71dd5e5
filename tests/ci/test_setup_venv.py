import subprocess
import sys
import tomllib

import pytest

from ci import setup_venv
from ci.exits import Exit

REQUIREMENTS = ["torch>=2.11", "rich>=13.9", "nvidia-ml-py>=12.560"]
PINS = "rich==15.0.0\nmsgspec==0.23.0\nPygments==2.21.0\nnvidia-ml-py==13.615.71\n"


@pytest.mark.parametrize(
    ("asked", "has_gpu", "has_torch", "expected"),
    [
        ("auto", False, False, "cpu"),
        ("auto", False, True, "cpu"),
        ("auto", True, False, "cpu"),
        ("auto", True, True, "gpu"),
        ("cpu", True, True, "cpu"),
        ("gpu", False, False, "gpu"),
    ],
)
def test_the_kind_follows_the_machine_unless_asked_for(asked, has_gpu, has_torch, expected):
    assert setup_venv.choose_kind(asked, has_gpu=has_gpu, has_torch=has_torch)[0] == expected


def test_a_gpu_that_cannot_be_used_is_said():
    assert "install torch" in setup_venv.choose_kind("auto", has_gpu=True, has_torch=False)[1]


def test_the_hosts_own_packages_are_not_pinned():
    pins = setup_venv.without_hosts_own(PINS, {"rich": "14.1.0", "pygments": "2.19"}, REQUIREMENTS)

    assert pins == "msgspec==0.23.0\nnvidia-ml-py==13.615.71\n"


def test_a_package_too_old_on_the_host_is_pinned():
    pins = setup_venv.without_hosts_own(PINS, {"rich": "13.8.1", "nvidia-ml-py": "12.1"}, REQUIREMENTS)

    assert pins == PINS


def test_linter_settings_do_not_rebuild_an_environment_but_requirements_do():
    project = {"build-system": {}, "project": {"dependencies": ["torch"]}, "tool": {"ruff": 1}}
    key = setup_venv.fingerprint("cpu", project, PINS, "3.11")

    assert setup_venv.fingerprint("cpu", project | {"tool": {}}, PINS, "3.11") == key
    assert setup_venv.fingerprint("cpu", project | {"project": {}}, PINS, "3.11") != key
    assert setup_venv.fingerprint("cpu", project, PINS + "more==1\n", "3.11") != key
    assert setup_venv.fingerprint("gpu", project, PINS, "3.11") != key


@pytest.fixture
def pip(monkeypatch):
    """Records pip's calls; `fail` makes them fail, as without a network."""
    calls = []

    def run(command, **_):
        if command[1:3] != ["-m", "pip"]:
            return subprocess.CompletedProcess(command, 0)
        calls.append(command[4:])
        failed = run.fail and "--retries=0" in command
        return subprocess.CompletedProcess(command, int(failed))

    run.fail = False
    run.calls = calls
    monkeypatch.setattr(setup_venv.subprocess, "run", run)
    return run


def test_a_second_set_up_does_nothing(tmp_path, pip):
    tmp_path.joinpath(".venv").mkdir()

    assert setup_venv.set_up("cpu", tmp_path / ".venv") is True
    assert len(pip.calls) == 2
    assert setup_venv.set_up("cpu", tmp_path / ".venv") is False
    assert len(pip.calls) == 2


def test_a_gpu_host_keeps_its_torch_and_works_without_a_network(tmp_path, pip, monkeypatch, capsys):
    monkeypatch.setattr(setup_venv, "host_packages", lambda: {"torch": "2.11.0+cu130", "triton": "3.6.0"})
    monkeypatch.setattr(setup_venv.platform, "machine", lambda: "x86_64")
    setup_venv._site_packages(tmp_path / ".venv").mkdir(parents=True)
    pip.fail = True

    assert setup_venv.set_up("gpu", tmp_path / ".venv") is True

    assert [call[-1].partition(">")[0] for call in pip.calls] == [
        "hypothesis",
        "pyyaml",
        "s3fs",
        "cuda-bench",
        "submitit",
        "pygaljs",
    ]
    assert not [
        argument for call in pip.calls for argument in call if argument.startswith(("recoverssm", "setuptools"))
    ]
    printed = capsys.readouterr().out
    assert "not installed: report, dev" in printed
    assert "not installed: nvbench (not reachable); series under nvbench-cold are skipped" in printed


def test_a_gpu_host_without_a_wheel_of_nvbench_says_so(tmp_path, pip, monkeypatch, capsys):
    monkeypatch.setattr(setup_venv, "host_packages", lambda: {"torch": "2.11.0+cu130", "triton": "3.6.0"})
    monkeypatch.setattr(setup_venv.platform, "machine", lambda: "aarch64")
    setup_venv._site_packages(tmp_path / ".venv").mkdir(parents=True)

    setup_venv.set_up("gpu", tmp_path / ".venv")

    assert [call[-1].partition(">")[0] for call in pip.calls] == ["hypothesis", "pyyaml", "s3fs", "submitit", "pygaljs"]
    assert "not installed: nvbench (no wheel for aarch64)" in capsys.readouterr().out


@pytest.mark.parametrize("host", [{}, {"torch": "2.9.1", "triton": "3.6.0"}, {"torch": "2.11.0"}])
def test_a_gpu_host_with_too_little_torch_or_triton_is_told_what_to_install(tmp_path, pip, monkeypatch, host):
    monkeypatch.setattr(setup_venv, "host_packages", lambda: host)

    with pytest.raises(setup_venv.BrokenEnvironmentError, match=r"expected (torch|triton)>=") as caught:
        setup_venv.set_up("gpu", tmp_path / ".venv")

    assert "KIND=cpu" in caught.value.next_step


def test_a_pip_that_fails_is_exit_5_and_says_where_to_read(tmp_path, monkeypatch, capsys):
    failed = subprocess.CompletedProcess([], 1)
    monkeypatch.setattr(setup_venv.subprocess, "run", lambda command, **_: failed)

    assert setup_venv.main(["--kind", "cpu", "--venv", str(tmp_path / ".venv")]) == Exit.BROKEN
    assert "next:" in capsys.readouterr().err


def test_an_environment_of_another_kind_is_replaced(tmp_path):
    version = ".".join(map(str, sys.version_info[:3]))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    (tmp_path / "pyvenv.cfg").write_text(f"include-system-site-packages = false\nversion = {version}\n")

    assert setup_venv._is_of_this_kind(tmp_path, share_host=False)
    assert not setup_venv._is_of_this_kind(tmp_path, share_host=True)


def test_chromium_is_left_alone_when_it_is_there(monkeypatch, pip):
    monkeypatch.setattr(setup_venv.shutil, "which", lambda name: f"/usr/bin/{name}")

    setup_venv.ensure_chromium()

    assert pip.calls == []


def test_without_rights_the_command_for_chromium_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(setup_venv.shutil, "which", lambda name: None)
    monkeypatch.setattr(setup_venv.os, "geteuid", lambda: 1000)

    setup_venv.ensure_chromium()

    assert "sudo apt-get install" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_every_requirement_has_an_exact_pin_without_a_local_tag(kind):
    pins = (setup_venv.ROOT / f"constraints/{kind}.txt").read_text().splitlines()
    pins = [line.partition(";")[0].split("==") for line in pins if not line.startswith("#")]
    names = [setup_venv._canonical(name) for name, _ in pins]
    project = tomllib.loads((setup_venv.ROOT / "pyproject.toml").read_text())
    extras = ("bench", "report", "remote", "test", "dev", *(("nvbench",) if kind == "gpu" else ()))
    wanted = {setup_venv._name(item) for item in setup_venv._requirements(project, extras)}

    assert wanted - set(names) == ({"torch", "triton"} if kind == "gpu" else set())
    assert not [version for _, version in pins if "+" in version or "*" in version]
    assert len(names) == len(set(names))
