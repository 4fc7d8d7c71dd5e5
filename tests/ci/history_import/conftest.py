"""A source with one night, the store that it comes into, and what is refused before anything does."""

import pytest

from benchmarks.harness.store import Store
from ci.exits import Exit
from ci.history.archives import UntrustedSourceError
from ci.history.importing import import_from
from tests.ci.stores import contents, make_night, store_nights


@pytest.fixture
def made():
    return make_night(1)


@pytest.fixture
def source(tmp_path, made):
    return store_nights(tmp_path / "source", made).folder


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def refuse(store):
    def refuse(source, match, **options):
        with pytest.raises(UntrustedSourceError, match=match) as caught:
            import_from(source, store, **options)
        assert caught.value.code == Exit.INVALID
        assert contents(store.folder) == {}

    return refuse
