import json

import pytest

from ci import evidence
from ci.exits import Exit

JUNIT = """<testsuites><testsuite name="pytest" time="12.34" timestamp="2026-11-29T16:51:07.2+01:00">
<properties>{properties}</properties>
<testcase classname="tests.ops.test_verify" name="test_a[cuda]" />
<testcase classname="tests.ops.test_verify" name="test_b[cuda]"><skipped message="one GPU" /></testcase>
{extra}</testsuite></testsuites>"""
FAILURE = '<testcase classname="tests.ops.test_conv" name="test_c[cuda]"><failure message="no" /></testcase>'


@pytest.fixture
def root(tmp_path):
    kernel = tmp_path / "recoverssm/kernels/verify.py"
    kernel.parent.mkdir(parents=True)
    kernel.write_text("first = 1\n")
    (tmp_path / "reports/evidence").mkdir(parents=True)
    return tmp_path


def run_on_gpu(root, extra="", **changed):
    facts = {name: f"some {name}" for name in evidence.FACTS} | {"source_hash": evidence.source_hash(root)} | changed
    properties = "".join(f'<property name="{name}" value="{value}" />' for name, value in facts.items() if value)
    junit = root / "junit.xml"
    junit.write_text(JUNIT.format(properties=properties, extra=extra))
    return evidence.write([junit], root)


def change_kernel(root):
    (root / "recoverssm/kernels/verify.py").write_text("second = 2\n")
    return evidence.source_hash(root)


def pend(root, text):
    (root / evidence.PENDING).write_text(text)


def test_a_gpu_run_leaves_evidence_that_passes(root):
    assert run_on_gpu(root).code == Exit.PASS

    written = json.loads((root / evidence.EVIDENCE).read_text())
    assert written["tests"] == {
        "tests.ops.test_verify::test_a[cuda]": "passed",
        "tests.ops.test_verify::test_b[cuda]": "skipped",
    }
    assert (written["passed"], written["failed"], written["skipped"], written["duration_s"]) == (1, 0, 1, 12.3)
    assert written["date_utc"] == "2026-11-29T15:51:07Z"  # when the tests ran, not when this was written
    assert evidence.check(root).code == Exit.PASS


def test_a_changed_kernel_fails_and_the_message_gives_the_hash(root):
    run_on_gpu(root)
    current = change_kernel(root)

    verdict = evidence.check(root)

    assert verdict.code == Exit.MISSING
    assert f'hash = "{current}"' in verdict.message


def test_a_renamed_kernel_counts_as_changed(root):
    run_on_gpu(root)
    (root / "recoverssm/kernels/verify.py").rename(root / "recoverssm/kernels/other.py")

    assert evidence.check(root).code == Exit.MISSING


def test_a_file_outside_the_sources_does_not_count(root):
    run_on_gpu(root)
    (root / "recoverssm/layout.py").write_text("anything = 1\n")

    assert evidence.check(root).code == Exit.PASS


def test_a_pending_change_passes_for_its_own_hash_only(root):
    run_on_gpu(root)
    pend(root, f'[[change]]\nhash = "{change_kernel(root)}"\nreason = "comments only"\n')

    assert evidence.check(root).code == Exit.PASS
    (root / "recoverssm/kernels/verify.py").write_text("third = 3\n")
    assert evidence.check(root).code == Exit.INVALID


def test_a_pending_change_must_go_once_the_evidence_covers_it(root):
    pend(root, f'[[change]]\nhash = "{evidence.source_hash(root)}"\nreason = "comments only"\n')
    run_on_gpu(root)

    assert evidence.check(root).code == Exit.INVALID


def test_failed_gpu_tests_are_recorded_and_do_not_pass(root):
    assert run_on_gpu(root, extra=FAILURE).code == Exit.PASS

    assert json.loads((root / evidence.EVIDENCE).read_text())["failed"] == 1
    assert evidence.check(root).code == Exit.INVALID


def test_no_evidence_at_all_fails(root):
    assert evidence.check(root).code == Exit.MISSING


def test_an_outstanding_first_run_passes_until_there_is_evidence(root):
    pend(root, '[first_run]\nreason = "first GPU run outstanding"\n')
    assert evidence.check(root).code == Exit.PASS

    run_on_gpu(root)
    assert evidence.check(root).code == Exit.INVALID


@pytest.mark.parametrize(
    "text",
    ["[first_run]\n", '[[change]]\nreason = "no hash"\n', '[[change]]\nhash = "ab"\nreason = " "\n', "[other]\n", "[["],
)
def test_a_pending_entry_without_hash_or_reason_is_refused(root, text):
    pend(root, text)

    verdict = evidence.check(root)

    assert verdict.code == Exit.INVALID
    assert str(evidence.PENDING) in verdict.message


def test_a_corrupt_evidence_file_is_refused(root):
    (root / evidence.EVIDENCE).write_text("{")

    assert evidence.check(root).code == Exit.INVALID


def test_a_run_without_a_gpu_gives_no_evidence(root):
    verdict = run_on_gpu(root, card="")

    assert verdict.code == Exit.INVALID
    assert "card" in verdict.message
    assert not (root / evidence.EVIDENCE).exists()


def test_the_files_of_one_run_are_one_evidence(root):
    run_on_gpu(root)
    first = (root / "junit.xml").read_text()
    (root / "other.xml").write_text(first.replace("test_verify", "test_conv").replace("16:51", "16:49"))

    assert evidence.write([root / "junit.xml", root / "other.xml"], root).code == Exit.PASS

    written = json.loads((root / evidence.EVIDENCE).read_text())
    assert (written["passed"], written["skipped"], written["duration_s"]) == (2, 2, 24.7)
    assert written["date_utc"] == "2026-11-29T15:49:07Z"


def test_every_file_of_a_run_must_be_of_a_gpu(root):
    run_on_gpu(root)
    (root / "other.xml").write_text(JUNIT.format(properties="", extra=""))

    verdict = evidence.write([root / "junit.xml", root / "other.xml"], root)

    assert verdict.code == Exit.INVALID
    assert "other.xml: no source_hash" in verdict.message


def test_a_run_of_other_sources_gives_no_evidence(root):
    assert run_on_gpu(root, source_hash="0" * 64).code == Exit.INVALID


def test_a_missing_junit_file_is_one_line_on_stderr(root, capsys):
    code = evidence.main(["write", "--junit", str(root / "absent.xml")])

    assert code == Exit.INVALID
    assert "absent.xml" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["gpu"], ["check"], ["write"]], ids=" ".join)
def test_help_has_an_example(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        evidence.main([*command, "--help"])

    example = capsys.readouterr().out.split("example: ")[1]
    assert " ".join(["python -m ci.evidence", *command]) in example


def test_a_machine_without_a_gpu_is_told_so_at_once(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    assert evidence.main(["gpu"]) == Exit.BROKEN
    assert "no GPU here" in capsys.readouterr().err


def test_make_test_gpu_asks_for_the_gpu_before_anything_else():
    lines = (evidence.ROOT / "Makefile").read_text().split("test-gpu: setup")[1].splitlines()

    assert lines[1] == "\t@$(PY) -m ci.evidence gpu"


def test_the_repository_itself_passes(capsys):
    assert evidence.main(["check"]) == Exit.PASS, capsys.readouterr().err
