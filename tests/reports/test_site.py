"""What a build writes, looked at without a browser."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from benchmarks.harness.records import Acceptance, Environment, Measurement, Verdict
from benchmarks.harness.samples import samples_table
from benchmarks.harness.store import Store
from reports.sources import read_stores
from tests.reports.golden import HEADLINE, HOST, SKIP_REASON, UUID, NightPlan, golden_cases, write_night


def build(store: Path, out: Path, *, raw: bool = True) -> str:
    """Build a site and return the text of its pages, in the order of the navigation."""
    from reports.site import build_site
    from reports.sources import read_stores

    build_site(read_stores([str(store)]), out, raw=raw)
    return pages(out)


def pages(site: Path) -> str:
    from reports.pages.registry import PAGES

    return "".join((site / f"{page.name}.html").read_text() for page in PAGES)


def one_night(folder: Path, plan: NightPlan, num_cases: int = 2) -> Store:
    store = Store(folder)
    write_night(store, plan, golden_cases()[:num_cases])
    return store


def text_files(site: Path) -> list[Path]:
    """Everything that is ours to read: not plotly, not the raw files."""
    files = [path for path in site.rglob("*") if path.is_file() and "raw" not in path.relative_to(site).parts]
    return [path for path in files if path.name != "plotly-basic.min.js"]


def test_every_data_file_is_one_strict_json_assignment(golden_site):
    files = sorted((golden_site / "data").rglob("*.js"))

    names = [file.name for file in files]
    assert (
        sum(name.startswith("case-") for name in names)
        == sum(name.startswith("series-kimi") for name in names)
        == 3 * 40
    )
    assert names.count("night.js") == names.count("timeline.js") == 3  # one of each model
    for file in files:
        match = re.fullmatch(r"\(window\.recoverssm_data=.*?\)\[(\".*?\")\]=(.*);\n", file.read_text())
        assert match, file
        json.loads(match[2], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert json.loads(match[1]) == file.relative_to(golden_site / "data").with_suffix("").as_posix()


def compiled_night(store: Store) -> None:
    environment = Environment(gpu_model="sm_103", python="any", torch="any", harness="1", triton="3.6.0")
    facts = {"op": "verify", "provider": "recoverssm", "case": HEADLINE, "contract": "static"}
    figures = [
        Measurement(metric=metric, unit=metric, value=value, reason="verify_mma.py:12", **facts)
        for metric, value in (("registers", 168), ("ctas_per_sm", 3), ("barriers", 10))
    ]
    record = msgspec.structs.replace(
        store.records()[0], id="20260105T000000Z-0123-abc", environment=environment, controls=[], measurements=figures
    )
    store.add_record(record, samples_table([]))
    verdict = Verdict(metric="barriers", unit="x", verdict="regressed", reason="9 to 10", gated=True, **facts)
    night = msgspec.structs.replace(
        store.nights()[0],
        id="20260105T000001Z-0123-abc",
        gpu_model="sm_103",
        records=[record.id],
        verdicts=[verdict],
        exit_code=1,
        accepted=False,
    )
    store.add_night(night)


def test_what_was_compiled_has_a_section_of_its_own_and_is_no_gpu(tmp_path):
    store = one_night(tmp_path / "store", NightPlan(day=4))
    compiled_night(store)
    history = read_stores([str(tmp_path / "store")])
    assert (history.gpu_models(), history.archs()) == (["nvidia-h200"], ["sm_103"])

    from reports.site import build_site

    built = build_site(history, tmp_path / "site")
    assert (built.num_gpu_nights, built.num_cpu_nights, built.num_compiled_nights) == (1, 0, 1)
    page = pages(tmp_path / "site")
    section = page[page.index('<section id="sm_103"') :]
    (row,) = re.findall(rf'<tr data-case="{HEADLINE}".*?</tr>', section, flags=re.S)
    shown = re.findall(r'<td class="number[^>]*>([^<]*)</td>', row)
    assert [text.strip() for text in shown[:4]] == ["168", "3", "–", "10"]
    assert "sm_103, compiled: the last night is red, regressed" in page
    data = (tmp_path / "site" / "data" / "sm_103" / f"case-{HEADLINE}.js").read_text()
    assert "ctas_per_sm" in data


def test_all_addresses_are_relative_and_exist(golden_site):
    page = pages(golden_site)
    addresses = re.findall(r"(?:href|src)=\"([^\"#]+)[\"#]", page)

    assert addresses
    for address in addresses:
        assert address == "data:," or (golden_site / address).is_file(), address


def test_raw_records_and_samples_are_linked_and_copied_whole(golden_site, golden_store):
    page = pages(golden_site)
    originals = sorted((golden_store / "records" / "nvidia-h200").iterdir())

    shown = [file for file in originals if file.name.startswith("20260104")]
    assert len(shown) == 2 * 5
    for file in shown:
        link = f"raw/records/nvidia-h200/{file.name}"
        assert f'href="{link}"' in page
        assert (golden_site / link).read_bytes() == file.read_bytes()


def test_card_and_host_are_named_in_raw_files_only(golden_site):
    for file in text_files(golden_site):
        content = file.read_text()
        assert HOST not in content, file
        assert UUID not in content, file


def test_a_public_site_has_no_raw_file_and_no_link_to_one(golden_store, tmp_path):
    page = build(golden_store, tmp_path / "site", raw=False)

    assert not (tmp_path / "site" / "raw").exists()
    assert 'href="raw/' not in page
    assert "Raw files are left out of this public page" in page


def test_the_page_tells_night_commit_verdicts_and_that_it_is_red(golden_site):
    page = pages(golden_site)

    assert "NVIDIA H200: the last night is red, regressed" in page
    assert "2026-01-04 02:59 UTC" in page
    assert "commit 0404040404" in page
    assert "1 series regressed" in page
    assert f"verify recoverssm device_us, {HEADLINE}: slower by 6.0 %" in page


def test_a_skipped_case_shows_its_reason_and_keeps_its_exact_memory(golden_site):
    page = pages(golden_site)
    row = page[page.index(f"skipped: {SKIP_REASON}") :].split("</tr>")[0]

    assert "85.9" in row


def test_an_empty_store_gives_a_page_that_says_so(tmp_path):
    (tmp_path / "store").mkdir()

    page = build(tmp_path / "store", tmp_path / "site")

    assert "No GPU night is recorded in this store" in page
    assert "There is nothing to show yet" in page


def test_cpu_nights_stand_apart_and_the_page_says_that_no_gpu_night_exists(tmp_path):
    one_night(tmp_path / "store", NightPlan(1, gpu_model="cpu", processes=1))

    page = build(tmp_path / "store", tmp_path / "site")

    assert "No GPU night is recorded" in page
    assert "says nothing about the speed of a GPU" in page
    assert "Verify overhead" not in page
    assert "twin_h2_v32_l2_b2_t8_a3.84_fp32" in page


def test_a_damaged_record_is_named_and_the_others_are_shown(tmp_path):
    store = one_night(tmp_path / "store", NightPlan(1))
    victim = sorted((store.folder / "records").rglob("*.json"))[1]
    victim.write_text(victim.read_text()[:100])

    page = build(store.folder, tmp_path / "site")

    assert "1 file in the store could not be read and is left out" in page
    assert f"{victim.name}: " in page
    assert f"record {victim.stem} is not in any store" in page
    assert "4 processes" in page
    assert victim.exists()  # reading moves nothing


def test_a_night_whose_records_are_all_gone_still_has_a_page(tmp_path):
    store = one_night(tmp_path / "store", NightPlan(1, processes=1))
    for file in (store.folder / "records").rglob("*.*"):
        file.unlink()

    assert "No record of this night could be read" in build(store.folder, tmp_path / "site")


def test_a_record_in_two_stores_counts_once(tmp_path, golden_store):
    from reports.sources import read_stores

    once, twice = read_stores([str(golden_store)]), read_stores([str(golden_store)] * 2)

    assert len(twice.records) == len(once.records)
    assert len(twice.nights) == len(once.nights)


def test_hostile_names_and_reasons_are_escaped(tmp_path):
    import msgspec

    attack = "<script>document.title='owned'</script>"
    cases = [msgspec.structs.replace(golden_cases()[0], name=attack, stands_for=attack)]
    write_night(Store(tmp_path / "store"), NightPlan(1, processes=1, exit_code=1, red_case=attack), cases)

    page = build(tmp_path / "store", tmp_path / "site")

    assert "<script>document" not in page
    assert "&lt;script&gt;document" in page
    assert len(list((tmp_path / "site" / "data" / "nvidia-h200").glob("case-*"))) == 1


def test_an_owners_acceptance_stands_on_the_page_with_its_reason(tmp_path):
    write_night(store := Store(tmp_path / "store"), NightPlan(1, exit_code=1, red_case=HEADLINE), golden_cases()[:1])
    by = Acceptance(owner="kernels", reason="<b>meant</b> to be slower", at_utc="2026-11-30T00:00:00Z")
    store.accept_night(msgspec.structs.replace(store.nights()[0], accepted=True, acceptance=by))

    page = build(tmp_path / "store", tmp_path / "site")

    assert "accepted by kernels" in page
    assert "&lt;b&gt;meant&lt;/b&gt; to be slower" in page
    assert "<b>meant" not in page


def test_a_folder_with_other_peoples_files_is_refused_untouched(tmp_path, golden_store):
    from reports.site import ForeignFolderError

    (tmp_path / "notes.txt").write_text("mine")

    with pytest.raises(ForeignFolderError, match="name an empty folder"):
        build(golden_store, tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_rebuild_leaves_nothing_of_the_last_one(tmp_path):
    both = one_night(tmp_path / "store", NightPlan(1), num_cases=2)
    build(both.folder, tmp_path / "site")
    one_night(tmp_path / "other", NightPlan(1), num_cases=1)

    build(tmp_path / "other", tmp_path / "site")

    files = [path.name for path in (tmp_path / "site" / "data" / "nvidia-h200").rglob("*.js")]
    one, other = (case.name for case in golden_cases()[:2])
    assert any(one in name for name in files)
    assert not any(other in name for name in files)


def test_history_is_cut_where_the_environment_changed(golden_site):
    text = (golden_site / "data" / "nvidia-h200" / f"case-{HEADLINE}.js").read_text()
    history = json.loads(text[text.index("]=") + 2 : -2])["history"]

    assert [night["cut"] for night in history["nights"]] == [
        "",
        "",
        "driver 580.00-synthetic → 590.00-synthetic",
        "",
    ]
    assert [night["red"] for night in history["nights"]] == [False, False, False, True]
    overhead = history["metrics"][0]["lines"][0]["points"]
    assert [round(point["median"], 1) for point in overhead] == [20.0, 14.0, 20.0, 27.2]
    assert {len(point["values"]) for point in overhead} == {5}
