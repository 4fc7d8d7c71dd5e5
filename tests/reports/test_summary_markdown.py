"""The pages in short, as Markdown."""

import pytest

from reports.pages.page import Site
from reports.sources import History
from reports.summary import UnknownPageError, summary_document, summary_markdown
from reports.trust_records import read_trust
from tests.reports.golden import HEADLINE
from tests.reports.golden_trust import write_trust
from tests.reports.reading import NBSP, table, texts


def test_open_regressions_come_first_and_each_model_has_its_verdicts_and_headlines(golden_history, now):
    document = summary_document(Site(golden_history, now))

    assert [section.title for section in document.sections] == ["Regressions", "NVIDIA H100", "NVIDIA H200", "CPU"]
    (row,) = texts(table(document, "Open"))
    assert row[:4] == ["▲ new", "NVIDIA H200", "+6.0 % (95 %: +5.1 % to +6.9 %)", "1"]
    h200 = document.sections[2]
    assert h200.lead[0].startswith("✕ regressed: night of 2026-01-04")
    assert h200.lead[1].startswith("Gated series: ▲ 1 regressed, = ")
    assert texts(h200.tables[1])[0][:3] == ["Verify overhead", "+27.2 %", "slower than full state"]


def test_it_is_markdown_with_the_pages_that_were_asked_for(golden_history, now, tmp_path):
    site = Site(golden_history, now, trust=read_trust(write_trust(tmp_path)))

    written = summary_markdown(site, ["trust", "static", "trust"]).replace(NBSP, " ")

    assert written.startswith("# RecoverSSM nights\n\nBuilt 2026-01-04 08:00 UTC.\n\n## Regressions")
    assert written.count("\n# Trust\n") == 1
    assert "| false alarms | at most 1 % | 0 of 300 | ✓ kept |" in written
    assert "# Static\n\n## Static\n\nNo night of these stores has compiled kernels: " in written
    assert HEADLINE.replace("_", r"\_") in written


def test_a_page_that_is_no_document_is_refused_with_those_that_are(golden_history, now):
    with pytest.raises(UnknownPageError, match=r"expected some of league, gpus, roofline, .*about, got index, x"):
        summary_markdown(Site(golden_history, now), ["index", "x"])


def test_no_night_is_said(now):
    assert "No night is recorded in these stores." in summary_markdown(Site(History(), now))


def test_unreadable_files_are_named(golden_history, now):
    history = History(
        nights=golden_history.nights,
        records=golden_history.records,
        paths=golden_history.paths,
        damaged=["store/x.json: truncated"],
    )

    assert texts(table(summary_document(Site(history, now)), "Files that could not be read")) == [
        ["store/x.json: truncated"]
    ]
