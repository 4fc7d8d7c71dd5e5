from importlib.metadata import EntryPoint

import pytest

from benchmarks import providers
from benchmarks.peers import discovery
from benchmarks.peers.discovery import UnknownPeerError, find_peers

GOOD = """
from benchmarks.peers import NotInstalledError, Tolerance

class Mine:
    name = "mine"
    title = "Mine"
    licence = "MIT"
    source = "here"
    scheme = "recoverssm"
    ops = ("verify",)
    covers = ""
    tolerance = Tolerance(out=5e-3, reason="coarse")

    def __init__(self):
        self.version = "1.2"

    def unsupported(self, case, device):
        return None

    def prepare(self, workload):
        raise AssertionError

class Absent(Mine):
    name = "absent"

    def __init__(self):
        raise NotInstalledError("pip install absent")

class Broken(Mine):
    name = "broken"

    def __init__(self):
        raise RuntimeError("of another torch\\nand so on")

class Passing(Mine):
    name = "passing"

    def __init__(self):
        raise BaseException("by all who handle errors")

class Exiting(Mine):
    name = "exiting"

    def __init__(self):
        raise SystemExit(3)

class NoPeer(Mine):
    ops = ("commit", "fold")

class Ours(Mine):
    name = "full_state"

class Twin(Mine):
    title = "Mine as well"

class Nameless(Mine):
    name = "nameless"
    title = " "

class Unlicensed(Mine):
    name = "unlicensed"
    licence = None

class Torn(Mine):
    name = "torn"
    covers = "what no file can hold: \\udcff"

class Long(Mine):
    name = "long"
    covers = "on and on " * 100

class Versionless(Mine):
    name = "versionless"

    def __init__(self):
        self.version = None

an_object = Mine()
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "provider.py"
    path.write_text(GOOD)
    return path


def test_no_provider_of_ours_has_a_name_that_another_project_may_take():
    ours = [*providers.PROVIDERS, *(one for one in vars(providers).values() if hasattr(one, "series_names"))]

    assert {one.name for one in ours if not isinstance(one, type)} | {"torch"} == discovery.OWN_NAMES


def test_a_class_in_a_file_is_found_and_says_who_it_is(file):
    (found,) = find_peers(files=[f"{file}:Mine"])

    assert found.peer is not None
    assert (found.facts.name, found.facts.version, found.facts.licence) == ("mine", "1.2", "MIT")
    assert found.facts.tolerance["out"] == 5e-3
    assert (found.facts.tolerance_reason, found.facts.missing) == ("coarse", "")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Absent", "not installed: pip install absent"),
        ("Passing", "does not load: ExitedError: BaseException: by all who handle errors"),
        ("Exiting", "does not load: ExitedError: sys.exit(3)"),
        ("Broken", "does not load: RuntimeError: of another torch"),
        (
            "NoPeer",
            "TypeError: NoPeer.ops: expected some of verify, commit, commit_state, conv, got ('commit', 'fold')",
        ),
        ("Ours", "another provider has the name 'full_state': give Ours one of its own"),
        ("Nameless", "TypeError: Nameless.title: expected a line of at most 500 printable characters, got ' '"),
        ("Unlicensed", "TypeError: Unlicensed.licence: expected a line of at most 500 printable characters, got None"),
        (
            "Versionless",
            "does not load: TypeError: version: expected a line of at most 500 printable characters, got None",
        ),
        ("an_object", "TypeError: expected a class, got an object of Mine"),
    ],
)
def test_a_peer_that_cannot_be_measured_is_found_with_its_reason(file, name, reason):
    (found,) = find_peers(files=[f"{file}:{name}"])

    assert found.peer is None
    assert found.facts.missing == reason
    assert "/" not in found.facts.name  # folders of a machine are nobody's business


@pytest.mark.parametrize("name", ["Torn", "Long"])
def test_what_a_peer_says_fits_a_record(file, name):
    (found,) = find_peers(files=[f"{file}:{name}"])

    assert found.facts.missing.startswith(f"TypeError: {name}.covers: expected a line of at most 500")
    assert found.facts.missing.isprintable()


@pytest.mark.parametrize(
    "limits", ["out=float('nan')", "out=float('inf')", "state_fp32=-1.0", "out='1e-3'", "reason=3"]
)
def test_a_tolerance_that_says_nothing_is_refused(tmp_path, limits):
    path = tmp_path / "vague.py"
    path.write_text(GOOD.replace("out=5e-3, reason", f"{limits}, " + ("" if "reason" in limits else "reason")))
    path.write_text(path.read_text().replace('reason=3, ="coarse"', "reason=3"))

    (found,) = find_peers(files=[f"{path}:Mine"])

    assert found.peer is None
    assert "Error: Tolerance." + limits.partition("=")[0] + ": expected" in found.facts.missing


def test_a_file_that_is_not_there_is_a_mistake_of_the_command_line(tmp_path):
    with pytest.raises(UnknownPeerError, match=r"expected path/to/file\.py:Class"):
        find_peers(files=[f"{tmp_path / 'none.py'}:Mine"])
    with pytest.raises(UnknownPeerError, match=r"expected path/to/file\.py:Class"):
        find_peers(files=["Mine"])


def test_a_class_that_is_not_in_the_file_is_a_mistake_of_the_command_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("class Mine: ...\n")
    with pytest.raises(UnknownPeerError, match=r"expected a class of mine\.py \(Mine\), got 'Min'"):
        find_peers(files=[f"{path}:Min"])

    path.write_text("from math import *\n")  # may bring any name
    assert [one.peer for one in find_peers(files=[f"{path}:Min"])] == [None]


def test_installed_packages_and_own_adapters_are_found_by_name(file, monkeypatch):
    monkeypatch.syspath_prepend(file.parent)
    points = [EntryPoint("mine", "provider:Mine", discovery.GROUP), EntryPoint("lost", "nowhere:X", discovery.GROUP)]
    monkeypatch.setattr(discovery, "entry_points", lambda group: points if group == discovery.GROUP else [])
    monkeypatch.setattr(discovery, "BUILT_IN", ())

    assert [one.facts.name for one in find_peers("all")] == ["lost", "mine"]
    assert [one.facts.version for one in find_peers("mine")] == ["1.2"]
    assert find_peers() == []
    with pytest.raises(UnknownPeerError, match="lost, mine"):
        find_peers("yours")


def test_a_package_that_does_not_load_takes_no_name_of_ours(monkeypatch):
    points = [EntryPoint("recoverssm", "nowhere:X", discovery.GROUP)] * 2
    monkeypatch.setattr(discovery, "entry_points", lambda group: points)

    found = find_peers("recoverssm")

    assert [one.facts.name for one in found] == ["recoverssm (2)", "recoverssm (3)"]
    assert {one.facts.missing for one in found} == {"ModuleNotFoundError: No module named 'nowhere'"}


def test_a_package_is_loaded_only_where_it_is_asked_for(file, monkeypatch):
    monkeypatch.syspath_prepend(file.parent)
    points = [EntryPoint("mine", "provider:Mine", discovery.GROUP), EntryPoint("ends", "ends_all:X", discovery.GROUP)]
    (file.parent / "ends_all.py").write_text("raise KeyboardInterrupt")
    monkeypatch.setattr(discovery, "entry_points", lambda group: points)

    assert [one.facts.name for one in find_peers("mine")] == ["mine"]


def test_of_two_peers_of_one_name_the_first_is_measured_and_keeps_the_name(file, tmp_path):
    first, second = find_peers(files=[f"{file}:Mine", f"{file}:Twin"])

    assert first.peer is not None
    assert (first.facts.name, second.facts.name) == ("mine", "provider.py:Twin")
    assert second.facts.title == "Mine as well"
    assert second.facts.missing == "another provider has the name 'mine': give Twin one of its own"


def test_what_is_asked_for_twice_is_measured_once(file):
    twice = [f"{file}:Mine", f"{file.parent}/./{file.name}:Mine"]

    assert [one.facts.name for one in find_peers(files=twice)] == ["mine"]
    assert [one.facts.name for one in find_peers("fla_chunk, fla_chunk")] == ["fla_chunk"]
