"""The few calls to GitHub's REST API that posting needs. The token goes to the API alone, never along a redirection."""

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

from ci.exits import BrokenEnvironmentError, UsageError

TIMEOUT_S = 30
PAGE = 100
MAX_PAGES = 10
MAX_ANSWER_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class GitHub:
    """One repository. ``api`` is the root of the API; only this machine may be spoken to without TLS, in tests."""

    repository: str
    token: str = field(repr=False)
    api: str = "https://api.github.com"

    def __post_init__(self) -> None:
        parts = urlsplit(self.api)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname == "127.0.0.1"):
            raise UsageError(f"GITHUB_API_URL: expected an https address, got {self.api!r}")

    def pull_requests(self, owner: str, branch: str, head_sha: str) -> list[int]:
        """Numbers of open pull requests from that branch whose newest commit is ``head_sha``."""
        found = self._call("GET", "pulls", query={"state": "open", "head": f"{owner}:{branch}", "per_page": PAGE})
        return [
            pull["number"]
            for pull in found
            if pull["head"]["sha"] == head_sha and pull["base"]["repo"]["full_name"] == self.repository
        ]

    def artifact(self, run_id: int, name: str, max_bytes: int) -> bytes | None:
        """The archive of a run's artifact, cut one byte above ``max_bytes``; None when the run left none."""
        query = {"name": name, "per_page": PAGE}
        listed = self._call("GET", f"actions/runs/{run_id}/artifacts", query=query)["artifacts"]
        own = [artifact for artifact in listed if artifact["name"] == name and not artifact["expired"]]
        if not own:
            return None
        newest = max(own, key=lambda artifact: artifact["id"])  # of the last attempt
        return self._send("GET", f"actions/artifacts/{newest['id']}/zip", max_bytes=max_bytes + 1)

    def own_comment(self, number: int, marker: str, author: str) -> int | None:
        """The comment of ours that begins with ``marker``; others' comments that copy it are none of ours."""
        for page in range(1, MAX_PAGES + 1):
            query = {"per_page": PAGE, "page": page}
            comments = self._call("GET", f"issues/{number}/comments", query=query)
            for comment in comments:
                who = (comment["user"] or {}).get("login")  # nobody where the account is gone
                if who == author and (comment["body"] or "").startswith(marker):
                    return int(comment["id"])
            if len(comments) < PAGE:
                break
        return None

    def comment(self, number: int, body: str, replaced: int | None) -> str:
        """Write a comment, or give one new content; returns its address."""
        if replaced is None:
            return str(self._call("POST", f"issues/{number}/comments", {"body": body})["html_url"])
        return str(self._call("PATCH", f"issues/comments/{replaced}", {"body": body})["html_url"])

    def check_run(self, content: dict[str, Any]) -> str:
        """Add a check run to a commit; returns its address."""
        return str(self._call("POST", "check-runs", content)["html_url"])

    def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, query: dict[str, Any] | None = None
    ) -> Any:
        answer = self._send(method, path + (f"?{urlencode(query, quote_via=quote)}" if query else ""), body)
        try:
            return json.loads(answer)
        except ValueError as error:
            raise BrokenEnvironmentError(f"GitHub: {method} {path}: not JSON: {error}") from error

    def _send(
        self, method: str, path: str, body: dict[str, Any] | None = None, max_bytes: int = MAX_ANSWER_BYTES
    ) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.api}/repos/{self.repository}/{path}", data=data, method=method)  # noqa: S310  # https
        request.add_header("Accept", "application/vnd.github+json")
        request.add_header("X-GitHub-Api-Version", "2022-11-28")
        request.add_header("User-Agent", "recoverssm-gate")
        if data is not None:
            request.add_header("Content-Type", "application/json")
        request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310  # its scheme was looked at
                content: bytes = answer.read(max_bytes)
                return content
        except HTTPError as error:
            said = error.read(500).decode(errors="replace")
            raise BrokenEnvironmentError(f"GitHub: {method} {path}: {error.code} {said}") from error
        except (URLError, OSError) as error:
            raise BrokenEnvironmentError(f"GitHub: {method} {path}: {error}") from error
