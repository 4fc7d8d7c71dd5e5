"""The page of what surrounded each night."""

from msgspec.structs import replace

from benchmarks.harness.store import Store
from reports.pages.page import Site
from reports.pages.runs import DETAILED, runs_document
from reports.sources import History, read_stores
from tests.reports.browsing import opened
from tests.reports.golden import HEADLINE, HOST, UUID, NightPlan, golden_cases, write_night
from tests.reports.reading import column, shown_rows, texts, unfold


def section(document, key):
    return next(one for one in document.sections if one.key == key)


def test_each_night_says_what_differs_from_the_one_before(golden_history, now):
    (found,) = section(runs_document(Site(golden_history, now)), "nvidia-h200").tables

    assert column(found, "environment since the night before") == [
        "nothing",
        "driver 580.00-synthetic → 590.00-synthetic",
        "nothing",
        "first night",
    ]
    assert column(found, "result") == ["✕ regressed", "✓ passed", "✓ passed", "✓ passed"]


def test_what_does_not_count_has_its_reason(golden_history, now):
    night = golden_history.of("nvidia-h200")[-1]
    odd = replace(
        night,
        records=night.records[1:],
        left_out=[night.records[0], "gone"],
        notes=["record x: the card drifted"],
        quarantined=["records/bad.json: not JSON"],
    )
    history = History(nights={odd.id: odd}, records=golden_history.records, paths=golden_history.paths)

    (fold,) = section(runs_document(Site(history, now)), "nvidia-h200").folds
    processes, excluded, _ = fold.tables
    rows = texts(excluded)

    assert column(processes, "counts") == ["yes"] * 4 + ["no, left out"]
    assert ["night", "record x: the card drifted"] in rows
    assert ["file", "records/bad.json: not JSON"] in rows
    assert ["record gone", "in no store in readable form"] in rows
    assert [
        "skipped: recoverssm verify device_us, 5 times",
        "needs 153.2 GiB of device memory, 139.7 GiB are free",
    ] in rows


def test_what_others_leave_out_is_the_leagues_to_say(tmp_path, now):
    write_night(Store(tmp_path), NightPlan(1, others=("full_state",)))

    (fold,) = section(runs_document(Site(read_stores([str(tmp_path)]), now)), "nvidia-h200").folds

    said = [row[0] for row in texts(fold.tables[1])]
    assert any("recoverssm" in line for line in said)
    assert not any("full_state" in line for line in said)


def test_only_the_newest_nights_are_opened_and_the_table_has_all(tmp_path, now):
    store = Store(tmp_path)
    for day in range(1, DETAILED + 4):
        write_night(store, NightPlan(day, processes=1), golden_cases()[:1])

    found = section(runs_document(Site(read_stores([str(tmp_path)]), now)), "nvidia-h200")

    assert len(found.folds) == DETAILED
    assert found.folds[0].title.startswith(f"2026-01-{DETAILED + 3:02d}")
    assert len(found.tables[0].rows) == DETAILED + 3
    assert found.lead == (
        f"Of {DETAILED + 3} nights the newest {DETAILED} are opened below; the table links the files of all.",
    )


def test_a_night_whose_records_are_gone_is_shown_without_them(golden_history, now):
    night = golden_history.of("nvidia-h200")[-1]

    (fold,) = section(runs_document(Site(History(nights={night.id: night}), now)), "nvidia-h200").folds

    assert [one.empty for one in fold.tables if not one.rows] == ["No record of this night can be read.", "Not known."]


def test_files_that_could_not_be_read_come_first(golden_history, now):
    history = History(nights=golden_history.nights, records=golden_history.records, damaged=["store/x.json: truncated"])

    assert texts(runs_document(Site(history, now)).sections[0].tables[0]) == [["store/x.json: truncated"]]


def test_the_page_links_raw_files_and_names_no_card(browser, golden_site):
    with opened(browser, golden_site, "runs.html") as page:
        unfold(page)
        links = [link.get_attribute("href") for link in page.locator("main a[href]").all()]

        assert any(link.endswith(".parquet") for link in links)
        assert [link for link in links if not (golden_site / link).exists()] == []
        assert UUID not in page.content()
        assert HOST not in page.content()
        assert len(shown_rows(page, "Nights, newest first")) == 4 + 1 + 1


def test_a_public_page_links_nothing(golden_history, now):
    document = runs_document(Site(golden_history, now, raw=False))

    found = [
        one for part in document.sections for one in (*part.tables, *(t for fold in part.folds for t in fold.tables))
    ]
    assert all(not cell.href for one in found for row in one.rows for cell in row)


def test_hostile_reasons_and_names_stay_text(browser, golden_store, tmp_path):
    from reports.site import build_site

    attack = f"</script><img src=x onerror=\"document.title='owned'\">{'x' * 300}"
    cases = [replace(golden_cases()[0], name=attack, stands_for=attack)]
    write_night(Store(tmp_path / "store"), NightPlan(1, exit_code=1, red_case=attack), cases)
    history = read_stores([str(tmp_path / "store")])
    night = next(iter(history.nights.values()))
    history.nights[night.id] = replace(night, notes=[attack], quarantined=[attack])
    build_site(history, tmp_path / "site")

    for name in ("runs", "numerics", "roofline", "gpus"):
        with opened(browser, tmp_path / "site", f"{name}.html") as page:
            unfold(page)
            assert page.locator("img").count() == 0
            assert "owned" not in page.title()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert HEADLINE not in (tmp_path / "site" / "runs.html").read_text()
