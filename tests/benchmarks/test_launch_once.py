import pytest

from benchmarks.cases import SETS
from benchmarks.launch_once import COUNTED_L2S, case_named, large_cases
from benchmarks.providers.base import layer_sizes


@pytest.mark.parametrize("case", [*SETS["nightly"], *SETS["roofline"]], ids=str)
def test_every_case_of_a_set_is_found_by_its_name(case):
    assert case_named(case.name) == case


@pytest.mark.parametrize("name", ["kimi", "kimi_k3_tp3_b1_t8_a3.84_fp32", "kimi_k3_tp8_b1_t8_a9.99_fp32"])
def test_name_that_is_none_says_what_one_looks_like(name):
    with pytest.raises(LookupError, match="--case: "):
        case_named(name)


def test_large_cases_read_four_times_the_l2_in_one_verify_and_little_more():
    for case in large_cases(60 * 2**20):
        read_bytes = case.num_requests * layer_sizes(case).state_bytes

        assert COUNTED_L2S <= read_bytes / (60 * 2**20) < 2 * COUNTED_L2S
        assert case.num_layers == 3


@pytest.mark.gpu
def test_every_op_of_a_case_is_launched_once_between_the_marks(tmp_path):
    import json

    from typer.testing import CliRunner

    from benchmarks.launch_once import app

    listing = tmp_path / "launches.json"
    name = "kimi_k3_tp8_b32_t3_a2.73_fp32"
    result = CliRunner().invoke(app, ["--set", "smoke", "--case", name, "--listing", str(listing)])

    assert result.exit_code == 0, result.output
    launched = [(one["provider"], one["op"]) for one in json.loads(listing.read_text())["launches"]]
    ours = [("recoverssm", op) for op in ("verify", "commit_plan", "commit_state", "conv")]
    assert launched == [*ours, ("full_state", "verify")]
