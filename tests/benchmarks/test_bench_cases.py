from dataclasses import replace

import pytest

from benchmarks.cases import SETS, NothingSelectedError, UnknownNameError, kimi_k3, select

NIGHTLY_NAMES = {
    *(f"kimi_k3_tp8_b{b}_t8_a3.84_{d}" for b in (1, 8, 16, 32, 48, 96, 128) for d in ("fp32", "bf16")),
    *(f"kimi_k3_tp8_b32_{w}_{d}" for w in ("t3_a2.73", "t4_a3.00", "t9_a4.00") for d in ("fp32", "bf16")),
    *(f"kimi_k3_tp8_b32_t8_{a}_{d}" for a in ("a1.00", "a3.78", "a8.00") for d in ("fp32", "bf16")),
    *(f"kimi_k3_tp16_b{b}_t8_a3.84_{d}" for b in (1, 32, 128) for d in ("fp32", "bf16")),
    *(f"kimi_k3_tp1_b{b}_t8_a3.84_{d}" for b in (1, 4, 16) for d in ("fp32", "bf16")),
    *(f"kimi_k3_tp8_b32_t1_a1.00_{d}" for d in ("fp32", "bf16")),
}


def test_the_nightly_set_has_forty_cases_whose_names_never_change():
    names = [case.name for case in SETS["nightly"]]

    assert len(names) == 40
    assert set(names) == NIGHTLY_NAMES


def test_the_pr_set_covers_both_dtypes_at_three_batches():
    names = {case.name for case in SETS["pr"]}

    assert names == {f"kimi_k3_tp8_b{b}_t8_a3.84_{d}" for b in (1, 32, 128) for d in ("fp32", "bf16")}


def test_smaller_sets_hold_nothing_that_the_nightly_set_lacks():
    assert {case for case_set in ("smoke", "pr") for case in SETS[case_set]} <= set(SETS["nightly"])
    assert len(SETS["smoke"]) == 6


def test_the_roofline_set_has_windows_of_every_padding_and_as_many_request_heads_by_three_splits():
    shapes = {(case.shape.num_heads, case.num_requests) for case in SETS["roofline"]}

    assert len(SETS["roofline"]) == 36
    assert {case.shape.spec_query_len for case in SETS["roofline"]} == {3, 4, 8, 9, 16}
    assert [heads * requests for heads, requests in sorted(shapes)].count(384) == 3


def test_the_roofline_set_has_the_unbounded_gate_from_one_request_to_many():
    cases = [case for case in SETS["roofline"] if case.lower_bound is None]

    assert {(case.num_requests, case.state_dtype) for case in cases} == {
        (requests, dtype) for requests in (1, 32, 128) for dtype in ("fp32", "bf16")
    }


@pytest.mark.parametrize("case", [*SETS["nightly"], *SETS["roofline"]], ids=str)
def test_a_case_says_what_its_name_says(case):
    record = case.to_record()

    assert record.name == (
        f"kimi_k3_tp{96 // record.num_heads}_b{record.num_requests}_t{record.spec_query_len}"
        f"_a{record.mean_accepted:.2f}_{record.state_dtype}{'_unbounded' if case.lower_bound is None else ''}"
    )
    assert ("unbounded gate" in record.stands_for) == (case.lower_bound is None)
    assert record.num_layers == 69
    assert record.stands_for.startswith("Kimi-K3 ")


def test_a_pattern_selects_in_the_order_of_the_set():
    chosen = select("nightly", "*_tp1_*_bf16")

    assert [case.num_requests for case in chosen] == [1, 4, 16]


def test_globs_with_commas_select_what_any_of_them_matches_and_each_must_match_something():
    names = [case.name for case in select("pr", "*_b128_*_fp32, kimi_k3_tp8_b1_t8_a3.84_bf16")]
    assert names == ["kimi_k3_tp8_b1_t8_a3.84_bf16", "kimi_k3_tp8_b128_t8_a3.84_fp32"]
    with pytest.raises(NothingSelectedError, match=r"matches '\*_b7_\*'"):
        select("pr", "*_b128_*,*_b7_*")


def test_an_unknown_set_is_refused_with_the_known_ones():
    with pytest.raises(
        UnknownNameError, match=r"--set: expected one of smoke, pr, nightly, roofline, league, published, got 'nighly'"
    ):
        select("nighly")


def test_an_unknown_case_is_refused_with_the_set_that_has_it():
    with pytest.raises(UnknownNameError, match="it is in set pr, nightly, league, published; known: kimi_k3_tp8_b1_t8"):
        select("smoke", "kimi_k3_tp8_b128_t8_a3.84_fp32")


def test_a_pattern_that_matches_nothing_is_told_apart_from_a_wrong_name():
    with pytest.raises(NothingSelectedError, match="nothing in set 'pr' matches '\\*_b7_\\*'"):
        select("pr", "*_b7_*")


def test_more_accepted_tokens_than_the_window_holds_are_refused():
    case = kimi_k3(8, 32, 3, 2.73, "fp32")

    with pytest.raises(ValueError, match=r"mean_accepted: expected 1 to 3 \(spec_query_len\), got 4"):
        replace(case, mean_accepted=4)


def test_the_league_has_every_batch_window_dtype_and_three_acceptances():
    found = {(c.num_requests, c.shape.spec_query_len, c.state_dtype, c.mean_accepted) for c in SETS["league"]}
    accepted = {4: (1.0, 3.0, 4.0), 8: (1.0, 3.84, 8.0), 9: (1.0, 4.0, 9.0)}

    assert found == {
        (batch, window, dtype, mean)
        for batch in (1, 8, 32, 128)
        for window, means in accepted.items()
        for mean in means
        for dtype in ("fp32", "bf16")
    }
