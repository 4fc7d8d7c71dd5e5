"""Rows of the launch table after tuning: what was tuned changes, whatever else a launch gets stays."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.exits import UsageError
from ci.launch_rows import Row, merged, read_rows, retuned, selection, write_table
from recoverssm.launch import load_table

WINDOWS, HEADS = (1, 5, 9), (0, 96, 384)
PLACES = list(product(WINDOWS, HEADS))


def row(form="recurrence", value=16, place=(1, 0), arch=90):
    return Row("verify", arch, "fp32", form, {"BV": value}, f"{form} {value}", place[1], place[0])


PORTABLE = row(value=1, arch=0)


def forms(rows, place):
    return [(one.form, one.constants["BV"]) for one in selection(rows, place)]


def test_a_tuned_place_holds_up_to_the_next_one_that_has_rows():
    before = [PORTABLE, row(value=4), row(value=32, place=(1, 384))]
    after = [PORTABLE, *retuned(before, 90, {(1, 96): [row("mma", 8)]})]

    assert [forms(after, (1, heads))[0] for heads in (0, 96, 200, 384)] == [
        ("recurrence", 4),
        ("mma", 8),
        ("mma", 8),
        ("recurrence", 32),
    ]


def test_a_window_that_is_new_takes_larger_batches_along_as_they_were():
    before = [PORTABLE, row(value=4), row(value=32, place=(1, 384))]
    after = [PORTABLE, *retuned(before, 90, {(5, 96): [row("mma", 8)]})]

    assert forms(after, (5, 0))[0] == ("recurrence", 4)
    assert forms(after, (5, 96))[0] == ("mma", 8)
    assert forms(after, (5, 384))[0] == ("recurrence", 32)


def test_what_means_the_same_as_before_is_not_written():
    before = [PORTABLE, row(value=4)]

    assert retuned(before, 90, {(1, 0): [row(value=4)], (5, 384): [row(value=4)]}) == [before[1]]
    assert retuned([PORTABLE], 90, {(1, 0): [row(value=1)]}) == []


def test_equally_special_rows_stand_in_the_order_wanted():
    after = retuned([PORTABLE], 90, {(1, 0): [row("mma", 8), row(value=4)]})

    assert [(one.form, one.place) for one in after] == [("mma", (1, 0)), ("recurrence", (1, 0))]


places = st.sampled_from(PLACES)
some_rows = st.lists(
    st.builds(
        lambda place, form, value: row(form, value, place),
        places,
        st.sampled_from(["recurrence", "mma"]),
        st.integers(2, 5),
    ),
    max_size=6,
    unique_by=lambda one: (one.place, one.form),
)
wanted_rows = st.dictionaries(
    places,
    st.sampled_from([[row(value=7)], [row("mma", 8), row(value=7)], [row("mma", 9)]]),
    max_size=4,
)


@given(own=some_rows, wanted=wanted_rows)
def test_tuned_places_get_theirs_others_keep_theirs_and_again_changes_nothing(own, wanted):
    before = [PORTABLE, *own]
    after = [PORTABLE, *retuned(before, 90, wanted)]

    occupied = {one.place for one in own} | wanted.keys()
    for place in PLACES:
        if place in wanted:
            expected = [(one.form, one.constants["BV"]) for one in wanted[place]]
            assert forms(after, place)[: len(expected)] == expected
        elif place in occupied:
            expected = forms(before, place)
            assert forms(after, place)[: len(expected)] == expected
    assert retuned(after, 90, wanted) == after[1:]


def test_new_rows_stand_where_the_old_ones_stood():
    first, second = (replace(row(), op=op) for op in ("verify", "commit_state"))
    text = "# kept\n\n" + first.block() + second.block()

    new = merged(text, "verify", 90, "fp32", [row("mma", 8)])

    assert new == ("# kept\n\n" + row("mma", 8).block() + second.block()).rstrip("\n") + "\n"
    assert merged(new, "verify", 90, "fp32", read_rows(new)[1][:1]) == new


def test_a_file_whose_rows_stay_keeps_its_own_spacing():
    text = f"# kept\n{row().block()}\n\n{PORTABLE.block()}\n\n"

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
