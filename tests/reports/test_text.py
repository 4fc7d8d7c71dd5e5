"""How numbers are written: always with a unit, never with a sign that means nothing."""

import pytest

from reports import text
from reports.derive import Figure


def plain(written: str) -> str:
    return written.replace(text.NBSP, " ")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(13.66, "+13.7 %"), (-3.25, "−3.2 %"), (0.04, "0.0 %"), (-0.04, "0.0 %"), (None, "–"), (1234.5, "+1,234.5 %")],
)
def test_a_signed_percentage_has_a_sign_unless_it_rounds_to_zero(value, expected):
    assert plain(text.percent(value, signed=True)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(7.504, "7.50 µs"), (61.09, "61.1 µs"), (1571.4, "1,571 µs"), (0.0, "0.00 µs"), (None, "–")],
)
def test_a_time_keeps_about_four_digits(value, expected):
    assert plain(text.value_with_unit(value, "us")) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (512, "512 B"),
        (1536, "1.50 KiB"),
        (1002 << 20, "0.98 GiB"),
        (3 << 20, "3.00 MiB"),
        (12.155e9, "11.32 GiB"),
        (-(2 << 40), "−2,048.00 GiB"),
    ],
)
def test_bytes_take_a_unit_that_leaves_fewer_than_a_thousand(value, expected):
    assert plain(text.size(value)) == expected


@pytest.mark.parametrize("unit", ["pct", "%"])
def test_percent_is_known_under_both_its_names(unit):
    assert plain(text.value_with_unit(10.973, unit)) == "10.97 %"


def test_an_unknown_unit_is_written_as_the_record_names_it():
    assert text.value_with_unit(3.5, "tokens") == "3.5 tokens"


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ("2026-11-29T14:07:51Z", "2026-11-29 14:07 UTC"),
        ("2026-11-29T16:07:51+02:00", "2026-11-29 14:07 UTC"),
        (None, "unknown time"),
        ("yesterday", "yesterday"),
    ],
)
def test_times_are_shown_in_utc_and_say_so(stamp, expected):
    assert text.utc(stamp) == expected


def test_a_range_needs_two_processes_and_says_when_all_agree():
    assert text.span(Figure((1.0,)), "us") == ""
    assert text.span(Figure((1.0, 1.0)), "us") == "same in every process"
    assert plain(text.span(Figure((1.0, 3.0, 2.0)), "us")) == "1.00 µs to 3.00 µs"


def test_a_hash_tells_identities_apart_without_naming_them():
    first, second = text.short_hash("GPU-a"), text.short_hash("GPU-b")

    assert first != second
    assert "GPU" not in first
    assert len(first) == 9


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "", "x" * 300 + "/", "x" * 300, "<script>"])
def test_a_hostile_name_becomes_a_harmless_file_name(name):
    slug = text.file_slug(name)

    assert "/" not in slug
    assert not slug.startswith(".")
    assert 0 < len(slug) < 80


def test_names_that_differ_only_in_forbidden_characters_get_different_files():
    assert text.file_slug("a/b") != text.file_slug("a?b")
    assert text.file_slug("kimi_k3_tp8_b32_t8_a3.84_fp32") == "kimi_k3_tp8_b32_t8_a3.84_fp32"


def test_names_sort_by_their_numbers():
    assert sorted(["b128_t8", "b8_t8", "b32_t8"], key=text.natural_key) == ["b8_t8", "b32_t8", "b128_t8"]


@pytest.mark.parametrize(("value", "expected"), [(1.5e-3, "1.5e−3"), (0, "0"), (17, "17"), (None, "not finite")])
def test_small_errors_are_written_in_powers_of_ten(value, expected):
    assert text.scientific(value) == expected
