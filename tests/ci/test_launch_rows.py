"""Rows of the launch table after tuning: what was tuned changes, whatever else a launch gets stays."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.exits import UsageError
from ci.launch_rows import Row, applying, merged, read_rows, retuned, write_table
from recoverssm.launch import load_table

WINDOWS, HEADS = (1, 5, 9), (0, 96, 384)
PLACES = list(product(WINDOWS, HEADS))


def row(value=16, place=(1, 0), form="mma"):
    return Row("verify", 90, "fp32", form, {"BV": value}, f"{form} {value}", place[1], place[0])


def values(rows, *places):
    return [applying([one for one in rows if one.form == "mma"], place).constants["BV"] for place in places]


def test_a_tuned_place_holds_up_to_the_next_one_that_has_a_row():
    after = retuned([row(4), row(32, (1, 384))], "mma", {(1, 96): row(8)})

    assert values(after, (1, 0), (1, 96), (1, 200), (1, 384)) == [4, 8, 8, 32]


def test_a_window_that_is_new_takes_larger_batches_along_as_they_were():
    after = retuned([row(4), row(32, (1, 384))], "mma", {(5, 96): row(8)})

    assert values(after, (1, 96), (5, 0), (5, 96), (5, 384)) == [4, 4, 8, 32]


def test_what_means_the_same_as_before_is_not_written():
    before = [row(4)]

    assert retuned(before, "mma", {(1, 0): row(4), (5, 384): row(4)}) == before


def test_rows_of_other_forms_stay_where_they_are():
    first, last = row(1, form="wgmma"), row(2, form="recurrence")

    assert retuned([first, row(4), last], "mma", {(1, 0): row(8)}) == [first, row(8), last]
    assert retuned([first, last], "mma", {(1, 0): row(8)}) == [first, last, row(8)]


places = st.sampled_from(PLACES)
some_rows = st.lists(
    st.builds(lambda place, value: row(value, place), places, st.integers(2, 5)),
    max_size=6,
    unique_by=lambda one: one.place,
)


@given(own=some_rows, wanted=st.dictionaries(places, st.integers(4, 7).map(row), max_size=4))
def test_tuned_places_get_theirs_others_keep_theirs_and_again_changes_nothing(own, wanted):
    after = retuned(own, "mma", wanted)

    for place in {one.place for one in own} | wanted.keys():
        assert applying(after, place).launches_as(wanted.get(place) or applying(own, place))
    assert retuned(after, "mma", wanted) == after


def test_new_rows_stand_where_the_old_ones_stood():
    first, second = (replace(row(), op=op) for op in ("verify", "commit_state"))
    text = "# kept\n\n" + first.block() + second.block()

    new = merged(text, "verify", 90, "fp32", [row(8)])

    assert new == ("# kept\n\n" + row(8).block() + second.block()).rstrip("\n") + "\n"
    assert merged(new, "verify", 90, "fp32", read_rows(new)[1][:1]) == new


def test_a_file_whose_rows_stay_keeps_its_own_spacing():
    text = f"# kept\n{row().block()}\n\n{replace(row(), arch=0).block()}\n\n"

    assert merged(text, "verify", 90, "fp32", [row()]) == text


def test_what_is_written_loads_again_with_every_kind_of_constant(tmp_path):
    path = tmp_path / "table.toml"
    constants = {"BV": 16, "TWO": True, "order": 'a "b"'}

    assert write_table(path, replace(row(), constants=constants).block())
    assert not write_table(path, path.read_text())
    (loaded,) = load_table(path)
    assert loaded.constants == constants
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_is_no_row_is_shown():
    with pytest.raises(UsageError, match=r"cannot be read: .*\n\[\[row\]\]\nop = 1"):
        read_rows("[[row]]\nop = 1\n\n[[other]]\n")
