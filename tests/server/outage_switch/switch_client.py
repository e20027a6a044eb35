"""An HTTP client of a server's outage switch.

switch.begin(queue, kind="silent")
...
switch.end(queue)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tests.support.http_client import HttpClient

if TYPE_CHECKING:
    from tests.support.http_client import HttpResponse
    from tests.support.server_process import ServerProcess

LONG_OUTAGE_S = 600
"""Longer than any test."""


class OutageSwitchClient(HttpClient):
    """A client with the Manage right."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server)

    def begin(self, path: str, *, seconds: object = LONG_OUTAGE_S, kind: str = "refuse") -> dict[str, Any]:
        reply = self.request_outage(path=path, seconds=seconds, kind=kind)
        assert reply.status == 201, reply.detail
        return dict(json.loads(reply.body))

    def request_outage(self, **query: object) -> HttpResponse:
        return self.request("PUT", f"/$outage?{urlencode(query)}")

    def end(self, path: str | None = None) -> list[dict[str, Any]]:
        """End one outage, or all, and return the outages that were active."""
        reply = self.request("DELETE", f"/$outage?{urlencode({'path': path})}" if path is not None else "/$outage")
        assert reply.status == 200, reply.detail
        return list(json.loads(reply.body)["outages"])

    def active_outages(self) -> list[dict[str, Any]]:
        return list(json.loads(self.request("GET", "/$outage").body)["outages"])
