"""`ci history variance`: components of a store with known spreads, the shares, and the table in the documents."""

import json
import re
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from benchmarks.harness.record_files import encode
from benchmarks.harness.records import Silicon
from benchmarks.harness.samples import SCHEMA
from ci.__main__ import app
from ci.exits import Exit, MissingDataError, UsageError
from ci.history.variance import MARK, markdown, variance
from ci.marked import marks, write_between_marks
from tests.ci.nights import CASE, ENVIRONMENT, drifting
from tests.ci.stores import SPREAD, MadeNight, leave_out, make_night, put_at_url, store_nights

MARKS = marks(MARK)

ROOT = Path(__file__).resolve().parents[2]
ONE = CASE.replace("b32", "b1")
# Process means 98, 100, 102 (variance 4); samples -0.5, 0, 0.5 about them (variance 0.25).
LEVELS = (98.0, 100.0, 102.0)


def spread_of(table, op="verify", provider="recoverssm"):
    (found,) = [s for s in table.spreads if s.op == op and s.provider == provider]
    return found


def ask(folder, *nights, **options):
    return variance([str(store_nights(folder, *nights).folder)], **options)


def test_components_of_one_night_are_those_of_its_samples(tmp_path):
    found = spread_of(ask(tmp_path, make_night(1, levels=LEVELS)))

    within = sum(step**2 for step in SPREAD) / 2
    assert found.within_pct == pytest.approx(within**0.5)
    assert found.between_processes_pct == pytest.approx((4.0 - within / 3) ** 0.5)
    assert found.between_occasions_pct is None
    assert found.process_sd_pct == pytest.approx(2.0)
    assert (found.num_occasions, found.num_processes, found.num_samples) == (1, 3, 9)


def test_samples_that_do_not_count_are_left_out_and_older_files_have_none(tmp_path):
    made = make_night(1, levels=LEVELS)
    store = store_nights(tmp_path, made)
    first, second, _ = sorted((tmp_path / "records").rglob("*.parquet"))
    rows = pq.read_table(first).to_pylist()
    dropped = [row | {"value": 1e6, "accepted": False} for row in rows]
    pq.write_table(pa.Table.from_pylist([*rows, *dropped], schema=SCHEMA), first)
    pq.write_table(pq.read_table(second).drop_columns(["accepted"]), second)

    found = spread_of(variance([str(store.folder)]))

    assert found.num_samples == 9
    assert found.process_sd_pct == pytest.approx(2.0)


def test_the_newest_nights_of_the_gpu_models_that_fit_are_read(tmp_path, monkeypatch):
    other = msgspec.structs.replace(ENVIRONMENT, gpu_model="nvidia-h100")
    made = [make_night(day, levels=LEVELS) for day in range(1, 5)]
    store = store_nights(tmp_path / "store", *made, make_night(9, environment=other))
    url, asked = put_at_url(store, tmp_path, monkeypatch)

    found = spread_of(variance([url], gpu_model="nvidia-h200*", nights=2))

    assert found.num_occasions == 2
    assert {Path(name).name[:8] for name in asked} == {"20261103", "20261104"}


@pytest.mark.parametrize("value", [None, 98.0], ids=["too few samples", "impossible"])
def test_samples_of_a_series_that_was_refused_do_not_count(tmp_path, value):
    """Its samples are kept, so that people can look at them, but they are no measurement."""
    made = make_night(1, levels=LEVELS)
    first = made.records[0]
    refused = msgspec.structs.replace(first.measurements[0], status="invalid", value=value, n_dropped=30)
    store = store_nights(tmp_path, made)
    path = next(tmp_path.rglob(f"{first.id}.json"))
    path.write_bytes(encode(msgspec.structs.replace(first, measurements=[refused, *first.measurements[1:]])))

    table = variance([str(store.folder)])

    assert (spread_of(table).num_processes, spread_of(table).num_samples) == (2, 6)
    assert spread_of(table, provider="full_state").num_processes == 3


def test_a_process_whose_controls_disagree_is_left_out_though_an_old_night_counts_it(tmp_path):
    made = make_night(1, levels=[*LEVELS, 150.0])
    *good, last = made.records
    bad = msgspec.structs.replace(last, controls=drifting(279.0))

    table = ask(tmp_path, MadeNight(made.night, [*good, bad]))

    assert spread_of(table).num_processes == 3
    assert spread_of(table).process_sd_pct == pytest.approx(2.0)
    assert table.notes == [
        f"record {bad.id}: left out: control copy took +11.6 % at the end of the process (limit 2 %): the card drifted"
    ]


def test_a_process_that_a_night_left_out_counts_where_its_controls_agree(tmp_path):
    """A night's verdict is judged by the limits of its day; the spread of all nights by one."""
    assert spread_of(ask(tmp_path, leave_out(make_night(1, levels=LEVELS)))).num_processes == 3


def test_each_card_of_a_night_on_several_is_an_occasion(tmp_path):
    made = make_night(1, levels=[*LEVELS, *(level + 20 for level in LEVELS)])
    cards = [Silicon(gpu_uuid=uuid) for uuid in ["GPU-1"] * 3 + ["GPU-2"] * 3]
    of_cards = [msgspec.structs.replace(r, silicon=card) for r, card in zip(made.records, cards, strict=True)]

    found = spread_of(ask(tmp_path, MadeNight(made.night, of_cards)))

    assert found.num_occasions == 2
    assert found.process_sd_pct == pytest.approx(100 * 2.0 / 110)


