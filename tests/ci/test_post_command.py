"""Posting a gate: number and commit are GitHub's, the artifact is a stranger's, the token stays with the API."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from ci.__main__ import app
from ci.exits import Exit, UsageError
from ci.gate.outputs.markdown import MARKER
from ci.gate.result import encode
from ci.posting.artifact import MEMBER
from ci.posting.event import read_event
from ci.posting.github import GitHub
from tests.ci.gate_results import AGAIN
from tests.ci.posted import GATE, SHA, archive

EVENT = {
    "action": "completed",
    "repository": {"full_name": "owner/recoverssm", "owner": {"login": "owner"}},
    "workflow_run": {
        "id": 77,
        "event": "pull_request",
        "head_sha": SHA,
        "head_branch": "wider tiles & more",
        "html_url": "https://github.com/owner/recoverssm/actions/runs/77",
        "conclusion": "failure",
        "pull_requests": [],  # so of forks
        "head_repository": {"full_name": "stranger/recoverssm", "owner": {"login": "stranger"}},
    },
}


class FakeGitHub:
    """Answers as GitHub does, and remembers what was asked; artifacts lie on another host, which wants no token."""

    def __init__(self):
        self.asked, self.tokens, self.archive = [], {}, archive(encode(GATE))
        self.pulls = [self.pull(12)]
        self.comments = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = urlsplit(self.path)
                fake.asked.append((self.command, path.path, parse_qs(path.query), json.loads(body) if body else None))
                fake.tokens[path.path] = self.headers.get("Authorization")
                code, content, headers = fake.reply(self.command, path.path)
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = answer

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def pull(self, number, sha=SHA, base="owner/recoverssm"):
        return {"number": number, "head": {"sha": sha}, "base": {"repo": {"full_name": base}}}

    def reply(self, method, path):
        name = path.removeprefix("/repos/owner/recoverssm/")
        if name == "actions/artifacts/5/zip":
            return 302, b"", {"Location": f"{self.address}/storage/5"}
        if path == "/storage/5":
            return 200, self.archive, {}
        answers = {
            "actions/runs/77/artifacts": {"artifacts": self.artifacts()},
            "pulls": self.pulls,
            "issues/12/comments": {"html_url": "https://example.com/new"} if method == "POST" else self.comments,
            "issues/comments/9": {"html_url": "https://example.com/9"},
            "check-runs": {"html_url": "https://example.com/check"},
        }
        if name not in answers:
            return 404, b'{"message": "Not Found"}', {}
        return 200, json.dumps(answers[name]).encode(), {}

    def artifacts(self):
        if self.archive is None:
            return []
        facts = {"name": "gate-verdict", "expired": False}
        return [{**facts, "id": 4}, {**facts, "id": 5}, {**facts, "name": "gate-verdict-2", "id": 6}]

    def written(self):
        """Path and body of every call that changes something."""
        return {path.removeprefix("/repos/owner/recoverssm/"): body for method, path, _, body in self.asked if body}


@pytest.fixture
def github(monkeypatch, tmp_path):
    fake = FakeGitHub()
    thread = threading.Thread(target=fake.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    event = tmp_path / "event.json"
    event.write_text(json.dumps(EVENT))
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(event))
    monkeypatch.setenv("GITHUB_TOKEN", "a-token")
    monkeypatch.setenv("GITHUB_API_URL", fake.address)
    yield fake
    fake.server.shutdown()
    thread.join()
    fake.server.server_close()


@pytest.fixture
def fetched(github, tmp_path):
    """What the first job does: the end of its command, and the file that it leaves."""

    def run():
        out = tmp_path / "post" / MEMBER
        return CliRunner().invoke(app, ["fetch-verdict", "--out", str(out)]), out

    return run


@pytest.fixture
def ran(fetched):
    """Both jobs, one after the other."""

    def run(*options):
        return CliRunner().invoke(app, ["post", str(fetched()[1]), *options])

    return run


class TestPosting:
    @pytest.mark.parametrize("content", [b'{"@everyone": 1}', encode(replace(GATE, exit_code=0)), b"0" * (17 << 20)])
    def test_a_file_that_the_first_job_would_not_have_left_is_refused(self, github, tmp_path, content):
        path = tmp_path / MEMBER
        path.write_bytes(content)

        done = CliRunner().invoke(app, ["post", str(path)])

        assert done.exit_code == Exit.INVALID
        (check,) = github.written().values()
        assert check["output"]["title"] == "no verdict"

    def test_who_writes_asks_for_no_artifact(self, github, tmp_path):
        path = tmp_path / MEMBER
        path.write_bytes(encode(GATE))

        assert CliRunner().invoke(app, ["post", str(path)]).exit_code == 0
        assert not any("artifacts" in path for _, path, *_ in github.asked)

    def test_check_and_comment_are_written_for_the_commit_and_number_that_github_names(self, github, ran):
        done = ran()

        assert done.exit_code == 0, done.output
        written = github.written()
        assert written["check-runs"]["head_sha"] == SHA
        assert written["check-runs"]["conclusion"] == "failure"
        assert written["check-runs"]["output"]["title"] == "failed: 1 regressed of 1 series"
        assert written["issues/12/comments"]["body"].startswith(MARKER)
        assert AGAIN in written["issues/12/comments"]["body"]
        (query,) = [query for _, path, query, _ in github.asked if path.endswith("/pulls")]
        assert query["head"] == ["stranger:wider tiles & more"]

    def test_the_comment_of_an_earlier_gate_is_replaced_and_a_copy_of_it_is_not(self, github, ran):
        theirs = {"id": 8, "user": {"login": "stranger"}, "body": f"{MARKER} a copy"}
        quoted = {"id": 7, "user": {"login": "github-actions[bot]"}, "body": f"> {MARKER}"}
        ours = {"id": 9, "user": {"login": "github-actions[bot]"}, "body": f"{MARKER}\nbefore"}
        gone = {"id": 6, "user": None, "body": MARKER}  # GitHub's word for an account that was deleted
        github.comments = [theirs, gone, quoted, ours]

        assert ran().exit_code == 0

        assert "issues/comments/9" in github.written()
        assert "issues/12/comments" not in github.written()

    @pytest.mark.parametrize("changes", [{"sha": "3" * 40}, {"base": "other/recoverssm"}])
    def test_a_pull_request_that_has_moved_on_gets_no_comment(self, github, ran, changes):
        github.pulls = [github.pull(12, **changes)]

        done = ran()

        assert done.exit_code == 0
        assert "no open pull request has this commit" in done.output
        assert set(github.written()) == {"check-runs"}

    def test_the_token_goes_to_the_api_alone(self, github, ran):
        ran()

        assert github.tokens["/repos/owner/recoverssm/pulls"] == "Bearer a-token"
        assert github.tokens["/storage/5"] is None

    def test_a_dry_run_writes_nothing(self, github, ran):
        done = ran("--dry-run")

        assert done.exit_code == 0
        assert github.written() == {}
        assert "comment of pull request 12: would be written" in done.output

    def test_without_a_verdict_the_check_fails_and_nobody_is_told_a_number(self, github, ran):
        github.archive = None

        done = ran()

        assert done.exit_code == Exit.INVALID
        (check,) = github.written().values()
        assert check["conclusion"] == "failure"
        assert check["output"]["summary"] == (
            "The gate ended as `failure`: it left no verdict, or one that was refused."
        )

    def test_nothing_of_a_refused_artifact_is_shown(self, github, ran):
        github.archive = archive(b'{"@everyone": 1}')

        done = ran()

        assert done.exit_code == Exit.INVALID
        (check,) = github.written().values()
        assert "everyone" not in json.dumps(check)
        assert "was refused" in check["output"]["summary"]

    def test_a_refusal_of_github_is_named(self, github, ran, monkeypatch):
        monkeypatch.setattr(github, "reply", lambda *_: (403, b'{"message": "Resource not accessible"}', {}))

        done = ran()

        assert done.exit_code == Exit.BROKEN
        assert "403" in done.output
        assert "Resource not accessible" in done.output
        assert "a-token" not in done.output

    @pytest.mark.parametrize("name", ["GITHUB_TOKEN", "GITHUB_EVENT_PATH"])
    def test_outside_such_a_workflow_it_says_what_is_missing(self, github, ran, monkeypatch, name):
        monkeypatch.delenv(name)

        done = ran()

        assert done.exit_code == Exit.USAGE
        assert f"{name}: not set" in done.output


class TestFetching:
    """In the job that may write nothing."""

    def test_the_verdict_is_left_as_a_plain_file(self, github, fetched):
        done, out = fetched()

        assert done.exit_code == 0, done.output
        assert out.read_bytes() == encode(GATE)
        assert {method for method, *_ in github.asked} == {"GET"}

    @pytest.mark.parametrize(
        ("left", "named"), [(None, "the run left no gate-verdict"), (archive(b"{}"), "is no result of a gate")]
    )
    def test_without_one_that_can_be_used_the_file_is_empty_and_the_reason_told(self, github, fetched, left, named):
        github.archive = left

        done, out = fetched()

        assert done.exit_code == Exit.INVALID
        assert named in done.output
        assert out.read_bytes() == b""

    def test_what_is_refused_writes_no_line_of_its_own_into_the_log(self, github, fetched):
        github.archive = archive(json.dumps({**json.loads(encode(GATE)), "x\n::error::y": 1}).encode())

        done, _ = fetched()

        assert "::error::y" in done.output
        assert not any(line.startswith("::") for line in done.output.splitlines())


class TestEvent:
    def read(self, tmp_path, **changes):
        path = tmp_path / "event.json"
        path.write_text(json.dumps({**EVENT, "workflow_run": {**EVENT["workflow_run"], **changes}}))
        return read_event(path)

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"event": "push"}, "event: expected pull_request"),
            ({"head_sha": "main"}, "head_sha: expected 40 hex digits"),
            ({"id": "seven"}, "Expected `int`"),
            ({"head_repository": None}, "head_repository"),
        ],
    )
    def test_another_event_is_refused(self, tmp_path, changes, named):
        with pytest.raises(UsageError, match=named):
            self.read(tmp_path, **changes)

    def test_the_token_is_sent_through_tls_alone(self):
        with pytest.raises(UsageError, match="expected an https address"):
            GitHub("owner/recoverssm", "a-token", "http://api.example.com")
