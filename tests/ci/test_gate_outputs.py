"""What a gate says: every alarm can be repeated, strongest evidence comes first, what is left out is counted, and no
name or reason of a stranger becomes markup."""

import io
import json
import re
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from ci.foreign_text import BREAK, code, fenced, markdown, plain
from ci.gate.outputs import FILES, wording, write
from ci.gate.outputs.machine import badge, check
from ci.gate.outputs.markdown import MARKER, MAX_CHARACTERS, comment, summary
from ci.gate.outputs.terminal import show
from ci.gate.result import decode, encode
from tests.ci.gate_results import AGAIN, finding, result, vanished, verdict

HOSTILE = [
    "@maintainers please look",
    "see #1, GH-2 and other/repository#3",
    "[a link](https://example.com)",
    "![a picture](https://example.com/x.png)",
    "https://example.com and www.example.com",
    "<img src=x onerror=alert(1)><script>alert(1)</script>",
    "<!-- recoverssm-gate -->",
    "&lt;b&gt; &amp; <b>bold</b>",
    "a | b | c",
    "`code` and ``more``",
    "```\nfence\n```",
    "**bold** _italic_ ~~gone~~ *x*",
    "line\n\n# heading\n\n- item",
    "back\\slash \\| \\`",
    "[ref]: https://example.com 'x'",
    "$x^2$ and $$y$$",
    "\x1b[31mred\x1b[0m \x07 \x00",
    "right to left \u202e override \u2066",
    "&#64;maintainers &commat;maintainers",
    "]]> and --> end",
    "[rich]markup[/rich]",
]


def rendered(text):
    """HTML as a Markdown renderer with GitHub's tables makes it."""
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)


def visible(html):
    """What a reader sees of it."""
    text = re.sub(r"<[^>]*>", "", html)
    for entity, char in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        text = text.replace(entity, char)
    return text.replace(BREAK, "").strip()


def printed(gate, *, terminal=False, **options):
    stream = io.StringIO()
    show(gate, Console(file=stream, width=200, force_terminal=terminal), **options)
    return stream.getvalue()


class TestForeignText:
    @pytest.mark.parametrize("text", HOSTILE)
    def test_markdown_shows_it_as_it_is_and_makes_nothing_of_it(self, text):
        html = rendered(f"| a |\n|---|\n| x {markdown(text)} y |")

        assert set(re.findall(r"<(\w+)", html)) <= {"table", "thead", "tbody", "tr", "th", "td", "span"}
        assert html.count("<td>") == 1
        assert f"x {plain(text)} y" in visible(html)

    @pytest.mark.parametrize("text", HOSTILE)
    def test_nobody_is_mentioned_and_nothing_is_referred_to(self, text):
        html = rendered(f"x {markdown(text)} y")

        shown = re.sub(r"<[^>]*>", "", html)
        assert not re.search(r"@\w|#\d|GH-\d|://\w|www\.\w", shown, re.IGNORECASE)

    @pytest.mark.parametrize("text", HOSTILE)
    def test_a_code_block_cannot_be_ended_from_within(self, text):
        html = rendered(f"{fenced(text, 'second line')}\n\nafter")

        assert html.count("<code") == 1
        assert html.endswith("</code></pre>\n<p>after</p>\n")

    @pytest.mark.parametrize("text", HOSTILE)
    def test_plain_text_is_one_line_without_control_characters(self, text):
        assert plain(text).isprintable()

    def test_long_text_is_cut_and_says_so(self):
        assert plain("x" * 500) == "x" * 399 + "…"

    def test_a_name_is_a_code_span_and_a_hostile_one_is_not(self):
        assert code("device_us/verify/recoverssm/kimi_k3_a3.84") == "`device_us/verify/recoverssm/kimi_k3_a3.84`"
        assert code("a`b") == "a\\`b"
        assert code("a|b") == "a\\|b"


