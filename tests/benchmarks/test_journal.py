"""What a measuring process keeps line by line, and what a successor makes of it."""

import itertools
import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from benchmarks.harness.gpu_monitor import Reading
from benchmarks.harness.measure import Samples
from benchmarks.harness.records import Control, MonitorSummary
from benchmarks.journal import (
    MAX_GAP_S,
    MAX_RESTARTS,
    Begun,
    Blamed,
    Died,
    Journal,
    JournalBusyError,
    PartBegun,
    append,
    culprit,
    journal_path,
    part_of_peer,
    read_journal,
)
from benchmarks.results import Results

IDENTITY = {"seed": "7", "source": "abc"}
SAMPLES = Samples((1.0, 2.0, 3.0, 4.0, 5.0, 6.0), 3, "enough", (0.1, 0.2, 0.3, 0.4, 0.5, 0.6))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "record.journal"


def measure(path, parts, crash_in=None, identity=IDENTITY):
    """Measure one series per part that is not finished or blamed; returns the results and the journal as closed."""
    results = Results()
    journal = Journal(path, results, identity)
    journal.readings = lambda: [Reading(1.0, power_w=200.0)] * len(results.samples)
    journal.monitor = lambda: MonitorSummary(num_readings=len(results.samples))
    try:
        with journal:
            for part in parts:
                if journal.is_finished(part):
                    continue
                with journal.part(part):
                    if part == crash_in:
                        raise KeyboardInterrupt
                    if reason := journal.blame(part):
                        results.add_without_value("verify", "ours", part, "graph-cold", "failed", reason)
                    else:
                        results.add_samples("verify", "ours", part, "graph-cold", SAMPLES)
    except KeyboardInterrupt:
        pass
    return results, journal


def test_successor_takes_over_what_was_finished_and_measures_the_rest(path):
    first, _ = measure(path, "abc", crash_in="c")
    second, journal = measure(path, "abc")

    assert [item.case for item in second.measurements] == ["a", "b", "c"]
    assert second.measurements[:2] == first.measurements
    assert second.samples[:2] == first.samples
    (attempt,) = journal.attempts([])
    assert (attempt.num_parts, attempt.lost) == (2, None)
    assert "without a word" in attempt.ended


def test_readings_are_kept_once_with_the_part_they_belong_to(path):
    measure(path, "abc", crash_in="c")

    (past,) = read_journal(path).pasts
    assert [len(part.readings) for part in past.parts] == [1, 1]
    assert past.monitor.num_readings == 2


@pytest.mark.parametrize("cut", [1, 7, 60])
def test_line_that_a_crash_cut_off_is_measured_again_and_does_no_harm(path, cut):
    measure(path, "abc", crash_in="c")
    whole = path.read_bytes()
    end_of_b = whole.index(b'"part":"b"', whole.index(b'"part_ended","part":"b"'))
    path.write_bytes(whole[: end_of_b + cut])

    results, _ = measure(path, "abc")

    assert [item.case for item in results.measurements] == ["a", "b", "c"]
    assert read_journal(path).finished == {"a", "b", "c"}
    assert read_journal(path).num_bytes == path.stat().st_size


def controls_of(median_us):
    names = ("copy", "fma")
    return [Control(name=n, read_bytes=1, write_bytes=1, median_us=median_us, bytes_per_s=1.0) for n in names]


@pytest.fixture
def clock(monkeypatch):
    """Set ``clock.now`` to say what the wall clock shows to the journal."""
    clock = SimpleNamespace(now=datetime(2026, 11, 29, 12, 0, tzinfo=UTC))
    monkeypatch.setattr("benchmarks.journal.utc_now", lambda: f"{clock.now:%Y-%m-%dT%H:%M:%SZ}")
    return clock


def begin(path, controls, parts, clock, wait_s=0.0):
    """A process that begins ``wait_s`` later, takes controls (or not), measures and dies; its attempts if it ended."""
    clock.now += timedelta(seconds=wait_s)
    results = Results()
    with Journal(path, results, IDENTITY) as journal:
        if controls is not None:
            journal.note_controls(controls_of(controls))
        for part in parts:
            with journal.part(part):
                results.add_samples("verify", "ours", part, "graph-cold", SAMPLES)
        return journal.attempts(controls_of(controls) if controls is not None else [])


def test_controls_of_the_process_that_went_on_are_the_ends_of_its_predecessor(path, clock):
    begin(path, 100.0, "ab", clock)
    (attempt,) = begin(path, 103.0, "c", clock, wait_s=200)

    assert attempt.controls == controls_of(100.0)
    assert attempt.drift_pct == {"copy": pytest.approx(3.0), "fma": pytest.approx(3.0)}


def test_process_that_died_before_its_controls_is_no_end(path, clock):
    begin(path, 100.0, "ab", clock)
    begin(path, None, "", clock, wait_s=10)
    first, second = begin(path, 101.0, "c", clock, wait_s=10)

    assert first.drift_pct == {"copy": pytest.approx(1.0), "fma": pytest.approx(1.0)}
    assert (second.num_parts, second.controls, second.drift_pct) == (0, [], {})


def test_each_process_has_its_ends_from_the_next_one(path, clock):
    begin(path, 100.0, "a", clock)
    begin(path, 104.0, "b", clock, wait_s=10)
    first, second = begin(path, 100.0, "c", clock, wait_s=10)

    assert first.drift_pct["copy"] == pytest.approx(4.0)
    assert second.drift_pct["copy"] == pytest.approx(-3.846, abs=0.001)


