"""``python -m ci accept``: a night becomes a base, a regression becomes known; with owner and reason, or not at all."""

import datetime as dt
import json

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from benchmarks.harness.records import Acceptance
from benchmarks.harness.store import Store
from ci.__main__ import app
from ci.accept.regression import Decision, Found, as_toml, make_entries
from ci.exits import Exit, MissingDataError, UsageError
from ci.gate.result import encode
from ci.history.importing import import_from
from ci.history.verify import verify
from ci.policy import KnownRegressions, load_known
from tests.ci import gate_results
from tests.ci.nights import CASE
from tests.ci.stores import contents, make_night, put_at_url, store_nights

WHY = "the new gate costs this much"
DECISION = Decision("kernels", WHY, dt.date(2026, 11, 29), dt.date(2027, 1, 31))
SLOWER = Found("device_us", "verify", "recoverssm", CASE, "graph-cold", "nvidia-h200", 4.0, 3.12, 4.95)


def ran(*arguments):
    return CliRunner().invoke(app, ["accept", *map(str, arguments)])


def regressed_night(day, **changes):
    made = make_night(day, accepted=False, exit_code=Exit.REGRESSED, **changes)
    numbers = {"verdict": "regressed", "change_pct": 4.0, "change_low_pct": 3.12, "change_high_pct": 4.95}
    first, *rest = made.night.verdicts
    return replace_night(made, verdicts=[replace(first, **numbers), *rest])


def replace_night(made, **changes):
    return type(made)(replace(made.night, **changes), made.records)


@pytest.fixture
def store(tmp_path):
    return store_nights(tmp_path / "store", make_night(1), regressed_night(2))


class TestNight:
    def accept(self, store, name, *options, reason=WHY):
        return ran("night", name, "--owner", "kernels", "--reason", reason, "--store", store.folder, *options)

    @pytest.mark.parametrize("decide", [("night",), ("regression", "--known", "known.toml")])
    def test_no_other_night_is_read(self, store, tmp_path, monkeypatch, decide):
        url, asked = put_at_url(store, tmp_path, monkeypatch)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "known.toml").write_text("")
        name, (what, *options) = store.ids("nights")[-1], decide

        done = ran(what, name[-15:], "--owner", "kernels", "--reason", WHY, "--store", url, "--dry-run", *options)

        assert done.exit_code == 0, done.output
        assert asked == [f"nights/nvidia-h200/{name}.json"]

    def test_a_night_that_cannot_be_read_is_told(self, store):
        path = next(store.folder.glob("nights/*/*2T090000Z-*"))
        path.write_text("{")

        done = self.accept(store, path.stem, "--dry-run")

        assert done.exit_code == Exit.MISSING
        assert f"night {path.stem} cannot be read" in done.output

    def test_an_accepted_night_is_the_base_from_then_on_and_says_by_whom(self, store):
        newest = store.nights()[-1]

        done = self.accept(store, newest.id)

        assert done.exit_code == 0, done.output
        night = Store(store.folder).nights()[-1]
        assert night.accepted
        assert night.exit_code == Exit.REGRESSED  # what was judged stays
        assert (night.acceptance.owner, night.acceptance.reason) == ("kernels", WHY)
        assert night.as_judged == newest
        assert verify(store.folder).problems == []

    def test_a_night_may_be_named_by_its_end(self, store):
        night = store.nights()[-1]

        assert self.accept(store, night.id[-14:]).exit_code == 0
        assert Store(store.folder).nights()[-1].accepted

    def test_a_dry_run_changes_nothing(self, store):
        before = contents(store.folder)

        done = self.accept(store, store.nights()[-1].id, "--dry-run")

        assert "would be accepted" in done.output
        assert contents(store.folder) == before

    def test_a_night_is_accepted_once(self, store):
        name = store.nights()[-1].id
        self.accept(store, name)
        before = contents(store.folder)

        again = self.accept(store, name)

        assert again.exit_code == Exit.USAGE
        assert f"accepted already by kernels: {WHY}" in again.output
        assert contents(store.folder) == before

    def test_an_invalid_night_is_no_base_whoever_says_so(self, tmp_path):
        made = make_night(1, accepted=False, exit_code=Exit.INVALID, notes=["control copy: the card has changed"])
        store = store_nights(tmp_path / "store", made)

        refused = self.accept(store, made.night.id)

        assert refused.exit_code == Exit.USAGE
        assert "the card has changed" in refused.output

    def test_an_unknown_night_is_named_with_those_there_are(self, store):
        refused = self.accept(store, "nosuchnight")

        assert refused.exit_code == Exit.MISSING
        assert store.nights()[-1].id in refused.output

    def test_an_empty_name_is_no_night_even_where_there_is_one_alone(self, tmp_path):
        done = self.accept(store_nights(tmp_path / "store", regressed_night(1)), "")

        assert done.exit_code == Exit.USAGE
        assert "expected the id of a night" in done.output

    @pytest.mark.parametrize(("options", "named"), [(["--owner", " "], "--owner"), (["--reason", "ok"], "--reason")])
    def test_owner_and_reason_are_needed(self, store, options, named):
        refused = self.accept(store, store.nights()[-1].id, *options)

        assert refused.exit_code == Exit.USAGE
        assert named in refused.output

    def test_a_night_accepted_here_can_still_come_in_as_it_was_judged(self, tmp_path):
        made = regressed_night(2)
        source, store = store_nights(tmp_path / "source", made), store_nights(tmp_path / "store", made)
        self.accept(store, made.night.id)

        done = import_from(source.folder, store)

        assert done.already_there == len(made.records) + 1
        assert Store(store.folder).nights()[0].accepted

    def test_only_the_acceptance_may_come_into_a_stored_night(self, store):
        night = store.nights()[-1]
        by = Acceptance(owner="kernels", reason=WHY, at_utc="2026-11-30T00:00:00Z")

        with pytest.raises(Exception, match="as it was judged"):
            store.accept_night(replace(night, accepted=True, acceptance=by, verdicts=[]))


