"""The page of the trust records."""

import pytest

from reports.drawing import draw
from reports.pages.trust import trust_document
from reports.trust_records import Trust, read_trust
from tests.reports.browsing import opened
from tests.reports.golden_trust import LOUD, QUIET, UNKNOWN, golden_trust, write_trust
from tests.reports.reading import column, shown_rows, table, texts, unfold


def document(folder, *records):
    return trust_document(read_trust(write_trust(folder, *records)))


def test_each_promise_says_in_words_whether_it_is_kept(tmp_path):
    rows = texts(table(document(tmp_path), "Promises"))

    assert [row[0] for row in rows] == ["false alarms", "series blind to 3 %", "delays of 3 %"]
    assert [row[3] for row in rows] == ["✓ kept", "✕ missed", "? cannot be told"]


def test_alarms_stand_beside_their_exact_bound_and_a_model_claims_none(tmp_path):
    found = table(document(tmp_path), "False alarms")

    assert column(found, "95 % bound, at most") == ["0.99 %", "none claimed", "–", "95.00 %"]
    assert column(found, "rate") == ["0.00 %", "0.20 %", "0.20 %", "–"]


def test_without_disjoint_gates_no_rate_and_no_bound_is_shown(tmp_path):
    from msgspec.structs import replace

    from ci.calibrate.trust import DisjointGates

    none = DisjointGates(num_gates=0, num_with_suspects=0, num_with_alarm=0, num_unsettled=0, upper_pct=None)
    found = table(document(tmp_path, replace(golden_trust(), disjoint=none)), "False alarms")

    assert texts(found)[0][1:] == ["0", "0, 0 unsettled", "0", "–", "–"]


def test_blind_series_are_those_that_miss_the_effect_or_cannot_tell(tmp_path):
    found = document(tmp_path)

    assert column(table(found, "Series blind to 3 %"), "case") == [UNKNOWN, LOUD]
    assert column(table(found, "All 3 series, worst first"), "case") == [UNKNOWN, LOUD, QUIET]
    assert column(table(found, "All 3 series, worst first"), "detectable") == ["–", "4.50 %", "1.25 %"]
    assert column(table(found, "All 3 series, worst first"), "+2 % found") == ["–", "20.00 %", "99.00 %"]


def test_power_is_drawn_and_written_for_both_kinds_of_delay(tmp_path):
    found = document(tmp_path)
    power, detectable = (chart for section in found.sections for chart in section.charts)

    assert column(table(found, "Slowdowns found"), "found, on the device") == ["59.5 %", "95.0 %"]
    assert [[point.y for point in line.points] for line in power.lines] == [[59.5, 95.0], [61.0, 94.0]]
    assert [point.x for point in detectable.lines[0].points] == [1.25, 4.5]
    assert [point.y for point in detectable.lines[0].points] == pytest.approx([100 / 3, 200 / 3])
    assert "1 of 3 series" in detectable.note


def test_no_collected_delay_is_said_and_draws_nothing(tmp_path):
    from msgspec.structs import replace

    found = document(tmp_path, replace(golden_trust(), power=[]))

    assert table(found, "Slowdowns found").rows == ()
    assert draw(found.sections[1].charts[0]) is None


def test_the_newest_record_of_each_model_is_shown_and_older_ones_are_linked(tmp_path):
    older = golden_trust(newest_utc="2025-12-01T00:00:00Z")
    found = document(tmp_path, golden_trust(), older, golden_trust("nvidia-h100"))

    assert [section.key for section in found.sections if "promised" in section.title] == ["nvidia-h100", "nvidia-h200"]
    assert [link.text for link in found.sections[-1].links] == ["nvidia-h200-2025-12-01-dddddddd.json"]


def test_a_damaged_record_is_named_beside_the_good_ones(tmp_path):
    write_trust(tmp_path)
    (tmp_path / "bad.json").write_text('{"schema_version": 1')
    trust = read_trust(tmp_path)

    assert len(trust.records) == 1
    assert trust_document(trust).sections[-1].missing.startswith("bad.json: no trust record:")


def test_no_folder_is_no_record(tmp_path):
    assert read_trust(tmp_path / "none") == Trust()


def test_the_page_shows_figures_draws_and_links_the_record(browser, golden_site):
    with opened(browser, golden_site, "trust.html") as page:
        unfold(page)

        assert [row[3] for row in shown_rows(page, "Promises")] == ["✓ kept", "✕ missed", "? cannot be told"]
        assert page.locator("[data-figure=nvidia-h200-power] .mark").count() == 2 * 2 + 2  # and the legend
        link = page.locator("a", has_text="nvidia-h200-2026-01-04").get_attribute("href")
        assert (golden_site / link).is_file()
        assert (golden_site / "figures" / "trust-nvidia-h200-power.svg").read_text().startswith("<svg")


def test_a_figure_is_saved_as_a_picture(browser, golden_site):
    with opened(browser, golden_site, "trust.html") as page:
        with page.expect_download() as download:
            page.locator("[data-png=nvidia-h200-power]").click()
        assert download.value.suggested_filename == "nvidia-h200-power.png"
        assert download.value.path().read_bytes().startswith(b"\x89PNG")
