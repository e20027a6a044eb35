"""An HTTP client that writes and reads reports of paired clients.

report = make_report(client="a")
reporter.put_report(report)
assert reporter.reports_of("a") == [report]
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from tests.server.paired_clients.client_reports import report_of
from tests.support.entity_operations import ManagementResponse
from tests.support.http_client import HttpClient

if TYPE_CHECKING:
    from tests.support.http_client import HttpResponse
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess

SECRET = "c2VjcmV0"
_numbers = itertools.count(1)


def new_client() -> str:
    """The name of a client that has not reported yet, since tests share a server."""
    return f"client-{next(_numbers)}"


def make_report(**changed: object) -> dict[str, Any]:
    """A report of a real client that has failed over, with these fields changed; None removes a field."""
    content = {**report_of(new_client(), failed_over=("orders",)), **changed}
    return {name: value for name, value in content.items() if value is not None}


class Reporter(HttpClient):
    """An HTTP client with the root key, unless a call has another token."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server)

    def token_of(self, key_name: str, scope: str = "") -> str:
        """A token signed with a key of the namespace, or with a backlog queue's own key."""
        secret = scope if key_name in ("sender", "listener") else SECRET
        return self.server.token(scope, key=secret, key_name=key_name)

    def put_report(self, content: dict[str, Any], *, token: str | None = None) -> HttpResponse:
        return self.put_text(content["client"], json.dumps(content), token=token)

    def put_text(self, client: str, text: str | bytes, *, token: str | None = None) -> HttpResponse:
        return self.request("PUT", f"/$pairing/{quote(client, safe='')}", text, token=token)

    def read(self, *, token: str | None = None, **query: object) -> list[dict[str, Any]]:
        """All reports, read page by page."""
        page = self.get(token=token, **query)
        if page["next"] is None:
            return list(page["reports"])
        return [*page["reports"], *self.read(token=token, **{**query, "_skip": page["next"]})]

    def get(self, *, token: str | None = None, **query: object) -> dict[str, Any]:
        parameters = {name.replace("_", "$"): value for name, value in query.items()}
        reply = self.request("GET", f"/$pairing?{urlencode(parameters)}", token=token)
        assert reply.status == 200, reply.body
        assert reply.headers["Content-Type"] == "application/json"
        return dict(json.loads(reply.body))

    def backlog(self, *, token: str | None = None) -> list[dict[str, Any]]:
        """The backlog queues."""
        reply = self.request("GET", "/$pairing/$backlog", token=token)
        assert reply.status == 200, reply.body
        return list(json.loads(reply.body)["queues"])

    def reports_of(self, client: str, *, token: str | None = None) -> list[dict[str, Any]]:
        """The reports of one client, without the time that the server adds."""
        reports = [report for report in self.read(token=token) if report["client"] == client]
        return [{name: value for name, value in report.items() if name != "reported"} for report in reports]


async def request(client: RawClient, operation: str, body: object = None) -> ManagementResponse:
    """Send a request to the `$pairing` node."""
    reply = await client.request("$pairing", {"operation": operation}, body)
    properties, content = reply.application_properties, reply.value
    assert isinstance(properties, dict)
    assert isinstance(content, dict)
    condition = properties.get("errorCondition")
    text = str(properties["statusDescription"])
    return ManagementResponse(int(properties["statusCode"]), condition and str(condition), text, content)