class TestHostileGate:
    @pytest.fixture(params=HOSTILE)
    def gate(self, request):
        text = request.param
        bad = verdict("regressed", 3.0, case=text, reason=text, known_reason=text, reproduce=f"{AGAIN} {text}")
        gate = result([bad], [finding("note", text, case=text, next_step=text)], 1, environment=text, base_found=text)
        head = {"commit": text, "source_hash": "b" * 64, "subject": text}
        return decode(json.dumps({**json.loads(encode(gate)), "head": head}).encode())

    def test_markdown_has_our_own_elements_alone(self, gate):
        own = {"h3", "p", "br", "code", "ul", "li", "strong", "em", "pre", "span"}
        own |= {"table", "thead", "tbody", "tr", "th", "td"}

        for text in (summary(gate), comment(gate).removeprefix(MARKER)):
            html = rendered(text)
            assert set(re.findall(r"<(\w+)", html)) <= own
            assert MARKER not in re.sub(r"```.*?```", "", text, flags=re.DOTALL)
            assert html.count("<td") == 4
            outside_code = re.sub(r"<code.*?</code>", "", html, flags=re.DOTALL)
            assert not re.search(r"@\w|#\d|GH-\d|://\w|www\.\w", re.sub(r"<[^>]*>", "", outside_code), re.IGNORECASE)

    def test_xml_and_json_can_be_read(self, gate, tmp_path):
        write(gate, tmp_path)

        suite = ET.fromstring((tmp_path / "junit.xml").read_bytes())
        assert suite.get("failures") == "1"
        for name in ("check.json", "badge.json"):
            assert json.loads((tmp_path / name).read_bytes())

    @pytest.mark.parametrize("terminal", [True, False])
    def test_a_terminal_gets_no_control_characters_of_theirs(self, gate, terminal):
        text = re.sub(r"\x1b\[[\d;]*m", "", printed(gate, terminal=terminal))  # rich's own colours

        assert text.replace("\n", "").isprintable()
        assert not any(line.startswith(("::", "#")) for line in text.splitlines())


