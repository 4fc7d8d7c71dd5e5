from importlib.metadata import EntryPoint

import pytest

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

class NoPeer(Mine):
    ops = ("commit", "fold")

class Ours(Mine):
    name = "full_state"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "provider.py"
    path.write_text(GOOD)
    return path


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
        ("Broken", "does not load: RuntimeError: of another torch"),
        (
            "NoPeer",
            "TypeError: NoPeer.ops: expected some of verify, commit, commit_state, conv, got ('commit', 'fold')",
        ),
        ("Ours", "another provider has the name 'full_state'"),
        ("Nobody", "AttributeError: module 'recoverssm_provider_provider' has no attribute 'Nobody'"),
    ],
)
def test_a_peer_that_cannot_be_measured_is_found_with_its_reason(file, name, reason):
    (found,) = find_peers(files=[f"{file}:{name}"])

    assert found.peer is None
    assert found.facts.missing == reason
    assert "/" not in found.facts.name  # folders of a machine are nobody's business


def test_a_file_that_is_not_there_is_a_mistake_of_the_command_line(tmp_path):
    with pytest.raises(UnknownPeerError, match=r"expected path/to/file\.py:Class"):
        find_peers(files=[f"{tmp_path / 'none.py'}:Mine"])
    with pytest.raises(UnknownPeerError, match=r"expected path/to/file\.py:Class"):
        find_peers(files=["Mine"])


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


def test_of_two_peers_of_one_name_the_first_is_measured(file):
    first, second = find_peers(files=[f"{file}:Mine", f"{file}:Mine"])

    assert first.peer is not None
    assert second.facts.missing == "another provider has the name 'mine'"
