"""A gate as JUnit XML: a test case for every series and every finding that could fail it."""

from xml.etree import ElementTree as ET  # writes only; nothing is parsed

from ci.foreign_text import plain
from ci.gate.result import GateResult, GateVerdict

from . import wording


def report(result: GateResult) -> bytes:
    """The document. Regressed is a failure; missing, invalid and failing findings are errors; undecided is skipped."""
    suite = ET.Element("testsuite", name="performance gate")
    properties = ET.SubElement(suite, "properties")
    about = {"head": result.head.commit, "base": result.base.commit, "setting": wording.setting(result)}
    for name, value in {**about, "reproduce": result.reproduce}.items():
        ET.SubElement(properties, "property", name=name, value=plain(value, 2000))
    for finding in (one for one in result.findings if one.kind != "note" or one.exit_code):
        case = _case(suite, "gate", " ".join(part for part in (finding.kind, finding.case) if part))
        if finding.exit_code and not finding.cleared_by:
            _child(case, "error", finding.kind, wording.finding_of(finding), finding.next_step)
    for verdict in wording.ranked(result.verdicts):
        _verdict(
            _case(suite, f"{verdict.op}.{verdict.provider}", wording.series_of(verdict, result.gpu_model)), verdict
        )
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(1 for _ in suite.iter(tag))))
    ET.indent(suite, " ")
    document: bytes = ET.tostring(suite, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _verdict(case: ET.Element, v: GateVerdict) -> None:
    reason = wording.reason_of(v)
    if v.fails:
        _child(case, "failure" if v.verdict == "regressed" else "error", v.verdict, reason, v.reproduce)
    elif v.verdict in wording.UNDECIDED or (v.verdict == "regressed" and v.gated):
        _child(case, "skipped", wording.name_of(v), reason, "")


def _case(suite: ET.Element, classname: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=plain(classname), name=plain(name))


def _child(case: ET.Element, tag: str, kind: str, message: str, reproduce: str) -> None:
    child = ET.SubElement(case, tag, type=kind, message=plain(message, 2000))
    if reproduce:
        child.text = f"again: {plain(reproduce, 2000)}"
