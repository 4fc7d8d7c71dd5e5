"""A built site at a URL."""

from itertools import count

import pytest
from typer.testing import CliRunner

from benchmarks.harness.errors import RemoteError
from benchmarks.harness.objects import Objects
from reports.cli import app
from reports.publishing import Published, publish
from reports.site import MARKER, ForeignFolderError

NUMBERS = count()


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    return f"memory://site-{next(NUMBERS)}/there" if request.param == "memory" else f"file://{tmp_path}/there"


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    for place in (MARKER, "index.html", "data/nvidia-h200/a.js", "assets/page.css"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(f"of {place}" if place != MARKER else "")
    return folder


def there(url):
    objects = Objects(url)
    return {name: content.decode() for name, content in objects.get(objects.facts("")).items() if name != MARKER}


def here(site):
    return {
        path.relative_to(site).as_posix(): path.read_text()
        for path in site.rglob("*")
        if path.is_file() and path.name != MARKER
    }


def test_a_site_is_sent_whole_and_then_only_what_differs(site, url):
    assert publish(site, url) == Published(3, sum(map(len, here(site).values())), 0, 0)
    assert there(url) == here(site)
    assert publish(site, url) == Published(0, 0, 3, 0)

    (site / "index.html").write_text("of INDEX.html")
    (site / "data/nvidia-h200/a.js").unlink()
    assert publish(site, url) == Published(1, 13, 1, 1)
    assert there(url) == here(site)


def test_pages_come_last_and_a_publication_that_ended_early_is_made_good(site, url, monkeypatch):
    publish(site, url)
    for place in ("index.html", "assets/page.css"):
        (site / place).write_text(f"new {place}")
    put, sent = Objects.put, []

    def failing(self, name, content, **options):
        sent.append(name)
        if name.endswith(".html"):
            raise RemoteError("no network")
        put(self, name, content, **options)

    with monkeypatch.context() as changed:
        changed.setattr(Objects, "put", failing)
        with pytest.raises(RemoteError):
            publish(site, url)
    assert sent == ["assets/page.css", "index.html"]
    assert there(url)["index.html"] == "of index.html"

    publish(site, url)
    assert there(url) == here(site)


def test_what_is_no_site_is_neither_sent_nor_overwritten(site, url, tmp_path):
    with pytest.raises(ForeignFolderError, match="expected a built site"):
        publish(tmp_path / "none", url)
    Objects(url).put("photos/cat.jpg", b"cat")
    with pytest.raises(ForeignFolderError, match="name an empty prefix"):
        publish(site, url)
    assert there(url) == {"photos/cat.jpg": "cat"}


def test_a_damaged_list_of_files_means_that_all_are_sent(site, url):
    publish(site, url)
    Objects(url).put(MARKER, b"{")

    assert publish(site, url).num_sent == 3


def test_the_command_says_what_it_did_and_names_what_is_wrong(site, url, tmp_path):
    result = CliRunner().invoke(app, ["publish", "--site", str(site), "--url", url])
    assert (result.exit_code, result.output) == (0, f"{url}: 3 files sent (0.0 MB), 0 as before, 0 removed\n")

    assert CliRunner().invoke(app, ["publish", "--site", str(tmp_path), "--url", url]).exit_code == 2
    assert CliRunner().invoke(app, ["publish", "--site", str(site), "--url", "gs://bucket/site"]).exit_code == 5
