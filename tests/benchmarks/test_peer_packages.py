import sys

import pytest
from typer.testing import CliRunner

from benchmarks.peers.packages import FOLDER_VARIABLE, BrokenPackageError, Package, find
from benchmarks.peers.protocol import NotInstalledError
from benchmarks.peers.unpack import UnpackError, app, unpack
from tests.benchmarks.wheels import forgotten, make_wheel

FILES = {
    "made_up_engine/__init__.py": "raise AssertionError('the framework itself is not to be imported')",
    "made_up_engine/ops/kda/__init__.py": "from made_up_engine.ops.kda.kernels import fold",
    "made_up_engine/ops/kda/kernels.py": (
        "from made_up_engine.platforms import arch\ndef fold():\n    from .late import late\n    return arch() + late\n"
    ),
    "made_up_engine/ops/kda/late.py": "late = 5",
    "made_up_engine/ops/other.py": "",
    "made_up_engine/ops/foreign.py": "import a_package_that_nobody_has",
    "made_up_engine/ops/astray.py": "import made_up_engine.config",
    "made_up_engine/ops/broken.py": "1 / 0",
}
PACKAGE = Package(
    distribution="made-up-engine",
    module="made_up_engine",
    files=("made_up_engine/ops/kda/*.py", "made_up_engine/ops/[fab]*.py"),
    stand_ins=lambda: {"made_up_engine.platforms": {"arch": lambda: 90}},
)


@pytest.fixture
def unpacked(tmp_path, monkeypatch):
    wheel = make_wheel(tmp_path, "made-up-engine", "1.2", FILES)
    unpack(wheel, tmp_path / "peers", [PACKAGE])
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "peers"))
    with forgotten([PACKAGE]):
        yield tmp_path / "peers"


def test_kernels_are_loaded_without_their_framework(unpacked):
    found = find(PACKAGE)

    assert (str(found), found.folder) == ("made-up-engine 1.2", unpacked)
    assert found.load("made_up_engine.ops.kda").fold() == 95
    assert "made_up_engine.ops.other" not in sys.modules
    assert find(PACKAGE).load("made_up_engine.ops.kda") is sys.modules["made_up_engine.ops.kda"]


@pytest.mark.parametrize(
    ("module", "error", "says"),
    [
        ("foreign", NotInstalledError, r"made-up-engine 1\.2: .*foreign needs a_package_that_nobody_has"),
        ("astray", BrokenPackageError, r"made-up-engine 1\.2: No module named 'made_up_engine\.config'"),
        ("other", BrokenPackageError, r"made-up-engine 1\.2: No module named 'made_up_engine\.ops\.other'"),
        ("broken", BrokenPackageError, r"made-up-engine 1\.2: .*broken: ZeroDivisionError"),
    ],
)
def test_why_a_module_does_not_load_is_told(unpacked, module, error, says):
    with pytest.raises(error, match=says):
        find(PACKAGE).load(f"made_up_engine.ops.{module}")


def test_an_installed_package_goes_before_the_folder(unpacked, tmp_path, monkeypatch):
    site = tmp_path / "site"
    whole = {"made_up_engine/__init__.py": "", "made_up_engine/platforms.py": "def arch(): return 100"}
    everything = Package("made-up-engine", "made_up_engine", ("made_up_engine/*",))
    unpack(make_wheel(tmp_path, "made-up-engine", "1.3", FILES | whole), site, [everything])
    monkeypatch.syspath_prepend(site)

    found = find(PACKAGE)

    assert (found.version, found.folder) == ("1.3", None)
    assert found.load("made_up_engine.ops.kda").fold() == 105


def test_what_is_nowhere_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    with pytest.raises(
        NotInstalledError, match=r"made-up-engine is not installed \(no RECOVERSSM_PEERS\).*peers\.unpack"
    ):
        find(PACKAGE)

    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(NotInstalledError, match=r"has no files of it"):
        find(PACKAGE)


def test_a_wheel_leaves_what_the_adapter_needs_and_its_licence(tmp_path):
    wheel = make_wheel(tmp_path, "made-up-engine", "1.2", FILES)
    package = Package("made-up-engine", "made_up_engine", ("made_up_engine/ops/kda/*.py", "made_up_engine/gone.py"))

    first = unpack(wheel, tmp_path / "peers", [package])
    again = unpack(make_wheel(tmp_path, "made-up-engine", "2.0", FILES), tmp_path / "peers", [package])

    left = {
        path.relative_to(tmp_path / "peers").as_posix() for path in (tmp_path / "peers").rglob("*") if path.is_file()
    }
    assert (first.version, again.version) == ("1.2", "2.0")
    assert again.num_files == 5
    assert again.unmatched == ("made_up_engine/gone.py",)
    assert left == {
        "made_up_engine-2.0.dist-info/METADATA",
        "made_up_engine-2.0.dist-info/licenses/LICENSE",
        "made_up_engine/ops/kda/__init__.py",
        "made_up_engine/ops/kda/kernels.py",
        "made_up_engine/ops/kda/late.py",
    }


def test_wheels_that_cannot_be_unpacked_are_refused(tmp_path):
    strange = make_wheel(tmp_path, "strange", "1.0", {})
    with pytest.raises(UnpackError, match=r"strange-1\.0-py3-none-any\.whl: expected a wheel of made_up_engine"):
        unpack(strange, tmp_path, [PACKAGE])
    with pytest.raises(UnpackError, match="none of the files"):
        unpack(make_wheel(tmp_path, "made-up-engine", "3.0", {}), tmp_path, [PACKAGE])
    torn = tmp_path / "made_up_engine-1.0-py3-none-any.whl"
    torn.write_bytes(b"no archive")
    with pytest.raises(UnpackError, match=r"made_up_engine-1\.0.*not a zip file"):
        unpack(torn, tmp_path, [PACKAGE])


def test_the_command_names_what_it_unpacked_and_what_it_cannot(tmp_path):
    kernel = {"sglang/kernels/ops/mamba/mamba_state_scatter_triton.py": ""}
    wheel = make_wheel(tmp_path, "sglang", "0.9", kernel)

    done = CliRunner().invoke(app, [str(wheel), "--into", str(tmp_path / "peers")])
    refused = CliRunner().invoke(app, [str(tmp_path / "none.whl"), "--into", str(tmp_path)])

    assert done.exit_code == 0
    assert "sglang 0.9: 3 files" in done.output
    assert "nothing in the wheel matches sglang/kernels/ops/attention/linear/fused_sigmoid" in done.output
    assert f"RECOVERSSM_PEERS={tmp_path / 'peers'}" in done.output
    assert refused.exit_code == 2
    assert "expected a wheel of" in refused.output
