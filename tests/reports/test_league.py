"""The league: other projects' kernels beside ours, from the processes that measured both."""

from dataclasses import replace

import msgspec
import pytest

from benchmarks.harness import records
from reports.league import Entry, league_of, leagues_of, rivals
from reports.league_table import league_table
from reports.pages.commit import Others
from reports.pages.league import PAGE, league_document
from reports.pages.page import Site
from reports.peers import read_peers
from reports.process import Process
from reports.sources import History
from tests.ci.nights import ENVIRONMENT, make_case, make_record, timed
from tests.reports.golden import history_of as in_memory
from tests.reports.reading import table, texts

B32, B1 = "kimi_k3_tp8_b32_t8_a3.84_fp32", "kimi_k3_tp8_b1_t8_a3.84_fp32"
RING = records.PeerFacts(
    name="ring",
    title="Ring",
    version="1.2",
    licence="MIT",
    source="its wheel",
    scheme="recoverssm",
    covers="replays inputs",
    tolerance={"out": 3e-3},
    tolerance_reason="one rounding",
)
CHUNK = msgspec.structs.replace(RING, name="chunk", title="Chunk", scheme="last_state", covers="")
GONE = records.PeerFacts(name="gone", title="Gone", licence="MIT", missing="not installed: pip install gone")


def of(provider, case, **times):
    return [timed(value, provider=provider, op=op, case=case) for op, value in times.items()]


def process(scale=1.0, created="2026-01-05T01:00:00Z"):
    measurements = [
        *of("recoverssm", B32, verify=10.0 * scale, commit=900.0, commit_state=880.0, step=1600.0),
        *of("full_state", B32, verify=60.0, step=4200.0),
        *of("ring", B32, verify=46.0 * scale, commit_state=800.0, step=4400.0),
        *of("recoverssm", B1, verify=4.0, commit=40.0, commit_state=38.0, step=320.0),
        *of("chunk", B1, verify=3.0),
        timed(None, provider="chunk", case=B32, status="skipped", reason="too many requests"),
    ]
    check = records.Check(
        case=B32, op="verify", provider="ring", metric="out_error", value=1.7e-3, limit=3e-3, passed=True
    )
    worse = msgspec.structs.replace(check, case=B1, value=2.1e-3)
    return make_record(
        measurements,
        cases=[make_case(B32), make_case(B1, 1)],
        checks=[check, worse],
        peers=[RING, CHUNK, GONE],
        created_utc=created,
    )


def history_of(found, case_set="league", model="nvidia-h200"):
    night = records.Night(
        id="20260105T020000Z-0123456-aaaaaa",
        created_utc="2026-01-05T02:00:00Z",
        case_set=case_set,
        gpu_model=model,
        records=[record.id for record in found],
        verdicts=[],
        accepted=False,
        exit_code=0,
    )
    return in_memory(night, found)


@pytest.fixture
def league():
    return league_of(history_of([process(), process(1.1)]), "nvidia-h200")


def plain(text):
    return text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{MINUS SIGN}", "-")


def test_a_ratio_is_taken_inside_each_process(league):
    verify = league.standing(Entry(RING), "verify", B32)

    assert verify.figure.values == pytest.approx((46.0, 50.6))
    assert verify.ratio.values == pytest.approx((4.6, 4.6))


def test_a_part_of_a_commit_is_held_against_the_same_part_of_ours(league):
    commit = league.standing(Entry(RING), "commit", B32)

    assert (commit.op, commit.ours.median) == ("commit_state", 880.0)
    assert commit.ratio.median == pytest.approx(800 / 880)
    assert league.is_partial(Entry(RING), "step")
    assert not league.is_partial(Entry(RING), "verify")
    assert not league.is_partial(Entry(CHUNK), "step")