class TestContent:
    def test_every_alarm_says_how_to_measure_it_again(self, tmp_path):
        alarms = [
            verdict("regressed", 3.0 + i, case=f"case_{i}", reproduce=f"python -m ci gate --case case_{i}")
            for i in range(3)
        ]
        gate = result([*alarms, vanished(case="gone", reproduce="python -m ci gate --case gone")], exit_code=3)
        write(gate, tmp_path)

        texts = [printed(gate), printed(gate, terminal=True)]
        texts += [(tmp_path / name).read_text() for name in ("summary.md", "comment.md", "check.json", "junit.xml")]

        for text in texts:
            for alarm in gate.verdicts:
                assert alarm.reproduce in text
            assert gate.reproduce in text

    def test_two_hundred_findings_come_by_evidence_with_their_total_and_what_is_left_out(self):
        found = [verdict("regressed", 3.0, case=f"case_{i:03}", p=(i * 37 % 200 + 1) / 1e6) for i in range(200)]
        gate = result(found, exit_code=1)
        strongest = [v.case for v in sorted(found, key=lambda v: v.p)]

        for text, rows in ((printed(gate), 40), (comment(gate), 30), (summary(gate), 200)):
            cases = re.findall(r"(?:device_us/verify/recoverssm/|verify recoverssm<br>`)(case_\d{3})", text)
            assert cases == strongest[:rows]
            assert "200 regressed of 200 series" in text
            assert (f"{rows} of 200 shown, strongest evidence first" in text) == (rows < 200)

    def test_a_comment_fits_whatever_was_found(self):
        long = verdict("regressed", 3.0, reason="|" * 5000, known_reason="_" * 5000, reproduce="x" * 10_000)
        gate = result([long] * 400, [finding("note", "[" * 5000, next_step="*" * 5000)] * 400, exit_code=1)

        assert len(comment(gate)) < 65_536
        assert len(check(gate)["output"]["summary"]) <= MAX_CHARACTERS

    def test_what_fails_stands_before_what_is_known_and_what_is_shown_only(self):
        known = verdict("regressed", 9.0, case="known", known="acknowledged", known_reason="until 2027", p=1e-9)
        shown = verdict("regressed", 9.0, case="shown", gated=False, p=1e-9)
        gate = result([known, shown, verdict("improved", -9.0, case="better"), verdict("regressed", 2.0, case="fails")])

        listed = wording.notable(gate, 10)

        assert [v.case for v in listed.shown] == ["fails", "known", "better", "shown"]
        assert [wording.name_of(v) for v in listed.shown] == [
            "regressed",
            "acknowledged",
            "improved",
            "regressed, not gated",
        ]

    def test_what_is_unchanged_or_undecided_without_a_limit_is_counted_and_not_listed(self):
        shown = verdict("inconclusive", case="case_4", gated=False)
        gate = result([verdict(case=f"case_{i}") for i in range(3)] + [verdict("blind", case="seen"), shown])

        assert "5 series: 1 blind, 1 inconclusive, 3 unchanged, 1 not gated" in printed(gate)
        assert "seen" in printed(gate)
        assert "case_" not in printed(gate)

    @pytest.mark.parametrize(
        ("verdicts", "findings", "exit_code", "headline", "colour"),
        [
            ([verdict()], [], 0, "passed", "brightgreen"),
            ([verdict("regressed", 3.0), verdict()], [], 1, "failed: 1 regressed of 2 series", "red"),
            ([vanished()], [], 3, "incomplete: 1 missing of 1 series", "orange"),
            ([verdict()], [finding("gpus-differ", "two cards", 4)], 4, "invalid: gpus differ", "orange"),
            ([], [finding("head-does-not-build", "no", 5)], 5, "did not run: head does not build", "lightgrey"),
            ([verdict()], [finding(cleared_by="kernels")], 0, "passed", "brightgreen"),
        ],
    )
    def test_the_headline_says_what_decides(self, verdicts, findings, exit_code, headline, colour):
        gate = result(verdicts, findings, exit_code)

        assert wording.headline(gate) == headline
        assert badge(gate) == {
            "schemaVersion": 1,
            "label": "performance gate",
            "message": headline,
            "color": colour,
        }
        assert check(gate)["conclusion"] == ("success" if exit_code == 0 else "failure")

    def test_an_undecided_series_is_skipped_in_junit_and_a_failing_one_is_not(self, tmp_path):
        found = [verdict("regressed", 3.0), vanished(case="gone"), verdict("blind", case="blind"), verdict(case="same")]
        known = verdict("regressed", 3.0, case="known", known="acknowledged")
        write(result([*found, known], [finding()], 3), tmp_path)

        suite = ET.fromstring((tmp_path / "junit.xml").read_bytes())

        assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
            "tests": "6",
            "failures": "1",
            "errors": "2",
            "skipped": "2",
        }

    @pytest.mark.parametrize(
        ("changes", "shown"),
        [
            ({}, "10.00 us"),
            ({"decimals": 0}, "10 us"),
            ({"contract": "exact", "unit": "bytes", "base_value": 1048576.0}, "1,048,576 bytes"),
            ({"contract": "static", "unit": "none", "base_value": 3.0}, "3"),
            ({"contract": "exact", "unit": "relative", "base_value": 3.21e-7}, "3.21e-07 relative"),
            ({"contract": "exact", "unit": "%", "base_value": 75.128, "decimals": 1}, "75.1 %"),
            ({"base_value": None}, ""),
        ],
    )
    def test_values_are_shown_in_their_unit(self, changes, shown):
        one = verdict(**changes)

        assert wording.value_of(one.base_value, one) == shown

    def test_the_same_result_gives_the_same_bytes(self, tmp_path):
        gate = result([verdict("regressed", 3.0)], [finding()], 1)

        first = [path.read_bytes() for path in write(gate, tmp_path / "a")]
        second = [path.read_bytes() for path in write(gate, tmp_path / "b")]

        assert first == second
        assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(FILES)
