"""What a night prints: its verdicts, and what to do next."""

import msgspec
import pytest

from benchmarks.harness import records
from ci.show import next_step, show_night
from tests.ci.nights import QUIET, make_record, make_records, timed


def shown(night, console_factory, **options):
    console, read = console_factory
    show_night(night, console, **options)
    return read()


@pytest.fixture
def plain(tmp_path):
    from rich.console import Console

    file = (tmp_path / "table.txt").open("w+")
    yield Console(file=file, width=80), lambda: (file.seek(0), file.read())[1]
    file.close()


def test_many_findings_are_counted_sorted_and_cut_with_a_word(fake_night, plain):
    before = [make_record([timed(v, op=f"op{i:03}") for i in range(60)]) for v in QUIET]
    after = [make_record([timed(v * (1.5 if i == 59 else 1.1), op=f"op{i:03}") for i in range(60)]) for v in QUIET]
    fake_night.night(before)
    night = fake_night.night(after).nights[0]

    text = shown(night, plain, rows=40)

    rows = [line for line in text.splitlines() if line.startswith("regressed ")]
    assert "60 series: 60 regressed" in text
    assert "40 of 60 shown, strongest evidence first" in text
    assert len(rows) == 40
    assert "op059" in rows[0]


def test_what_is_not_gated_is_counted_apart(fake_night, plain):
    peers = [records.PeerFacts(name="theirs")]
    theirs = timed(None, provider="theirs", status="failed", reason="wrong")
    night = fake_night.night([make_record([timed(v), theirs], peers=peers) for v in QUIET]).nights[0]

    assert "2 series: 1 new; not gated: 1 invalid" in shown(night, plain)


def test_lines_are_whole_whatever_the_width(fake_night, plain):
    fake_night.night(make_records())
    night = fake_night.night(make_records([2 * v for v in QUIET])).nights[0]

    text = shown(night, plain)

    assert "device_us/verify/recoverssm/kimi_k3_tp8_b32_t8_a3.84_fp32/graph-cold 200 us +100.00 %:" in text


def test_new_and_unchanged_series_are_counted_but_not_listed(fake_night, plain):
    night = fake_night.night(make_records()).nights[0]

    text = shown(night, plain)

    assert f"{len(night.verdicts)} new" in text
    assert "graph-cold" not in text


def test_regression_says_how_to_measure_it_again(fake_night):
    fake_night.night(make_records())
    night = fake_night.night(make_records([2 * v for v in QUIET])).nights[0]

    step = next_step(night, "S")

    assert "--case 'kimi_k3_tp8_b32_t8_a3.84_fp32' --processes 12 --store S" in step


def test_night_that_lacks_a_shard_says_how_it_comes_in(fake_night):
    night = msgspec.structs.replace(fake_night.night(make_records()).nights[0], lacks=["2/3"], exit_code=3)

    assert next_step(night, "S") == (
        "bring shard 2/3 in: python -m ci history import SRC --store S; or measure it; then merge again"
    )


def test_every_alarm_says_how_to_measure_it_again(fake_night, plain):
    fake_night.night(make_records())
    night = fake_night.night(make_records([2 * v for v in QUIET])).nights[0]

    series = "--case kimi_k3_tp8_b32_t8_a3.84_fp32 --op verify --metric device_us"
    assert f"  again: python -m ci reproduce {night.id} {series}\n" in shown(night, plain)
