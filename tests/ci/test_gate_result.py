import math

import msgspec
import pytest

from ci.gate.result import Finding, GateResult, GateVerdict, SideOf, decode, encode, rounded


def verdict(**changes):
    names = {"metric": "device_us", "op": "verify", "provider": "recoverssm", "case": "c", "contract": "graph-cold"}
    facts = {"gpu_model": "nvidia-h200", "unit": "us", "verdict": "unchanged", "reason": "r", "stage": "screen"}
    return GateVerdict(**{**names, **facts, "gated": True, **changes})


def result(**changes):
    side = SideOf(commit="0" * 40, source_hash="1" * 64)
    about = {"base": side, "head": side, "distance": 1, "base_found": "merge base", "harness": "base"}
    asked = {"case_set": "pr", "cases": ["c"], "gpu_model": "nvidia-h200", "seed": 1, "reproduce": "python -m ci gate"}
    return GateResult(**{**about, **asked, "n_blocks": {}, "verdicts": [], "findings": [], "exit_code": 0, **changes})


def test_a_result_reads_back_as_it_was_written_and_twice_gives_the_same_bytes():
    one = result(
        verdicts=[verdict(change_pct=3.1, n_blocks=12)], findings=[Finding(kind="note", message="m")], exit_code=1
    )
    assert decode(encode(one)) == one
    assert encode(one) == encode(decode(encode(one)))


def test_a_result_of_another_version_is_not_read_as_one_of_this():
    later = encode(result(schema_version=2))

    with pytest.raises(msgspec.ValidationError, match=r"expected a result of version 1, got 2"):
        decode(later)


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"verdict": "regressed"}, True),
        ({"verdict": "regressed", "gated": False}, False),
        ({"verdict": "regressed", "known": "acknowledged"}, False),
        ({"verdict": "regressed", "known": "expired"}, True),
        ({"verdict": "missing"}, True),
        ({"verdict": "invalid"}, True),
        ({"verdict": "inconclusive"}, False),
        ({"verdict": "blind"}, False),
    ],
)
def test_what_fails_a_gate(changes, fails):
    assert verdict(**changes).fails is fails


@pytest.mark.parametrize(
    ("code", "word"), [(0, "passed"), (1, "regressed"), (3, "incomplete"), (4, "invalid"), (5, "broken")]
)
def test_the_outcome_is_one_word(code, word):
    assert result(exit_code=code).outcome == word


@pytest.mark.parametrize(
    ("value", "kept"), [(1 / 3, 0.333333), (-0.0, 0.0), (math.nan, None), (math.inf, None), (None, None)]
)
def test_numbers_are_rounded_where_two_machines_may_differ(value, kept):
    assert rounded(value) == kept
    assert kept is None or math.copysign(1, rounded(value)) == math.copysign(1, kept)