def test_process_that_goes_on_much_later_says_nothing_of_the_card_before(path, clock):
    begin(path, 100.0, "ab", clock)
    (attempt,) = begin(path, 100.0, "c", clock, wait_s=MAX_GAP_S + 1)

    assert (attempt.controls, attempt.drift_pct) == (controls_of(100.0), {})


def test_journal_without_times_or_controls_as_older_programs_wrote_it_has_no_ends(path, clock):
    begin(path, None, "ab", clock)
    path.write_text(re.sub(r',"ended_utc":"[^"]*"', "", path.read_text()))
    (attempt,) = begin(path, 100.0, "c", clock)

    assert (attempt.num_parts, attempt.drift_pct) == (2, {})


def test_blamed_part_is_not_tried_and_its_series_says_why(path):
    measure(path, "abc", crash_in="b")
    append(path, [Died("killed by SIGSEGV"), Blamed("b", "killed by SIGSEGV")])

    results, journal = measure(path, "abc")

    status = {item.case: (item.status, item.reason) for item in results.measurements}
    assert status["b"] == ("failed", "killed by SIGSEGV")
    assert status["c"][0] == "ok"
    (attempt,) = journal.attempts([])
    assert (attempt.ended, attempt.lost, attempt.num_parts) == ("killed by SIGSEGV", "b", 1)


def test_process_that_nobody_saw_die_counts_against_no_part(path):
    for _ in range(2 * MAX_RESTARTS):
        measure(path, "ab", crash_in="b")  # and with it the night: killed, both of them

    results, _ = measure(path, "ab")

    assert [item.status for item in results.measurements] == ["ok", "ok"]


@pytest.fixture
def restart(monkeypatch):
    """Call it to restart the machine."""
    boots = itertools.count()

    def restart():
        boot = f"boot {next(boots)}"
        monkeypatch.setattr("benchmarks.journal.boot_id", lambda: boot)

    restart()
    return restart


def test_part_in_which_the_machine_restarts_again_and_again_is_blamed(path, restart):
    for _ in range(MAX_RESTARTS - 1):
        measure(path, "ab", crash_in="b")
        restart()
    assert read_journal(path).blamed == {}
    measure(path, "ab", crash_in="b")
    restart()

    results, _ = measure(path, "ab")

    assert results.measurements[1].reason == f"the machine restarted {MAX_RESTARTS} times while it was measured"
    assert read_journal(path).finished == {"a", "b"}


def test_restarts_between_processes_count_against_no_part(path, restart):
    for _ in range(2 * MAX_RESTARTS):
        measure(path, "ab", crash_in="b")
        append(path, [Died("SIGINT", cancelled=True)])
        restart()

    results, _ = measure(path, "ab")

    assert [item.status for item in results.measurements] == ["ok", "ok"]


def test_cancelled_process_counts_against_no_part(path):
    for _ in range(2 * MAX_RESTARTS):
        measure(path, "ab", crash_in="b")
        append(path, [Died("SIGINT", cancelled=True)])

    results, _ = measure(path, "ab")

    assert [item.status for item in results.measurements] == ["ok", "ok"]


def test_journal_of_other_code_is_put_aside_and_named(path):
    measure(path, "ab", crash_in="b")

    results, journal = measure(path, "ab", identity=IDENTITY | {"source": "def"})

    assert len(results.measurements) == 2
    assert journal.history.pasts == []
    assert journal.stale == path.with_suffix(".stale")
    assert read_journal(journal.stale).finished == {"a"}


def test_two_processes_never_write_one_journal(path):
    with Journal(path, Results(), IDENTITY), pytest.raises(JournalBusyError, match="another process"):
        append(path, [Blamed("a", "x")])


def test_no_file_is_an_empty_journal_and_a_journal_without_a_path_writes_none(tmp_path):
    results, journal = measure(None, "ab")

    assert len(results.measurements) == 2
    assert not journal.is_finished("a")
    assert read_journal(journal_path(tmp_path / "record.json")).pasts == []
    assert list(tmp_path.iterdir()) == []


def test_blame_before_anything_has_run_counts_too(path):
    append(path, [Blamed("a", "it ended two processes")])

    results, _ = measure(path, "ab")

    assert [item.status for item in results.measurements] == ["failed", "ok"]


def test_part_begun_and_open_is_known_to_the_parent(path):
    append(path, [Begun("2026-11-29T00:00:00Z", IDENTITY), PartBegun("a")])

    assert read_journal(path).open_part == "a"


def test_what_a_kernel_of_others_ends_counts_against_all_of_it():
    assert culprit("case") == "case"
    assert (
        culprit(part_of_peer("time twin", "mine")) == culprit(part_of_peer("loading", "mine")) == "everything of mine"
    )


def test_loading_is_a_part_to_blame_and_measures_nothing(path):
    journal = Journal(path, Results(), IDENTITY)
    with journal, journal.loading("loading of mine"):
        assert read_journal(path).open_part == "loading of mine"

    found = read_journal(path)
    assert (found.open_part, found.finished, found.pasts[0].parts) == (None, set(), [])
    append(path, [Blamed("everything of mine", "killed")])
    with Journal(path, Results(), IDENTITY) as journal:
        assert journal.blame("loading of mine") == journal.blame("case of mine") == "killed"
        assert journal.blame("case") is None
