from pathlib import Path

import pytest

from tests.reports.golden import write_history


@pytest.fixture(scope="session")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with golden nights, for reading only."""
    return write_history(tmp_path_factory.mktemp("golden") / "store")


@pytest.fixture(scope="session")
def golden_site(golden_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site built from it, for reading only."""
    from reports.site import build_site
    from reports.sources import read_stores

    out = tmp_path_factory.mktemp("site")
    build_site(read_stores([str(golden_store)]), out)
    return out
