"""Policy and fixtures of the whole suite: where kernels run, and what may be skipped.

Without CUDA the kernels run under Triton's interpreter on CPU tensors. With CUDA they run compiled, unless the caller
sets TRITON_INTERPRET=1 (as `make test` does). A test that takes `device` runs on "cpu" where kernels are interpreted
and, marked `gpu`, on "cuda" where they are compiled.
"""

import os
import re
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch's thread pools when torch is first imported

from collections.abc import Callable, Iterator

import pytest
import torch
from _pytest.junitxml import xml_key  # what record_testsuite_property writes to, which is none in a worker
from hypothesis import HealthCheck, settings

from ci import evidence

# Commands print the same on every terminal and in every CI: typer reads them when it is imported, which is later.
# And git, run by a hook that runs the suite, would be told of this repository in all others.
for name in (
    *("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "TERMINAL_WIDTH", "GITHUB_ACTIONS"),
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"),
):
    os.environ.pop(name, None)
os.environ["COLUMNS"] = "80"

HAS_CUDA = torch.cuda.is_available()
if not HAS_CUDA:
    os.environ["TRITON_INTERPRET"] = "1"  # read by @triton.jit, so before any kernel module is imported
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

torch.set_num_threads(1)
# A busy machine takes longer, and is not wrong for it; nor does what passed yesterday fail by today's chance.
# pytest --hypothesis-profile 'by chance' looks for other examples.
settings.register_profile("by chance", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("as before", settings.get_profile("by chance"), derandomize=True)
settings.load_profile("as before")


@pytest.fixture(autouse=True, scope="session")
def _no_disk_is_waited_for() -> Iterator[None]:
    """Tests outlive no loss of power, and each wait takes 4 ms. Stores do wait: tests/harness/test_store_folder.py."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """No op has seen a call before, for tests that change what an op checks with; called, none has again."""
    from recoverssm import ops
    from recoverssm.dispatch import Prepared

    def forget() -> None:
        for name in ops.__all__:
            known = getattr(ops, name).__globals__
            monkeypatch.setitem(known, f"_{name}", Prepared(known[f"_{name}"].prepare))

    forget()
    return forget


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where this variant's tensors live; "cuda" variants carry the marker `gpu`."""
    return str(request.param)


def pytest_sessionstart(session: pytest.Session) -> None:
    """The card goes into the JUnit file of a run on a GPU, by the process that writes it: workers write none."""
    junit = session.config.stash.get(xml_key, None)
    if junit is not None and HAS_CUDA and not INTERPRETED:
        for name, value in evidence.gpu_facts().items():
            junit.add_global_property(name, value)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m 'gpu ...'``, import only files with such tests: a GPU host lacks what pages and workflows need."""
    if not re.match(r"gpu\b", config.option.markexpr) or collection_path.suffix != ".py":
        return None
    return None if re.search(r"mark\.gpu\b|\bdevice\b", collection_path.read_text()) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu"):
            if not HAS_CUDA:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
            elif INTERPRETED:
                item.add_marker(pytest.mark.skip(reason="TRITON_INTERPRET is set: kernels are not compiled"))
        elif not INTERPRETED and "device" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason="kernels are compiled here: run with TRITON_INTERPRET=1"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and not item.get_closest_marker("gpu"):
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    if report.skipped:
        _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """In CI nothing but the `gpu` marker may skip: a silent skip there would look like a pass."""
    if os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where only tests marked `gpu` may skip: {report.longrepr}"