def test_where_a_peer_wins_is_said_first_and_rivals_before_who_keeps_no_states(league):
    assert [(one.entry.name, one.standing.op, one.case.name) for one in league.defeats()] == [
        ("ring", "commit_state", B32),
        ("chunk", "verify", B1),
    ]
    section = league_document(Site(history_of([process()]), None), [league]).sections[0]
    first, (fold,) = section.tables[0], section.folds
    assert first.title == "Where another kernel is faster than ours"
    assert texts(first) == [
        ["Ring 1.2", "one state and records", "commit_state", "1 of 1", B32, "800.0", "880.0", "0.91 ×"],
        ["Chunk 1.2", "the last state alone", "verify", "1 of 1", B1, "3.00", "4.00", "0.75 ×"],
    ]
    assert [row[3] for row in texts(fold.tables[0])] == [B32, B1]


def test_a_kernel_that_is_faster_in_many_cases_has_a_line_for_each_op():
    slow, fast = process(), process()
    other = B32.replace("b32", "b8")
    more = [*of("recoverssm", other, verify=10.0), *of("ring", other, verify=20.0)]
    more += [*of("recoverssm", B1, conv=10.0), *of("ring", B1, conv=5.0, verify=2.0)]
    cases = [*slow.cases, make_case(other, 8)]
    found = msgspec.structs.replace(fast, measurements=[*fast.measurements, *more], cases=cases)

    section = league_document(Site(History(), None), [league_of(history_of([found]), "nvidia-h200")]).sections[0]

    lines = [(row[0], row[2], row[3], row[-1]) for row in texts(section.tables[0])]
    assert lines == [
        ("Ring 1.2", "verify", "1 of 3", "0.50 ×"),
        ("Ring 1.2", "conv", "1 of 1", "0.50 ×"),
        ("Ring 1.2", "commit_state", "1 of 1", "0.91 ×"),
        ("Chunk 1.2", "verify", "1 of 1", "0.75 ×"),
    ]


def test_every_kernel_says_its_errors_tolerance_and_why_it_has_no_time(league):
    document = league_document(Site(history_of([process()]), None), [league])
    rows = {row[0]: [plain(cell) for cell in row[1:]] for row in texts(table(document, "Kernels"))}

    assert rows["Ring 1.2"] == [
        "one state and records", "measured", "out 2.1e-3", "out 0.003",
    ]  # fmt: skip
    assert texts(table(document, "Sources")) == [
        ["Ring 1.2", "replays inputs", "MIT", "its wheel"],
        ["Chunk 1.2", "–", "MIT", "its wheel"],
        ["Gone", "–", "MIT", "–"],
    ]
    assert rows["Chunk 1.2"][1] == "skipped: too many requests (1 case)"
    assert rows["Gone"][1] == "not measured: not installed: pip install gone"


def test_a_table_of_an_op_has_a_line_for_each_kernel_that_has_it(league):
    document = league_document(Site(history_of([process()]), None), [league])
    found = table(document, "Commit of all layers, 3.84 accepted")

    assert [head.label for head in found.heads] == ["kernel", "B = 1, fp32", "B = 32, fp32"]
    assert texts(found) == [
        ["RecoverSSM, this repository", "40.0", "900.0"],
        ["Ring 1.2 †", "–", "800.0 (0.91 ×)"],
    ]


def test_errors_stand_beside_the_times_of_the_op_that_they_are_of(league):
    verify = table(league_document(Site(History(), None), [league]), "Verify of one layer, 3.84 accepted")

    assert verify.heads[-1].label == "largest errors"
    assert [plain(row[-1]) for row in texts(verify)] == ["–", "–", "out 2.1e-3", "–"]
    of_ring = next(entry for entry in league.entries if entry.name == "ring")
    (b32,) = (case for case in league.cases if case.name == B32)
    assert league.errors(of_ring, "verify", [b32]) == {"out": 1.7e-3}


def test_a_time_shorter_than_ours_is_marked_also_where_it_is_our_own_full_states():
    made = process()
    made = msgspec.structs.replace(made, measurements=[*made.measurements, *of("full_state", B1, verify=3.5)])
    league = league_of(history_of([made]), "nvidia-h200")

    verify = table(league_document(Site(History(), None), [league]), "Verify of one layer, 3.84 accepted")

    tones = {plain(row[0].text): [cell.tone for cell in row[1:3]] for row in verify.rows}
    assert tones["full state, this repository"] == ["warn", ""]
    assert tones["Ring 1.2"] == ["", ""]
    assert tones["Chunk 1.2"][0] == "warn"


