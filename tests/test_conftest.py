"""The suite's own policy, tried on little suites."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).with_name("conftest.py").read_text()


@pytest.fixture
def suite(pytester, monkeypatch):
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\nmarkers =\n    gpu: needs CUDA\n    long: takes minutes\n")

    def run(text, *options, ci, cuda=False, interpreted=True):
        monkeypatch.setenv("CI", "true" if ci else "")
        monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
        monkeypatch.setattr("ci.evidence.gpu_facts", lambda: {"card": "made-up card"})
        if interpreted:
            monkeypatch.setenv("TRITON_INTERPRET", "1")
        else:
            monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        pytester.makepyfile(text)
        return pytester.runpytest_inprocess("-p", "no:xdist", "--junitxml=junit.xml", *options)

    return run


def test_a_skip_in_ci_is_a_failure(suite):
    result = suite("import pytest\ndef test_it():\n    pytest.skip('not today')", ci=True)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*skipped in CI*not today*"])


def test_a_skip_elsewhere_stays_a_skip(suite):
    suite("import pytest\ndef test_it():\n    pytest.skip('not today')", ci=False).assert_outcomes(skipped=1)


def test_a_module_that_skips_itself_in_ci_is_an_error(suite):
    suite("import pytest\npytest.importorskip('no_such_module')", ci=True).assert_outcomes(errors=1)


def test_a_skip_mark_in_ci_is_no_pass(suite):
    result = suite("import pytest\n@pytest.mark.skip(reason='later')\ndef test_it():\n    pass", ci=True)

    assert result.ret != 0


def test_a_gpu_test_may_skip_in_ci(suite):
    suite("import pytest\n@pytest.mark.gpu\ndef test_it():\n    assert False", ci=True).assert_outcomes(skipped=1)


def test_an_expected_failure_is_no_skip(suite):
    suite("import pytest\n@pytest.mark.xfail\ndef test_it():\n    assert False", ci=True).assert_outcomes(xfailed=1)


def test_examples_of_hypothesis_are_the_same_ones_every_day(suite):
    suite(
        "from hypothesis import settings\ndef test_it():\n    assert settings().derandomize", ci=False
    ).assert_outcomes(passed=1)


def test_without_cuda_a_device_test_runs_interpreted_on_the_cpu(suite):
    text = "import os\ndef test_it(device):\n    assert (device, os.environ['TRITON_INTERPRET']) == ('cpu', '1')"

    suite(text, ci=True, interpreted=False).assert_outcomes(passed=1, skipped=1)


def test_with_cuda_a_device_test_runs_compiled_on_the_gpu(suite):
    text = "import os\ndef test_it(device):\n    assert (device, 'TRITON_INTERPRET' in os.environ) == ('cuda', False)"

    suite(text, ci=False, cuda=True, interpreted=False).assert_outcomes(passed=1, skipped=1)


def test_with_cuda_the_interpreter_can_be_asked_for(suite):
    suite("def test_it(device):\n    assert device == 'cpu'", ci=True, cuda=True).assert_outcomes(passed=1, skipped=1)


def test_a_run_on_a_gpu_writes_its_card_into_the_junit_file(suite, pytester):
    suite("def test_it(device):\n    pass", ci=False, cuda=True, interpreted=False)

    assert '<property name="card" value="made-up card"' in (pytester.path / "junit.xml").read_text()


@pytest.mark.parametrize("marks", ["gpu", "gpu and not long"])
def test_a_gpu_run_does_not_import_files_without_gpu_tests(suite, pytester, marks):
    pytester.makepyfile(test_page="import no_such_module")

    result = suite("def test_it(device):\n    pass", "-m", marks, ci=False, cuda=True, interpreted=False)

    result.assert_outcomes(passed=1, deselected=1)
