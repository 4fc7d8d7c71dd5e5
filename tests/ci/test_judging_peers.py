"""What other projects' kernels do to a night's verdicts: nothing."""

import msgspec
import pytest

from benchmarks.harness import records
from ci.exits import Exit
from tests.ci.judged import base_of, judged, named
from tests.ci.nights import QUIET, make_record, make_records, timed

LOUD = [100.0, 99.0, 101.5, 98.5, 100.5]


def test_whatever_another_projects_kernel_does_fails_no_night():
    peers = [records.PeerFacts(name="recoverssm"), records.PeerFacts(name="gone", missing="not installed")]
    slower = [msgspec.structs.replace(r, peers=peers) for r in make_records([v * 1.1 for v in QUIET])]

    found = judged(slower, base_of(make_records()))

    assert (named(found).verdict, named(found).gated, found.code) == ("regressed", False, Exit.PASS)
    assert found.accepted
    assert "provider gone was not measured: not installed" in found.notes


def test_a_peer_that_was_not_measured_ungates_nothing():
    peers = [records.PeerFacts(name="recoverssm", missing="another provider has the name")]
    slower = [msgspec.structs.replace(r, peers=peers) for r in make_records([v * 1.1 for v in QUIET])]

    assert judged(slower, base_of(make_records())).code == Exit.REGRESSED


@pytest.mark.parametrize("slower", [1.0, 1.01, 1.015, 1.02, 1.03, 1.05])
def test_times_of_others_move_no_verdict_of_ours(slower):
    def night(factor, others):
        measurements = [[timed(v * factor), *(timed(v, provider=f"their_{n}") for n in range(others))] for v in LOUD]
        peers = [records.PeerFacts(name=f"their_{n}") for n in range(others)]
        return [make_record(own, peers=peers) for own in measurements]

    alone, beside = (judged(night(slower, n), base_of(night(1.0, n))) for n in (0, 40))

    assert [v for v in beside.verdicts if v.provider == "recoverssm"] == alone.verdicts
    assert beside.code == alone.code


def test_a_peer_of_the_base_night_alone_is_not_missed():
    base = [msgspec.structs.replace(r, peers=[records.PeerFacts(name="theirs")]) for r in make_records()]
    theirs = [msgspec.structs.replace(r.measurements[0], provider="theirs") for r in base]
    base = [msgspec.structs.replace(r, measurements=[*r.measurements, m]) for r, m in zip(base, theirs, strict=True)]

    found = judged(make_records(), base_of(base))

    (verdict,) = [v for v in found.verdicts if v.provider == "theirs"]
    assert (verdict.verdict, verdict.gated, found.code) == ("missing", False, Exit.PASS)


def test_peers_stand_behind_ours_and_what_they_leave_out_is_not_told_case_by_case():
    peers = [records.PeerFacts(name="theirs")]
    measurements = [
        timed(100.0),
        timed(None, provider="theirs", status="failed", reason="wrong"),
        timed(None, provider="theirs", op="commit", status="skipped", reason="bf16 alone"),
    ]
    found = judged([make_record(measurements, peers=peers) for _ in QUIET])

    assert [(v.provider, v.verdict) for v in found.verdicts] == [("recoverssm", "new"), ("theirs", "invalid")]
    assert (found.code, [note for note in found.notes if "skipped" in note]) == (Exit.PASS, [])