def test_the_readme_says_what_is_lost_then_all_kernels_then_what_is_missing(league):
    lines = plain(league_table(league, ["*_b32_*"])).splitlines()

    assert lines[0].startswith(
        "**Faster than ours in these cases**: commit_state of Ring 1.2 at B = 32, fp32 (800.0 against"
    )
    assert lines[2] == "| µs | B = 32, fp32 | largest errors |"
    assert lines[4] == "| **RecoverSSM, this repository** | 10.5 / 900.0 / 1,600 | – |"
    assert lines[5].startswith("| full state, this repository | 60.0 / – / 4,200 |")
    assert len([line for line in lines if line.startswith("| ")]) == 5  # no line for a kernel without any number
    assert lines[6] == "| Ring 1.2 | 48.3 / 800.0† / 4,400† | out 2.1e-3 |"
    assert "Not measured: Gone." in lines[-1]
    assert "†: without all parts of a commit." in lines[-1]
    assert league_table(league, ["*_t16_*"]) is None


def test_where_nothing_is_lost_the_readme_says_so(league):
    assert league_table(league, ["*_b1_*"]).startswith(
        "**No kernel that can take tokens back is faster than ours**"
    )  # a last state is no rival


def test_a_step_of_full_state_and_a_conv_are_losses_too():
    more = [*of("full_state", B1, step=300.0), *of("recoverssm", B1, conv=3.4), *of("ring", B1, conv=2.9)]
    found = process()
    found = msgspec.structs.replace(found, measurements=[*found.measurements, *more])
    league = league_of(history_of([found]), "nvidia-h200")

    lost = [(one.entry.name, one.standing.op) for one in league.defeats() if one.case.name == B1]
    assert lost == [("ring", "conv"), ("full_state", "step"), ("chunk", "verify")]
    assert plain(league_table(league, ["*_b1_*"])).startswith(
        "**Faster than ours in these cases**: conv of Ring 1.2 at B = 1, fp32 (2.90 against 3.40 µs); "
        "step of full state, this repository at B = 1, fp32 (300.0 against 320.0 µs)."
    )


def test_a_league_says_which_cases_it_has_and_that_its_set_has_more(league):
    assert league.extent == "2 cases: B = 1, 32; T = 8"
    part = msgspec.structs.replace(league.night, notes=[f"{records.SOME_CASES} '*_a3*'"])
    assert replace(league, night=part).extent == "2 cases of its set: B = 1, 32; T = 8"
    assert league.extent in league_document(Site(History(), None), [league]).sections[0].lead[0]
    assert league.extent in league_table(league, ["*_b1_*"])


def test_foreign_words_keep_their_place_in_the_readme():
    title = "Ring <b>|</b>, *fast* [x](y)"
    facts = msgspec.structs.replace(RING, title=title)
    gone = msgspec.structs.replace(GONE, title="@all | <img>")
    found = league_of(history_of([msgspec.structs.replace(process(), peers=[facts, CHUNK, gone])]), "nvidia-h200")

    table = league_table(found, ["*_b32_*"])

    assert title not in table
    assert "| Ring \\<b\\>\\|\\</b\\> 1.2, \\*fast\\* \\[x\\](y) |" in table
    assert "Not measured: &#64;all \\| \\<img\\>." in table


def test_kernels_of_one_title_are_told_apart_by_their_names():
    twin = msgspec.structs.replace(RING, name="ring_2")
    found = league_of(history_of([msgspec.structs.replace(process(), peers=[RING, twin, CHUNK])]), "nvidia-h200")

    assert [entry.title for entry in found.entries[2:]] == ["Ring (ring) 1.2", "Ring (ring_2) 1.2", "Chunk 1.2"]


def test_a_last_state_in_the_readme_says_what_it_keeps(league):
    assert "| Chunk 1.2 (keeps the last state alone) |" in league_table(league, ["*_b1_*"])


