"""The static estimate and its trial: what binds, how ranks agree with times, and when it may stand on a page."""

import io
import json
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.static.bounds import Launch, estimate, load_cards
from benchmarks.static.occupancy import load_limits
from benchmarks.static.sass import count_instructions
from ci import static_estimate
from ci.__main__ import app
from ci.exits import Exit, MissingDataError, UsageError
from ci.static_estimate import Agreement, agreement, compile_variants, exit_code, rank, show

H200 = load_cards()["sm_90"]


def figures(total=1980, in_loops=0, num_warps=4, ctas_per_sm=1):
    code = count_instructions("") | {"total": total, "in_loops": in_loops}
    return {"instructions": code, "num_warps": num_warps, "ctas_per_sm": ctas_per_sm}


def variant(us, point="B=32", **changes):
    entry = {
        "point": point,
        "candidate": f"v{us:g}",
        "us": us,
        "failure": None,
        "figures": figures(total=int(100 * us)),
    }
    return entry | {"num_programs": 132, "num_tokens": 8, "num_bytes": 0} | changes


def found(*variants, arch="sm_90"):
    return {"arch": arch, "card": "NVIDIA H200", "variants": list(variants)}


def test_every_known_architecture_of_a_night_has_a_card():
    assert load_cards().keys() == load_limits().keys() - {"sm_80"}


def test_each_limit_binds_where_it_must():
    by_bytes = estimate(figures(), Launch(132, 8, 481_400_000), H200)
    assert (by_bytes.binds, by_bytes.us) == ("bytes", pytest.approx(100.0))
    by_issue = estimate(figures(ctas_per_sm=8), Launch(8 * 132, 8, 0), H200)
    assert (by_issue.binds, by_issue.us) == ("issue", pytest.approx(8.0))  # 8 x 4 warps on 4 schedulers
    alone = estimate(figures(), Launch(132, 8, 0), H200)
    assert (alone.binds, alone.us) == ("occupancy", pytest.approx(4.8))  # an instruction in four cycles, and memory
    assert estimate(figures(), Launch(133, 8, 0), H200).us == pytest.approx(2 * 4.8)


def test_loops_run_once_a_token():
    once, looped = (estimate(figures(in_loops=n, ctas_per_sm=8), Launch(1056, 8, 0), H200) for n in (0, 990))
    assert looped.issue_us == pytest.approx(once.issue_us * (1980 + 7 * 990) / 1980)


def test_thirty_variants_that_rank_alike_keep_the_estimate_and_fewer_are_not_judged():
    rising = [variant(us) for us in range(10, 40)]
    kept, few = agreement(rank(found(*rising))), agreement(rank(found(*rising[1:])))
    assert kept.by_point == {"B=32": (30, pytest.approx(1.0))}
    assert (kept.judged, kept.is_kept) == (pytest.approx(1.0), True)
    assert (few.within, few.judged, few.is_kept) == (pytest.approx(1.0), None, False)


def test_that_points_differ_says_nothing_of_their_variants():
    """Ranked against each point's own times the estimate is wrong throughout, though larger points take longer."""
    wrong = [
        variant(scale * us, point=f"B={scale}", figures=figures(total=100 * scale * (30 - us)))
        for scale in (1, 100)
        for us in range(10, 20)
        for _ in range(2)
    ]
    agreed = agreement(rank(found(*wrong)))
    assert agreed.pooled > 0.3
    assert agreed.judged == pytest.approx(-1.0, abs=0.1)
    assert not agreed.is_kept


def test_equal_estimates_rank_nothing():
    same = [variant(us, figures=figures()) for us in range(10, 40)]
    agreed = agreement(rank(found(*same)))
    assert (agreed.judged, agreed.is_kept) == (None, False)


@pytest.mark.parametrize(
    ("code", "judged", "expected"),
    [
        (Exit.PASS, 0.2, Exit.PASS),
        (Exit.PASS, None, Exit.MISSING),
        (Exit.INVALID, 0.9, Exit.INVALID),
    ],
)
def test_the_code_says_whether_it_was_judged(code, judged, expected):
    by_point = {"B=32": (29 if judged is None else 30, judged)}
    assert exit_code(code, Agreement(by_point, judged, judged)) == expected


def test_what_is_printed_is_called_an_estimate_and_names_what_does_not_compile():
    made = found(variant(10.0), variant(11.0, figures=None, failure="SIGABRT"))
    ranked, text = rank(made), io.StringIO()
    show(made, ranked, agreement(ranked), Console(file=text))
    lines = text.getvalue().splitlines()
    assert lines[0] == "estimates for H200 (sm_90), no measurements; times of NVIDIA H200"
    assert lines[1].startswith("B=32: v10: 10.00 us timed, ")
    assert lines[2] == "problem: B=32: v11: does not compile: SIGABRT"
    assert lines[-1].endswith("not judged, for 30 variants that differ are needed")


def test_an_architecture_without_a_card_is_wrong_usage():
    with pytest.raises(UsageError, match="sm_80: no card"):
        rank(found(variant(1.0), arch="sm_80"))


@pytest.fixture
def program(tmp_path):
    """Stands in for the compiling program: leaves these variants, or says why not."""

    def stands_in(variants, said="", code=0):
        script = tmp_path / "program.py"
        text = json.dumps(found(*variants)) if variants else ""
        script.write_text(
            "import sys, pathlib\n"
            "options = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
            f"text = {text!r}\n"
            "text and pathlib.Path(options['--out']).write_text(text)\n"
            f"print({said!r})\nsys.exit({code})\n"
        )
        return (sys.executable, "-S", str(script))

    return stands_in


def test_what_the_compiling_program_refuses_is_an_error(program, tmp_path):
    journal = tmp_path / "verify.journal"
    with pytest.raises(MissingDataError, match="no variant has a time"):
        compile_variants(journal, "sm_90", tmp_path, Console(quiet=True), program([], "no variant has a time", 3))


def test_the_command_prints_all_of_it_as_json(program, tmp_path, monkeypatch):
    journal = tmp_path / "verify.journal"
    journal.write_text("")
    stand_in = program([variant(us) for us in range(10, 40)])
    monkeypatch.setattr(static_estimate, "PROGRAM", stand_in)
    monkeypatch.setattr(compile_variants, "__defaults__", (stand_in,))
    ended = CliRunner().invoke(app, ["static-estimate", str(journal), "--out", str(tmp_path), "--json"])
    assert ended.exit_code == Exit.PASS, ended.output
    told = json.loads(ended.stdout)
    assert (told["kept"], told["judged"], len(told["variants"])) == (True, pytest.approx(1.0), 30)
