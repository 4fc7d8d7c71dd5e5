import json

import msgspec
import pytest

from ci.asv_machine import write_machine
from ci.exits import BrokenEnvironmentError
from tests.ci.nights import ENVIRONMENT


def test_a_machine_is_named_by_its_gpu_and_others_are_kept(tmp_path):
    path = tmp_path / "machines.json"
    path.write_text('{"other": {"machine": "other"}, "version": 1}')

    assert write_machine(ENVIRONMENT, path) == "nvidia-h200"

    found = json.loads(path.read_text())
    assert set(found) == {"other", "nvidia-h200", "version"}
    assert found["nvidia-h200"]["machine"] == found["nvidia-h200"]["gpu"] == "nvidia-h200"
    assert (found["nvidia-h200"]["driver"], found["nvidia-h200"]["triton"]) == ("580.1", "")
    assert {"os", "arch", "cpu", "num_cpu", "ram"} <= set(found["nvidia-h200"])


def test_new_versions_replace_the_old_ones(tmp_path):
    path = tmp_path / "machines.json"
    write_machine(ENVIRONMENT, path)
    write_machine(msgspec.structs.replace(ENVIRONMENT, driver="590.2"), path)

    assert json.loads(path.read_text())["nvidia-h200"]["driver"] == "590.2"
    assert [file.name for file in tmp_path.iterdir()] == ["machines.json"]


@pytest.mark.parametrize("text", ["{", '{"version": 9}', "[]"])
def test_a_file_that_is_not_asvs_is_left_alone(tmp_path, text):
    path = tmp_path / "machines.json"
    path.write_text(text)

    with pytest.raises(BrokenEnvironmentError, match=r"machines\.json"):
        write_machine(ENVIRONMENT, path)

    assert path.read_text() == text