def later(history, **changes):
    """The history with one more night, of the next day."""
    newer = process(created="2026-01-06T01:00:00Z")
    changes = {"id": "z", "created_utc": "2026-01-06T02:00:00Z", "records": [newer.id]} | changes
    history.nights["z"] = msgspec.structs.replace(history.of("nvidia-h200")[0], **changes)
    history.records[newer.id], history.whole[newer.id] = Process.of(newer), newer
    return history


def test_a_newer_night_of_another_set_stands_before_the_league_on_the_page():
    history = later(history_of([process()]), case_set="smoke")

    document = PAGE.load(Site(history, None)).view

    titles = [section.title for section in document.sections]
    assert titles == [
        f"NVIDIA H200{part}{section}"
        for part in (", set smoke", "")
        for section in ("", ": 8 tokens a window, 12 heads", ": kernels")
    ]
    assert len({section.key for section in document.sections}) == 6


def test_an_older_night_of_another_set_stands_behind_the_league():
    history = later(history_of([process()], case_set="published"), case_set="league")

    assert [one.night.case_set for one in leagues_of(history, "nvidia-h200")] == ["league", "published"]


def test_a_league_that_was_judged_invalid_is_shown_where_there_is_no_other_and_says_so():
    valid, alone = later(history_of([process()]), exit_code=4), history_of([process()])
    alone.nights = {key: msgspec.structs.replace(night, exit_code=4) for key, night in alone.nights.items()}

    assert league_of(valid, "nvidia-h200").night.id != "z"
    found = league_of(alone, "nvidia-h200")
    assert "The night was judged invalid: nobody should believe its times" in league_table(found, ["*_b32_*"])
    assert "judged invalid" in league_document(Site(alone, None), [found]).sections[0].lead[1]


def test_the_newest_league_is_shown_before_newer_nights_of_other_sets():
    older, newer = process(), process(created="2026-01-06T01:00:00Z")
    history = history_of([older])
    night = msgspec.structs.replace(
        history.of("nvidia-h200")[0], id="z", created_utc="2026-01-06T02:00:00Z", case_set="smoke", records=[newer.id]
    )
    history.nights["z"], history.records[newer.id] = night, Process.of(newer)

    assert league_of(history, "nvidia-h200").night.case_set == "league"
    assert league_of(History(), "nvidia-h200") is None
    assert league_of(history_of([make_record([timed(1.0)])]), "nvidia-h200") is None


def test_the_commit_page_takes_the_league_before_what_was_measured_by_hand(league):
    peers, case = read_peers(), make_case(B32)

    assert list(rivals(league, B32)) == [("Ring 1.2", 800.0, "state alone")]
    assert Others(peers, league, "nvidia-h200").of(case) == [("Ring 1.2", 800.0, "state alone")]
    by_hand = Others(peers, None, "nvidia-h200").of(case)
    assert by_hand
    assert all(covers.endswith("by hand") for _, _, covers in by_hand)
    assert Others(peers, None, "nvidia-h100").of(case) == []


def test_a_night_without_a_gpu_shows_the_adapter_at_work():
    measurements = [
        timed(v, op="verify", provider=name, case="twin", metric="host_us", contract="cpu-reference")
        for name, v in (("torch", 2000.0), ("ring", 500.0))
    ]
    environment = msgspec.structs.replace(ENVIRONMENT, gpu_model="cpu")
    record = make_record(measurements, cases=[make_case("twin", 2)], peers=[RING], environment=environment)
    site = Site(history_of([record], model="cpu"), None)
    content = PAGE.load(site)

    verify = table(content.view, "Verify of one layer, 3.84 accepted")
    assert texts(verify) == [["the reference, float64 torch", "2,000"], ["Ring 1.2", "500.0 (0.25 ×)"]]


def test_without_a_league_the_page_says_how_to_measure_one():
    assert "--set league --providers all" in PAGE.load(Site(History(), None)).missing


def test_a_version_stands_behind_the_project():
    facts = records.PeerFacts(name="x", title="vLLM, full state", version="0.33.0")

    assert Entry(facts).title == "vLLM 0.33.0, full state"
    assert Entry(records.PeerFacts(name="x")).title == "x"
