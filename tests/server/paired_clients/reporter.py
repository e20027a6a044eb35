"""Reports, and those who write and read them.

reporter.put(report(client="a"))
assert reporter.clients() == ["a"]
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
    """A client that has not reported yet: tests share a server."""
    return f"client-{next(_numbers)}"


def make_report(**changed: object) -> dict[str, Any]:
    """One of a real client that has failed over, with these fields changed; what is None is left out."""
    content = {**report_of(new_client(), failed_over=("orders",)), **changed}
    return {name: value for name, value in content.items() if value is not None}


class Reporter(HttpClient):
    """A client over HTTP; with the root key, unless it is told otherwise."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server)

    def token_of(self, key_name: str, scope: str = "") -> str:
        """With a key of the namespace, or, of a backlog queue, its own."""
        secret = scope if key_name in ("sender", "listener") else SECRET
        return self.server.token(scope, key=secret, key_name=key_name)

    def put_report(self, content: dict[str, Any], *, token: str | None = None) -> HttpResponse:
        return self.put_text(content["client"], json.dumps(content), token=token)

    def put_text(self, client: str, text: str | bytes, *, token: str | None = None) -> HttpResponse:
        return self.request("PUT", f"/$pairing/{quote(client, safe='')}", text, token=token)

    def read(self, *, token: str | None = None, **query: object) -> list[dict[str, Any]]:
        """All of them, page by page."""
        found = self.get(token=token, **query)
        if found["next"] is None:
            return list(found["reports"])
        return [*found["reports"], *self.read(token=token, **{**query, "_skip": found["next"]})]

    def get(self, *, token: str | None = None, **query: object) -> dict[str, Any]:
        named = {name.replace("_", "$"): value for name, value in query.items()}
        reply = self.request("GET", f"/$pairing?{urlencode(named)}", token=token)
        assert reply.status == 200, reply.body
        assert reply.headers["Content-Type"] == "application/json"
        return dict(json.loads(reply.body))

    def backlog(self, *, token: str | None = None) -> list[dict[str, Any]]:
        """The backlog queues."""
        reply = self.request("GET", "/$pairing/$backlog", token=token)
        assert reply.status == 200, reply.body
        return list(json.loads(reply.body)["queues"])

    def reports_of(self, client: str, *, token: str | None = None) -> list[dict[str, Any]]:
        """What is known of one client, without the time, which the server adds."""
        found = [one for one in self.read(token=token) if one["client"] == client]
        return [{name: value for name, value in one.items() if name != "reported"} for one in found]


async def request(client: RawClient, operation: str, body: object = None) -> ManagementResponse:
    """A request to the node."""
    found = await client.request("$pairing", {"operation": operation}, body)
    told, content = found.application_properties, found.value
    assert isinstance(told, dict)
    assert isinstance(content, dict)
    condition = told.get("errorCondition")
    text = str(told["statusDescription"])
    return ManagementResponse(int(told["statusCode"]), condition and str(condition), text, content)
