"""GPU models beside each other, and cards of one model."""

from msgspec.structs import replace

from reports.pages.gpus import gpus_document, load
from reports.pages.page import Site
from reports.sources import History
from tests.reports.browsing import opened
from tests.reports.golden import HEADLINE, SKIPPED
from tests.reports.reading import column, shown_rows, table, texts


def test_a_case_that_both_models_have_stands_once_with_both_times_and_their_ratio(golden_history, now):
    found = table(gpus_document(Site(golden_history, now)), "Cases that all models have")
    rows = {(row[0], row[1]): row for row in texts(found)}

    assert [head.label for head in found.heads[2:]] == [
        "NVIDIA H100",
        "of its roofline",
        "NVIDIA H200",
        "of its roofline",
        "NVIDIA H200",
    ]
    h100, h200 = 60.0 * 1.0005, 60.0 * 1.06 * 1.002
    assert rows[HEADLINE, "verify"][2:] == [f"{h100:.1f}", "48.3 %", f"{h200:.1f}", "48.3 %", f"{h200 / h100:.2f}"]
    assert (SKIPPED, "verify") not in rows


def test_each_models_share_of_its_own_roofline_is_drawn(golden_history, now):
    (chart,) = gpus_document(Site(golden_history, now)).sections[0].charts

    assert [line.name for line in chart.lines] == ["NVIDIA H100", "NVIDIA H200"]
    assert [len(line.points) for line in chart.lines] == [39, 39]


def test_one_model_alone_is_said_to_be_alone(golden_history, now):
    nights = {night.id: night for night in golden_history.of("nvidia-h200")}
    document = gpus_document(Site(History(nights=nights, records=golden_history.records), now))

    assert document.sections[0].missing.startswith("Only NVIDIA H200 is recorded")
    assert [section.key for section in document.sections] == ["models", "nvidia-h200"]


def test_cards_of_a_model_are_told_apart_by_their_hash(golden_history, now):
    night = golden_history.of("nvidia-h100")[-1]
    first, second = (golden_history.records[id_] for id_ in night.records)
    other = replace(second, silicon=replace(second.silicon, gpu_uuid="GPU-other"))
    history = History(nights={night.id: night}, records={first.id: first, other.id: other})

    found = table(gpus_document(Site(history, now)), "Card by card")

    assert len(set(column(found, "card"))) == 2
    assert all(card.startswith("#") for card in column(found, "card"))
    assert column(found, "processes") == ["1", "1"]
    assert column(found, "copy stream, TB/s") == ["3.980", "3.980"]
    assert column(found, "held back, ms a process") == ["2", "2"]


def test_without_a_gpu_night_the_page_says_so(now):
    assert load(Site(History(), now)).missing == "No night of a GPU is recorded in these stores."


def test_the_page_in_a_browser(browser, golden_site):
    with opened(browser, golden_site, "gpus.html") as page:
        assert [row[0] for row in shown_rows(page, "Card by card")] != []
        assert page.locator("[data-figure=verify] .mark").count() == 2 * 39 + 2
