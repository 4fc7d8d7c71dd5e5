"""Trust records of made-up sets whose answer is known, and what becomes of sets that cannot be scored."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.harness.stats.calibration import GATE, WHOLE, Limits
from benchmarks.harness.stats.paired import PairLimits, detectable_pct
from ci.__main__ import app
from ci.calibrate import score as scoring
from ci.calibrate import trust
from ci.calibrate.dataset import fingerprint, merged, read, write
from ci.calibrate.draws import Kinds, disjoint_gates
from ci.calibrate.identical import identical_pairs
from ci.calibrate.publish import from_records
from ci.calibrate.score import Sizes, all_limits, of_model, policy_sha256, score, usable
from ci.calibrate.targets import targets
from ci.calibrate.text import trust_markdown
from ci.exits import MissingDataError, UsageError
from ci.gate.result import encode
from ci.marked import marks
from ci.policy import load_policy
from tests.ci.collected import collection
from tests.ci.gate_results import result, verdict

QUIET = {"verify": (300.0, 0.2), "commit": (900.0, 0.3), "step": (2000.0, 0.2)}
SIZES = Sizes(gates=60, trials=10)


def written(tmp_path, *occasions):
    parts = [
        from_records(list(collection(name, ops, seed=seed, hours=seed, **facts)))
        for seed, (name, ops, facts) in enumerate(occasions)
    ]
    write(merged(parts), tmp_path)
    return tmp_path


@pytest.fixture
def quiet(tmp_path):
    facts = {"plain": 24, "delays": (2.0, 5.0), "each": 6}
    return written(tmp_path / "v1", ("one", QUIET, facts), ("two", QUIET, facts))


def met(record):
    return {one.name: one.met for one in record.targets}


def test_quiet_card_finds_everything_and_raises_no_alarm(quiet):
    record = score(quiet, sizes=replace(SIZES, gates=2000))

    assert [(one.delay_pct, one.realised_pct, one.real_pct) for one in record.power] == [(2, 2, 100), (5, 5, 100)]
    assert (record.disjoint.num_gates, record.disjoint.num_with_alarm) == (2, 0)
    assert record.blind_pct == {"2": 0, "3": 0}
    kept = met(record)
    assert kept.pop("false alarms, exact bound") is None  # two gates show next to nothing
    assert kept.pop("delays of 3 % found, all series") is None  # not collected
    assert set(kept.values()) == {True}


def test_loud_series_are_blind_and_worst_first(tmp_path):
    loud = {**QUIET, "conv": (50.0, 4.0)}
    record = score(written(tmp_path, ("one", loud, {"plain": 24, "delays": (2.0,), "each": 6})), sizes=SIZES)

    assert record.series[0].op == "conv"
    assert record.series[0].process_sd_pct == pytest.approx(4.0, rel=0.5)
    assert [one.op for one in record.blind(3.0)] == ["conv"]
    assert record.blind_pct["3"] == 25
    assert met(record)["series blind to 3 %"] is False
    assert record.power[0].real_pct < 85


def test_series_of_two_modes_is_labelled_and_promises_less(tmp_path):
    ops = {"verify": (300.0, 0.2), "conv": (50.0, 0.2)}
    data = from_records(list(collection("one", ops, plain=24)))
    slow = {(one.process, series.key) for one in data.processes[::2] for series in data.series if series.op == "conv"}
    values = {
        at: replace(value, median=value.median * (1.06 if at in slow else 1)) for at, value in data.values.items()
    }
    write(replace(data, values=values), tmp_path)

    conv, verify = score(tmp_path, sizes=SIZES).series

    assert (conv.op, verify.op, verify.modes_pct) == ("conv", "verify", None)
    assert conv.modes_pct == pytest.approx(6, abs=0.5)
    assert conv.detectable_pct > 1.1 * detectable_pct(conv.process_sd_pct, PairLimits())


def test_limits_of_a_series_are_those_of_the_gate_with_its_floor(tmp_path):
    data = read(written(tmp_path, ("one", {"plan": (1.0, 0.01), "verify": (400.0, 0.01)}, {"plain": 4})))
    (plan, verify), without, _ = all_limits(data, usable(data))

    assert plan.limit_pct == pytest.approx(100 * 0.02 / 1.0, rel=0.01)
    assert (verify.margin_pct, verify.limit_pct, verify.gated) == (0.5, 1.5, True)
    assert {one.limit_pct for one in without} == {1.5}


def test_floor_makes_short_kernels_blind_and_the_record_says_what_noise_would_allow(tmp_path):
    record = score(written(tmp_path, ("one", {"plan": (0.3, 0.2)}, {"plain": 24})), sizes=SIZES)

    plan = record.series[0]
    assert plan.detectable_pct > 3 * plan.noise_detectable_pct
    assert plan.noise_detectable_pct < 2


def test_same_set_and_seed_give_the_same_bytes(quiet):
    assert trust.encode(score(quiet, sizes=SIZES)) == trust.encode(score(quiet, sizes=SIZES))


def test_record_reads_back(quiet, tmp_path):
    record = score(quiet, sizes=SIZES)
    path = tmp_path / trust.file_name(record)
    path.write_bytes(trust.encode(record))

    assert trust.load(path) == record
    assert path.name.startswith("nvidia-h200-2026-11-29-")


def test_series_that_a_process_lacks_is_no_alarm_and_counts_as_not_found(tmp_path):
    found = list(collection("one", QUIET, plain=24, delays=(5.0,), each=6))
    cut = [
        (msgspec.structs.replace(record, measurements=record.measurements[:2]), samples)
        if record.calibration.delay_pct
        else (record, samples)
        for record, samples in found
    ]
    write(from_records(cut), tmp_path)
    record = score(tmp_path, sizes=SIZES)

    assert record.power[0].real_pct == pytest.approx(100 * 2 / 3, abs=0.1)
    assert record.resampled.num_with_alarm == 0


def test_series_that_an_occasion_lacks_is_judged_by_the_others(tmp_path):
    found = list(collection("one", QUIET, plain=24, delays=(5.0,), each=6))
    without = [
        (msgspec.structs.replace(record, measurements=record.measurements[1:]), table) for record, table in found
    ]
    other = collection("two", QUIET, plain=24, delays=(5.0,), each=6, hours=2.0, seed=1)
    write(merged([from_records(without), from_records(list(other))]), tmp_path)
    record = score(tmp_path, sizes=SIZES)

    assert record.power[0].real_pct == 100
    assert all(one.found_pct["5"] == 100 for one in record.series)


def test_disjoint_gates_use_no_process_twice_and_count_what_they_cannot_settle():
    limits = Limits.of([PairLimits()])
    rng = np.random.default_rng(1)
    noise = 0.001 * rng.standard_normal((2 * GATE + 5, 1))
    quiet = Kinds("one", noise, {}, {})
    assert disjoint_gates([quiet], limits, rng).num_gates == 2

    # One process in four is slow: a head that gets them all is a suspect, and nobody is left to ask.
    short = Kinds("two", np.tile([[0.0], [0.1], [0.1], [0.0]], (GATE // 4, 1)) + noise[:GATE], {}, {})
    found = [disjoint_gates([short], limits, np.random.default_rng(seed)) for seed in range(40)]
    assert any(one.num_unsettled == 1 and one.upper_pct == 100 for one in found)

    long = Kinds("three", np.concatenate([short.plain, noise[: WHOLE - GATE], noise[: WHOLE - GATE]])[:WHOLE], {}, {})
    found = [disjoint_gates([long], limits, np.random.default_rng(seed)) for seed in range(40)]
    assert any(one.num_with_suspects and not one.num_unsettled for one in found)


def test_promises_without_data_are_neither_kept_nor_missed(quiet):
    record = score(quiet, sizes=SIZES)
    rows = targets(record.disjoint, record.identical, record.resampled, [], {})

    assert {one.met for one in rows} == {None}


def test_set_without_enough_processes_cannot_be_scored(tmp_path):
    with pytest.raises(MissingDataError, match="no occasion with 4 processes"):
        score(written(tmp_path, ("one", QUIET, {"plain": 3})), sizes=SIZES)


def test_unknown_gpu_model_is_refused_with_those_there_are(quiet):
    with pytest.raises(MissingDataError, match="expected one of nvidia-h200, got gb300"):
        score(quiet, "gb300", SIZES)


def test_command_writes_the_record_and_the_page(quiet, tmp_path):
    page = tmp_path / "trust.md"
    page.write_text("\n".join(("# Trust", *marks("trust"), "end")))
    arguments = ["calibrate", "score", "--data", str(quiet), "--out", str(tmp_path / "trust"), "--write", str(page)]
    result = CliRunner().invoke(app, [*arguments, "--gates", "20", "--trials", "2"], catch_exceptions=False)

    assert result.exit_code == 0
    (path,) = (tmp_path / "trust").iterdir()
    assert trust_markdown(trust.load(path)) in page.read_text()
    assert "model estimate" in page.read_text()
    assert str(path) in result.output


def test_real_gates_count_where_both_sides_have_the_same_binaries(tmp_path):
    same = [verdict(op=op, identical=True, suspected=op == "conv") for op in ("verify", "conv")]
    mostly_changed = result([same[0], verdict(op="commit"), verdict(op="step")])
    not_gated = result([verdict(op="align", identical=True, suspected=True, gated=False)])
    gates = [result([*same, verdict(op="commit")]), result([verdict()]), result(same[:1]), mostly_changed, not_gated]
    gates += [result(), result()]  # no times: nothing to count, nor to be the same
    paths = [tmp_path / f"{number}.json" for number in range(len(gates))]
    for path, gate in zip(paths, gates, strict=True):
        path.write_bytes(encode(gate))
    found = identical_pairs(paths, "nvidia-h200")

    assert found.gates == ["1" * 12 + ".." + "2" * 12] * 2
    assert (found.num_series, found.num_suspects, found.num_gates_with_suspects) == (3, 1, 1)
    assert found.upper_pct == pytest.approx(97.47, abs=0.01)
    assert identical_pairs(paths, "gb300").upper_pct is None


def written_gates(folder, count, **changes):
    """So many gates whose two series have the same binaries, each with times of its own."""
    folder.mkdir()
    paths = [folder / f"{number}.json" for number in range(count)]
    for number, path in enumerate(paths):
        same = [verdict(op=op, identical=True, base_value=10.0 + number) for op in ("verify", "conv")]
        same[1] = msgspec.structs.replace(same[1], **changes)
        path.write_bytes(encode(result(same)))
    return paths


def test_real_gates_lower_the_bound_and_their_suspects_raise_it(quiet, tmp_path):
    calm, suspected = written_gates(tmp_path / "calm", 297), written_gates(tmp_path / "loud", 1, suspected=True)

    def promise(gates):
        return score(quiet, sizes=SIZES, gates=gates).targets[0]

    assert promise([]).found == "0 of 2 disjoint gates: at most 77.6 % with 95 % confidence"
    assert promise(calm[:1]).found == "0 of 3 disjoint gates, 1 of them real: at most 63.2 % with 95 % confidence"
    both = promise([calm[1], *suspected]).found
    assert both.startswith("0 and 1 unsettled of 4 disjoint gates, 2 of them real: at most 75.1 %")
    assert promise(calm).met is True  # with two of the set no alarm in 299
    assert promise(calm[1:]).met is None


def test_an_alarm_breaks_the_promise_where_it_is_more_than_the_promised_share_of_all_gates(quiet):
    record = score(quiet, sizes=SIZES)
    alarmed = msgspec.structs.replace(record.disjoint, num_with_alarm=1)
    real = msgspec.structs.replace(record.identical, gates=["base..head"] * 98)

    found = [targets(alarmed, one, record.resampled, [], {})[0] for one in (record.identical, real)]

    assert [(one.found.split(":")[0], one.met) for one in found] == [
        ("1 of 2 disjoint gates", False),
        ("1 of 100 disjoint gates, 98 of them real", None),
    ]


def test_a_gate_that_is_named_twice_would_count_twice_and_is_refused(tmp_path):
    (first,) = written_gates(tmp_path / "a", 1)
    (again,) = written_gates(tmp_path / "b", 1)  # judged anew, under other limits, say

    for gates in ([first, first], [first, again]):
        with pytest.raises(UsageError, match=rf"--gate {gates[1]}: the gate of {first} again"):
            identical_pairs(gates, "nvidia-h200")


@pytest.mark.parametrize("code", [3, 4, 5])
def test_a_gate_that_could_not_tell_is_refused(tmp_path, code):
    (tmp_path / "a.json").write_bytes(encode(result([verdict(identical=True)], exit_code=code)))

    with pytest.raises(UsageError, match=rf"a\.json: expected a gate that ended with 0 or 1, got exit code {code}"):
        identical_pairs([tmp_path / "a.json"], "nvidia-h200")


def test_file_that_is_no_gate_is_refused_by_name(tmp_path):
    (tmp_path / "a.json").write_text("{}")

    with pytest.raises(UsageError, match=r"--gate .*a\.json: no result of a gate"):
        identical_pairs([tmp_path / "a.json"], "nvidia-h200")


def test_record_is_bound_to_the_limits_of_its_series_alone(quiet, monkeypatch):
    data, policy = read(quiet), load_policy()
    row = policy.thresholds.row_for(data.series[0].key)
    found = policy_sha256(data)

    def with_first_row(**changed):
        limit = [msgspec.structs.replace(row, **changed), *policy.thresholds.limit]
        thresholds = msgspec.structs.replace(policy.thresholds, limit=limit)
        monkeypatch.setattr(scoring, "load_policy", lambda: replace(policy, thresholds=thresholds))
        return policy_sha256(data)

    assert with_first_row(reason="in other words") == found
    assert with_first_row(provider="somebody else's", floor_us=1.0) == found
    assert with_first_row(floor_us=1.0) != found


def test_page_shows_the_newest_committed_record_and_it_is_of_the_committed_set_and_limits():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "trust.md").read_text()
    found = sorted(map(trust.load, (root / "reports" / "trust").glob("*.json")), key=lambda record: record.newest_utc)

    assert all(page.count(mark) == 1 for name in ("trust", "rules") for mark in marks(name))
    for record in found[-1:]:
        assert trust_markdown(record) in page
        assert record.data_sha256 == fingerprint(root / "reports" / "aa" / "v1")
        assert record.policy_sha256 == policy_sha256(of_model(read(root / "reports" / "aa" / "v1"), record.gpu_model))
