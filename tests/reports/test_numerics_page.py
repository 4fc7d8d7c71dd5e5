"""The page of errors."""

import pytest
from msgspec.structs import replace

from benchmarks.harness.records import Check, Measurement
from reports.pages.numerics import numerics_document
from reports.pages.page import Site
from reports.sources import History, read_records
from tests.reports.browsing import opened
from tests.reports.golden import HEADLINE, history_of
from tests.reports.reading import column, shown_rows, table, texts


def exact(op, provider, metric, value):
    return Measurement(metric=metric, op=op, provider=provider, case=HEADLINE, contract="exact", unit="", value=value)


@pytest.fixture
def stored(golden_store):
    """With every measurement and check."""
    return read_records([str(golden_store)])


def with_long_run(stored):
    """Records of the newest H200 night, followed over a long run: 2e-6 at its end, four times the early error."""
    more = [exact("chain", "recoverssm", "state_error", 2e-6), exact("chain", "recoverssm", "state_error_growth", 4.0)]
    check = Check(
        case=HEADLINE, op="chain", provider="recoverssm", metric="state_error", value=2e-6, limit=1e-5, passed=True
    )
    records = [stored.records[id_] for id_ in stored.of("nvidia-h200")[-1].records]
    return [
        replace(record, measurements=[*record.measurements, *more], checks=[*record.checks, check])
        for record in records
    ]


def test_a_long_run_has_its_error_limit_and_growth_and_both_ends_are_drawn(stored, now):
    night = stored.of("nvidia-h200")[-1]
    document = numerics_document(Site(history_of(night, with_long_run(stored)), now))

    assert texts(table(document, "States after a long run")) == [
        [HEADLINE, "bounded gate", "heads written as usual", "RecoverSSM", "2.0e−6", "1.0e−5", "4.00", "2026-01-04"]
    ]
    (chart,) = document.sections[0].charts
    assert [(point.x, point.y) for point in chart.lines[0].points] == [(100, pytest.approx(5e-7)), (10_000, 2e-6)]


def test_processes_that_disagree_on_an_exact_error_have_no_value(stored, now):
    first, *others = with_long_run(stored)
    other = exact("chain", "recoverssm", "state_error", 3e-6)
    odd = replace(first, measurements=[*first.measurements[:-2], other])
    history = history_of(stored.of("nvidia-h200")[-1], [odd, *others])

    found = table(numerics_document(Site(history, now)), "States after a long run")

    assert found.rows[0][4].text == "–"
    assert "disagree" in found.rows[0][4].hint


def test_the_largest_error_of_each_kind_stands_beside_its_limit(golden_history, now):
    document = numerics_document(Site(golden_history, now))
    found = table(document, "Largest errors of single calls", "nvidia-h200")

    assert [row[:6] for row in texts(found)] == [
        ["commit_state", "recoverssm", "state_error", "1.0e−7", "1.0e−6", "10 %"],
        ["verify", "recoverssm", "out_error", "1.5e−3", "3.0e−3", "50 %"],
    ]


def test_errors_by_the_size_of_states_are_explained_where_they_are(stored, now):
    night = stored.of("nvidia-h200")[-1]
    first, *others = (stored.records[id_] for id_ in night.records)
    one = Check(
        case=HEADLINE, op="std_5", provider="recoverssm", metric="ulp_off_pct", value=0.01, limit=0.1, passed=True
    )
    history = history_of(night, [replace(first, checks=[*first.checks, one]), *others])

    def note(history):
        return table(numerics_document(Site(history, now)), "Largest errors of single calls").note

    assert "standard deviation" in note(history)
    assert note(history_of(night, [first, *others])) == ""


def test_a_failed_check_is_listed_with_what_it_saw(stored, now):
    night = stored.of("nvidia-h100")[-1]
    first, *others = (stored.records[id_] for id_ in night.records)
    bad = Check(
        case=HEADLINE,
        op="verify",
        provider="recoverssm",
        metric="untouched",
        value=None,
        limit=0,
        passed=False,
        detail="NaN",
    )
    history = history_of(night, [replace(first, checks=[bad]), *others])

    found = table(numerics_document(Site(history, now)), "Checks that failed")

    assert texts(found) == [[HEADLINE, "verify", "recoverssm", "untouched", "not finite", "0", "✕ NaN"]]


def test_no_failure_says_how_many_checks_passed(golden_history, now):
    night = golden_history.of("nvidia-h100")[-1]
    history = History(nights={night.id: night}, records=golden_history.records, paths=golden_history.paths)

    found = table(numerics_document(Site(history, now)), "Checks that failed")

    assert found.rows == ()
    assert found.empty.startswith("None of 240 checks failed; 80 of them compare bit for bit")


def test_the_page_in_a_browser(browser, golden_site):
    with opened(browser, golden_site, "numerics.html") as page:
        assert "50 %" in [row[5] for row in shown_rows(page, "Largest errors of single calls")]
        assert "No night followed a case over a long run." in page.locator("main").inner_text()


def test_nights_are_listed_newest_first(golden_history, now):
    document = numerics_document(Site(golden_history, now))
    found = table(document, "Night by night: RecoverSSM's largest errors", "nvidia-h200")

    assert column(found, "night, UTC") == [
        day for day in ("2026-01-04", "2026-01-03", "2026-01-02", "2026-01-01") for _ in range(2)
    ]
    assert column(found, "verify, out_error")[0] == "1.5e−3"
