"""A gate in GitHub's Markdown: job summary, sticky comment, text of a check run. Foreign text is escaped throughout."""

from collections.abc import Sequence

from ci.foreign_text import code, fenced, markdown
from ci.gate.result import GateResult, GateVerdict

from . import wording

MARKER = "<!-- recoverssm-gate -->"  # by which a later gate finds the comment to replace
SUMMARY_ROWS = 200
COMMENT_ROWS = 30
FINDINGS = 20
COMMANDS = 10
MAX_CHARACTERS = 60_000  # GitHub takes 65,536 of a comment, 65,535 of a check run's text


def summary(result: GateResult) -> str:
    """For a job's summary, which may have a megabyte."""
    return _document(result, SUMMARY_ROWS)


def comment(result: GateResult) -> str:
    """For the one comment of a pull request: short enough for GitHub, whatever was found."""
    return f"{MARKER}\n{bounded(result)}"


def bounded(result: GateResult) -> str:
    """The document with as many rows as fit."""
    rows = COMMENT_ROWS
    while len(text := _document(result, rows)) > MAX_CHARACTERS and rows:
        rows //= 2
    return text


def title(result: GateResult) -> str:
    """The heading, as plain text."""
    return f"Performance gate {wording.headline(result)}"


def _document(result: GateResult, rows: int) -> str:
    listed = wording.notable(result, rows)
    parts = [f"### {markdown(title(result))}", _about(result), _findings(result)]
    parts += [_table(listed.shown, result.gpu_model)] if listed.shown else []
    parts += [f"*{markdown(listed.left_out)}*"] if listed.left_out else []
    parts += [_again(result, listed.shown)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(result: GateResult) -> str:
    head, base = (code(commit[: wording.SHORT_HASH]) for commit in (result.head.commit, result.base.commit))
    subject = f" ({markdown(result.head.subject, 120)})" if result.head.subject else ""
    lines = [
        f"Head {head}{subject} against base {base}: {markdown(wording.distance(result))}  ",
        f"{markdown(wording.setting(result))}  ",
        f"{len(result.verdicts)} series: {markdown(wording.totals(result))}",
    ]
    return "\n".join(lines)


def _findings(result: GateResult) -> str:
    found = sorted(result.findings, key=lambda f: not f.exit_code or bool(f.cleared_by))
    lines = []
    for finding in found[:FINDINGS]:
        fails = finding.exit_code and not finding.cleared_by
        lines.append(f"- {'**failed** ' if fails else ''}{markdown(wording.finding_of(finding))}")
        lines += [f"  next: {markdown(finding.next_step)}"] if finding.next_step else []
    if len(found) > FINDINGS:
        lines.append(f"- {FINDINGS} of {len(found)} findings shown; verdict.json has all")
    return "\n".join(lines)


def _table(verdicts: Sequence[GateVerdict], gpu_model: str) -> str:
    lines = ["| verdict | series | base → head | why |", "|---|---|--:|---|"]
    for v in verdicts:
        name = f"**{wording.name_of(v)}**" if v.fails else wording.name_of(v)
        cells = (name, _series(v, gpu_model), _numbers(v), markdown(wording.reason_of(v)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _series(v: GateVerdict, gpu_model: str) -> str:
    # In two lines, or the table is wider than a comment; what nearly all rows share is left out.
    usual = {"device_us", "graph-cold", gpu_model}
    rest = [part for part in (v.metric, v.contract, v.gpu_model) if part not in usual]
    return f"{markdown(' '.join((v.op, v.provider, *rest)))}<br>{code(v.case)}"


def _numbers(v: GateVerdict) -> str:
    both = " → ".join(filter(None, (wording.value_of(value, v) for value in (v.base_value, v.head_value))))
    return "<br>".join(markdown(part) for part in (both, wording.change_of(v)) if part)


def _again(result: GateResult, verdicts: Sequence[GateVerdict]) -> str:
    alarms = [v.reproduce for v in verdicts if v.fails and v.reproduce]
    commands = list(dict.fromkeys(alarms))
    lines = ["Measure it again, on the same kind of card:", fenced(*commands[:COMMANDS], result.reproduce)]
    if len(commands) > COMMANDS:
        lines.append(f"{COMMANDS} of {len(commands)} commands shown; the last line measures all")
    return "\n".join(lines)