def test_nights_of_the_same_code_are_occasions(tmp_path):
    nights = [make_night(1, levels=LEVELS), make_night(2, levels=[level + 20 for level in LEVELS])]

    found = spread_of(ask(tmp_path, *nights))

    assert found.num_occasions == 2
    assert found.between_occasions_pct == pytest.approx(100 * (200 - 4.0 / 3) ** 0.5 / 110)
    assert found.process_sd_pct == pytest.approx(100 * 2.0 / 110)


def test_nights_of_other_code_are_left_out_and_counted(tmp_path):
    nights = [make_night(1, source_hash="old"), make_night(2), make_night(3)]

    table = ask(tmp_path, *nights)

    assert spread_of(table).num_occasions == 2
    assert table.notes == ["nvidia-h200: 1 nights of another environment or other sources are left out"]


def test_nights_of_other_code_are_put_together_when_asked_for(tmp_path):
    table = ask(tmp_path, make_night(1, source_hash="old"), make_night(2), across_code=True)

    assert spread_of(table).num_occasions == 2
    assert table.notes == []


def test_nights_of_another_environment_are_never_put_together(tmp_path):
    other = msgspec.structs.replace(ENVIRONMENT, driver="570.0")

    table = ask(tmp_path, make_night(1, environment=other), make_night(2), across_code=True)

    assert spread_of(table).num_occasions == 1


def test_globs_choose_cases_and_metrics(tmp_path):
    store = store_nights(tmp_path, make_night(1, cases=[CASE, ONE]))

    table = variance([str(store.folder)], case="*_b1_*", metric="device_*")

    assert {s.case for s in table.spreads} == {ONE}
    with pytest.raises(MissingDataError):
        variance([str(store.folder)], metric="host_us")


def test_shares_count_device_times_by_batch_size(tmp_path):
    quiet, noisy = make_night(1, levels=(100.0, 100.1, 100.2)), make_night(1, levels=LEVELS)

    (large, small) = ask(tmp_path / "quiet", quiet).shares("nvidia-h200")
    assert (large.num_series, large.num_within, large.share_pct, large.kept) == (3, 3, 100.0, True)
    assert (small.num_series, small.share_pct, small.kept) == (0, None, None)

    (large, _) = ask(tmp_path / "noisy", noisy).shares("nvidia-h200")
    assert (large.num_within, large.kept) == (0, False)


def test_table_says_one_occasion_and_the_share(tmp_path):
    text = markdown(ask(tmp_path, make_night(1)))

    assert "From one occasion with 3 processes in all, so the part between occasions is unknown." in text
    assert "| nvidia-h200 | verify | recoverssm | graph-cold | >= 32 | 1 |" in text
    assert "0 of 3 device-time series (0 %)" in text


def test_table_says_when_an_estimate_was_negative(tmp_path):
    assert "3 have a negative estimate between processes" in markdown(ask(tmp_path, make_night(1, levels=[100.0] * 3)))


def test_text_goes_between_the_marks_and_nothing_else_changes(tmp_path):
    path = tmp_path / "a.md"
    path.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nafter\n")

    for _ in range(2):
        write_between_marks(path, MARK, "new")
        assert path.read_text() == f"before\n{MARKS[0]}\n\nnew\n\n{MARKS[1]}\nafter\n"


def test_a_document_without_marks_is_a_usage_error(tmp_path):
    (tmp_path / "a.md").write_text("text")

    with pytest.raises(UsageError, match="variance:start"):
        write_between_marks(tmp_path / "a.md", MARK, "new")


def test_a_document_that_is_not_there_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no such document"):
        write_between_marks(tmp_path / "a.md", MARK, "new")


def test_the_figures_in_the_documents_are_those_of_the_recorded_nights():
    text = (ROOT / "docs" / "measuring.md").read_text()
    shown = re.search(f"{MARKS[0]}\n(.*){MARKS[1]}", text, re.DOTALL)[1].strip()

    assert shown == markdown(variance([str(ROOT / "reports" / "history")], gpu_model="nvidia-h200")), (
        "run: python -m ci history variance --store reports/history --gpu-model nvidia-h200 --write docs/measuring.md"
    )


def test_command_prints_every_series_as_json(tmp_path):
    store_nights(tmp_path, make_night(1))

    result = CliRunner().invoke(app, ["history", "variance", "--store", str(tmp_path), "--json"])

    assert result.exit_code == Exit.PASS
    found = json.loads(result.stdout)
    assert len(found["series"]) == 3
    assert found["series"][0]["between_occasions_pct"] is None
    assert found["shares"]["nvidia-h200"][0]["limit_pct"] == 0.5


def test_command_writes_the_table(tmp_path):
    store_nights(tmp_path / "store", make_night(1))
    (tmp_path / "a.md").write_text("".join(MARKS))

    result = CliRunner().invoke(
        app, ["history", "variance", "--store", str(tmp_path / "store"), "--write", str(tmp_path / "a.md")]
    )

    assert result.exit_code == Exit.PASS
    assert "From one occasion" in (tmp_path / "a.md").read_text()
