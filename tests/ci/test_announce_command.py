"""What nights announce: a feed of what is worth telling, badges, an issue where a regression is confirmed."""

import json
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from benchmarks.harness.records import Acceptance
from ci.__main__ import app
from ci.announce.feed import ATOM, ENTRIES, badge, feed
from ci.announce.issue import confirmed, issue
from ci.exits import Exit
from tests.ci.stores import make_night, put_at_url, store_nights

WHY = "the new gate costs this much"
BASE = make_night(1, commit="a" * 40)


def with_verdict(made, **changes):
    """The night with its first verdict changed, as a regression that fails it if nothing else is said."""
    first, *rest = made.night.verdicts
    numbers = {"base_value": 96.1, "change_pct": 4.0, "change_low_pct": 3.1, "change_high_pct": 4.9, "limit_pct": 3.0}
    changed = replace(first, **{"verdict": "regressed", "known": "confirmed", "reason": "slower", **numbers, **changes})
    night = replace(
        made.night, verdicts=[changed, *rest], accepted=False, exit_code=Exit.REGRESSED, base_night=BASE.night.id
    )
    return type(made)(night, made.records)


def regressed(day=2, **changes):
    return with_verdict(make_night(day, commit="b" * 40), **changes)


def entries(document):
    return ET.fromstring(document).findall(f"{{{ATOM}}}entry")


def text_of(entry, name):
    return entry.findtext(f"{{{ATOM}}}{name}")


class TestIssue:
    def test_it_says_what_since_when_and_how_to_measure_it_again(self):
        made = regressed()

        found = issue(made.night, made.records, BASE.records)

        assert found.title == "Regression on nvidia-h200: verify recoverssm +4.0 % (+3.1..+4.9)"
        assert "Not slower at `aaaaaaaaaa`, slower at `bbbbbbbbbb`" in found.body
        assert f"python -m ci reproduce {made.night.id}" in found.body
        assert "--op verify --metric device_us" in found.body
        assert "python -m ci bisect aaaaaaaaaa bbbbbbbbbb --set smoke --case kimi" in found.body
        assert f"python -m ci accept regression {made.night.id} --op verify" in found.body
        assert found.as_file().startswith(f"{found.title}\n\n")

    @pytest.mark.parametrize("changes", [{"known": "new"}, {"known": "acknowledged"}, {"gated": False}])
    def test_what_is_not_confirmed_or_fails_nothing_makes_no_issue(self, changes):
        made = regressed(**changes)

        assert confirmed(made.night) == []

    def test_nights_of_one_commit_blame_no_commit(self):
        made = with_verdict(make_night(2, commit="a" * 40))

        body = issue(made.night, made.records, BASE.records).body

        assert "no commit brought this" in body
        assert "ci gate" not in body

    def test_unknown_commits_are_said_to_be_unknown(self):
        body = issue(regressed().night, [], []).body

        assert "The commits are not known" in body

    def test_a_hostile_name_stays_a_name(self):
        made = regressed(case="@all ![x](https://e.com) | <b>", reason="x")

        found = issue(made.night, made.records, BASE.records)

        outside = "".join(found.body.split("```")[::2])
        assert "@all" not in outside
        assert "<b>" not in outside
        assert "!\\[" in outside


class TestFeed:
    def test_a_quiet_night_is_no_news_and_a_red_one_is(self):
        quiet, red = make_night(1), regressed()

        (entry,) = entries(feed([quiet.night, red.night], "https://example.com/site"))

        assert text_of(entry, "title") == "nvidia-h200: regressed (1 regressed)"
        content = text_of(entry, "content")
        assert "regressed (confirmed) device_us/verify/recoverssm/kimi" in content
        assert f"again: python -m ci reproduce {red.night.id}" in content
        assert entry.find(f"{{{ATOM}}}link").get("href") == "https://example.com/site"

    @pytest.mark.parametrize("code", [Exit.MISSING, Exit.INVALID])
    def test_what_is_missing_or_invalid_beside_the_series_is_told(self, code):
        night = make_night(1, exit_code=code, accepted=False, notes=["this host has 1 nvidia-h200, and had 2"]).night

        (entry,) = entries(feed([night]))

        assert "note: this host has 1 nvidia-h200, and had 2" in text_of(entry, "content")

    def test_an_owners_decision_is_news(self):
        by = Acceptance(owner="kernels", reason=WHY, at_utc="2026-11-30T00:00:00Z")
        night = replace(regressed().night, accepted=True, acceptance=by)

        (entry,) = entries(feed([night]))

        assert text_of(entry, "updated") == "2026-11-30T00:00:00Z"
        assert f"accepted by kernels: {WHY}" in text_of(entry, "content")

    def test_the_newest_come_first_and_ids_stay(self):
        nights = [regressed(day).night for day in (3, 2, 4)]

        shown = entries(feed(nights))

        assert [text_of(entry, "published")[:10] for entry in shown] == ["2026-11-04", "2026-11-03", "2026-11-02"]
        assert len({text_of(entry, "id") for entry in shown}) == 3
        assert feed(nights) == feed(nights[::-1])

    def test_it_does_not_grow_for_ever(self):
        nights = [replace(regressed().night, id=f"night-{index:03}") for index in range(ENTRIES + 5)]

        assert len(entries(feed(nights))) == ENTRIES

    @pytest.mark.parametrize("reason", ["<b>&amp;</b>", "]]>", "\x00\x1b[31m", "a\nb"])
    def test_a_hostile_reason_is_text(self, reason):
        (entry,) = entries(feed([regressed(reason=reason).night]))

        content = entry.find(f"{{{ATOM}}}content")
        assert content.get("type") == "text"
        assert len(content) == 0  # no element within


