"""The outage switch of a server, over HTTP.

switch.begin(queue, kind="silent")
...
switch.end(queue)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tests.http_data.web import Web

if TYPE_CHECKING:
    from tests.http_data.web import Reply
    from tests.served import Served

LONG_S = 600
"""Longer than any test."""


class Switch(Web):
    """A client that has the right to manage."""

    def __init__(self, server: Served) -> None:
        super().__init__(server)

    def begin(self, path: str, *, seconds: object = LONG_S, kind: str = "refuse") -> dict[str, Any]:
        reply = self.put(path=path, seconds=seconds, kind=kind)
        assert reply.status == 201, reply.detail
        return dict(json.loads(reply.body))

    def put(self, **query: object) -> Reply:
        return self.call("PUT", f"/$outage?{urlencode(query)}")

    def end(self, path: str | None = None) -> list[dict[str, Any]]:
        """Those that were on."""
        reply = self.call("DELETE", f"/$outage?{urlencode({'path': path})}" if path is not None else "/$outage")
        assert reply.status == 200, reply.detail
        return list(json.loads(reply.body)["outages"])

    def all(self) -> list[dict[str, Any]]:
        return list(json.loads(self.call("GET", "/$outage").body)["outages"])