class TestRegression:
    def test_an_entry_takes_the_interval_of_the_change_as_its_band(self):
        (entry,) = make_entries([SLOWER], DECISION, KnownRegressions())

        assert entry.expected_pct == (3.1, 5.0)
        assert (entry.case, entry.gpu_model, entry.contract) == (CASE, "nvidia-h200", "graph-cold")
        assert (entry.date, entry.expires) == ("2026-11-29", "2027-01-31")

    @pytest.mark.parametrize(
        ("change", "band"),
        [
            ((4.0, -0.5, 9.0), (2.0, 9.0)),  # an interval that reaches zero
            ((-4.0, -4.95, -3.12), (-5.0, -3.1)),  # of what should grow
            ((2.0, 2.0, 2.0), (2.0, 2.0)),  # exact
            ((0.01, None, None), (0.1, 0.1)),
        ],
    )
    def test_a_band_is_rounded_and_never_reaches_zero(self, change, band):
        found = SLOWER._replace(**dict(zip(("change_pct", "low_pct", "high_pct"), change, strict=True)))

        (entry,) = make_entries([found], DECISION, KnownRegressions())

        assert entry.expected_pct == band
        assert entry.covers(change[0])

    def test_globs_choose_and_what_was_found_is_named_where_none_fits(self):
        other = SLOWER._replace(op="commit")

        chosen = make_entries([SLOWER, other], replace_decision(op="com*"), KnownRegressions())

        assert [entry.op for entry in chosen] == ["commit"]
        with pytest.raises(MissingDataError, match=r"found: device_us/verify/recoverssm/kimi"):
            make_entries([SLOWER], replace_decision(op="conv"), KnownRegressions())

    def test_what_came_from_zero_is_named_and_has_no_band(self, tmp_path):
        spill = gate_results.verdict("regressed", 1.0, metric="spill_instructions", contract="static", stage="exact")
        spill = replace(spill, base_value=0.0, head_value=12.0, change_pct=None, low_pct=None, high_pct=None)
        path = tmp_path / "verdict.json"
        path.write_bytes(encode(gate_results.result([spill], exit_code=1)))

        done = ran("regression", path, "--owner", "kernels", "--reason", WHY, "--known", tmp_path / "known.toml")

        assert done.exit_code == Exit.USAGE
        assert "spill_instructions/verify/recoverssm/" in done.output
        assert "came from zero" in done.output

    def test_a_series_that_an_entry_fits_gets_no_second_one(self):
        entries = make_entries([SLOWER], DECISION, KnownRegressions())

        with pytest.raises(UsageError, match=r"entry 1 .* fits device_us/verify"):
            make_entries([SLOWER], DECISION, KnownRegressions(regression=entries))

    def test_the_command_adds_to_the_file_and_leaves_its_other_lines(self, store, tmp_path):
        path = tmp_path / "known.toml"
        path.write_text("# whose file this is\nversion = 1\n")
        reason = 'a "quoted" reason with \\ and é'

        name = store.nights()[-1].id
        who = ("--owner", "kernels", "--reason", reason, "--store", store.folder, "--known", path)
        done = ran("regression", name, *who, "--commit", "0123abc")

        assert done.exit_code == 0, done.output
        assert path.read_text().startswith("# whose file this is\nversion = 1\n\n[[regression]]\n")
        (entry,) = load_known(path).regression
        assert (entry.reason, entry.commit, entry.expected_pct) == (reason, "0123abc", (3.1, 5.0))
        assert list(tmp_path.glob(".known*")) == []

    def test_the_command_says_what_it_would_do(self, store, tmp_path):
        path = tmp_path / "known.toml"
        who = ("--owner", "kernels", "--reason", WHY, "--store", store.folder, "--known", path, "--dry-run")

        done = ran("regression", store.nights()[-1].id, *who)
        as_json = ran("regression", store.nights()[-1].id, *who, "--json")

        assert '[[regression]]\nmetric = "device_us"' in done.output
        assert json.loads(as_json.stdout)["entries"][0]["owner"] == "kernels"
        assert not path.exists()

    @pytest.mark.parametrize(
        ("options", "code", "named"),
        [
            (["--expires", ""], Exit.USAGE, "--expires: expected a date"),
            (["--expires", "soon"], Exit.USAGE, "--expires: expected a date"),
            (["--expires", "2036-01-01"], Exit.USAGE, "at most 180 days"),
            (["--op", "conv"], Exit.MISSING, "no regression fits"),
        ],
    )
    def test_what_cannot_be_accepted_leaves_the_file_alone(self, store, tmp_path, options, code, named):
        path = tmp_path / "known.toml"
        who = ("--owner", "kernels", "--reason", WHY, "--store", store.folder, "--known", path)

        refused = ran("regression", store.nights()[-1].id, *who, *options)

        assert refused.exit_code == code
        assert named in refused.output
        assert not path.exists()

    def test_what_a_gate_found_is_taken_from_its_verdict(self, tmp_path):
        found = [
            gate_results.verdict("regressed", 3.0),
            gate_results.verdict("regressed", 2.0, metric="cache_bytes", op="state", contract="exact", gpu_model="any"),
            gate_results.verdict("regressed", 9.0, op="conv", gated=False),
            gate_results.verdict("regressed", 9.0, op="align", known="acknowledged"),
        ]
        path, known = tmp_path / "verdict.json", tmp_path / "known.toml"
        path.write_bytes(encode(gate_results.result(found, exit_code=1)))

        done = ran("regression", path, "--owner", "kernels", "--reason", WHY, "--known", known)

        assert done.exit_code == 0, done.output
        entries = load_known(known).regression
        assert [(e.op, e.gpu_model, e.commit) for e in entries] == [
            ("verify", "nvidia-h200", None),
            ("state", "*", None),
        ]

    def test_a_file_that_is_no_verdict_is_named(self, tmp_path):
        path = tmp_path / "verdict.json"
        path.write_text("{}")

        refused = ran("regression", path, "--owner", "kernels", "--reason", WHY)

        assert refused.exit_code == Exit.USAGE
        assert "verdict.json: expected the verdict.json of a gate" in refused.output

    def test_an_invisible_character_is_no_part_of_a_reason(self):
        (entry,) = make_entries([SLOWER], DECISION, KnownRegressions())

        with pytest.raises(UsageError, match="printable"):
            as_toml(replace(entry, reason="a reason with a \x1b[31m colour"))


def replace_decision(**changes):
    return Decision(**{**{name: getattr(DECISION, name) for name in Decision.__dataclass_fields__}, **changes})