@pytest.mark.parametrize(
    ("code", "message"),
    [(0, "passed"), (1, "regressed"), (3, "incomplete"), (4, "invalid"), (5, "broken")],
)
def test_a_badge_says_how_the_last_night_ended(code, message):
    night = replace(BASE.night, exit_code=code)

    assert badge(night)["label"] == "nvidia-h200"
    assert badge(night)["message"] == message


class TestCommand:
    def ran(self, store, out, *options):
        return CliRunner().invoke(app, ["announce", "--store", str(store.folder), "--out", str(out), *options])

    def test_it_writes_feed_badge_and_issue(self, tmp_path):
        store = store_nights(tmp_path / "store", BASE, regressed())

        done = self.ran(store, tmp_path / "out", "--json")

        assert done.exit_code == 0, done.output
        names = sorted(path.name for path in (tmp_path / "out").iterdir())
        assert names == ["badge-nvidia-h200.json", "feed.xml", "issue-nvidia-h200.md"]
        assert len(json.loads(done.stdout)["files"]) == 3
        assert "aaaaaaaaaa" in (tmp_path / "out" / "issue-nvidia-h200.md").read_text()

    def test_recent_nights_are_read_and_records_of_what_is_confirmed(self, tmp_path, monkeypatch):
        monkeypatch.setattr("benchmarks.harness.store.RECENT_NIGHTS", 2)
        others = [make_night(day) for day in range(2, 8)]
        store = store_nights(tmp_path / "store", BASE, *others, regressed(8))
        url, asked = put_at_url(store, tmp_path, monkeypatch)

        done = CliRunner().invoke(app, ["announce", "--store", url, "--out", str(tmp_path / "out")])

        assert done.exit_code == 0, done.output
        assert "aaaaaaaaaa" in (tmp_path / "out" / "issue-nvidia-h200.md").read_text()
        assert sorted(name.split("/")[2][:8] for name in asked if name.startswith("nights")) == [
            *("20261101", "20261107", "20261108")
        ]
        assert [name for name in asked if name.startswith("records")] == [
            f"records/nvidia-h200/{name}.json" for made in (regressed(8), BASE) for name in made.night.records
        ]

    def test_an_issue_of_a_regression_that_is_gone_does_not_stay(self, tmp_path):
        out = tmp_path / "out"
        self.ran(store_nights(tmp_path / "store", BASE, regressed()), out)

        self.ran(store_nights(tmp_path / "store", make_night(3)), out)

        assert not (out / "issue-nvidia-h200.md").exists()

    def test_a_store_that_is_not_there_is_an_error_and_takes_no_issue_away(self, tmp_path):
        store = store_nights(tmp_path / "store", BASE, regressed())
        out = tmp_path / "out"
        self.ran(store, out)

        missing = self.ran(store, out, "--store", str(tmp_path / "stoer"))

        assert missing.exit_code == Exit.MISSING
        assert "stoer: there is no such store" in missing.output
        assert (out / "issue-nvidia-h200.md").exists()

    def test_an_empty_store_has_nothing_to_announce(self, tmp_path):
        (tmp_path / "store").mkdir()

        done = CliRunner().invoke(app, ["announce", "--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")])

        assert done.exit_code == Exit.MISSING
        assert not (tmp_path / "out").exists()
