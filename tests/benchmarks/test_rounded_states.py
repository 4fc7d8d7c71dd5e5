"""What formats alone cost: the table, and rounding up or down by chance."""

import torch
from typer.testing import CliRunner

from benchmarks.rounded_states import FORMATS, HEADS, app, rounded_chain, stochastically_rounded


def test_errors_follow_the_digits_of_the_format():
    (_, first), (_, last) = rounded_chain(12, {1, 12}, None, size=16)

    for errors in (first, last):
        fp32, bf16, fp16, _ = errors.unbind()
        assert errors.shape == (len(FORMATS) - 1, len(HEADS))
        assert (fp32 < 1e-6).all()
        assert (fp16 < bf16 / 4).all()
    assert (last > first).all()


def test_a_stochastically_rounded_value_is_a_neighbour_and_right_on_average():
    exact = torch.full((10_000,), 1 + 2**-9, dtype=torch.float64)  # a quarter of the way to the next bf16

    rounded = stochastically_rounded(exact)

    assert set(rounded.tolist()) == {1.0, 1 + 2**-7}
    assert abs(float(rounded.double().mean()) - float(exact[0])) < 2e-4


def test_the_table_has_a_row_for_every_head_and_power_of_ten():
    result = CliRunner().invoke(app, ["--steps", "12"])

    assert result.exit_code == 0, result.output
    rows = [line.split()[:2] for line in result.output.splitlines()[1:]]
    assert rows == [["10", "usual"], ["10", "weak"], ["12", "usual"], ["12", "weak"]]
