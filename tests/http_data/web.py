"""Requests for messages, as any HTTP client makes them."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from tests.served import Served

PATIENCE_S = 30.0
BATCH = "application/vnd.microsoft.servicebus.json"


@dataclass
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def properties(self) -> dict[str, Any]:
        """BrokerProperties."""
        return dict(json.loads(self.headers["BrokerProperties"]))

    @property
    def detail(self) -> str:
        """What an error says; also, that it has the shape of one."""
        error = ET.fromstring(self.body)  # noqa: S314  # our own answer
        assert [child.tag for child in error] == ["Code", "Detail"]
        assert error.findtext("Code") == str(self.status)
        return error.findtext("Detail") or ""

    @property
    def place(self) -> str:
        """Path of the Location, where the message is settled."""
        return "/" + self.headers["Location"].split("/", 3)[3]


class Web:
    """A client of one server."""

    kept: http.client.HTTPConnection
    """A connection for many requests, if a test wants one."""

    def __init__(self, server: Served) -> None:
        self.server = server

    def call(
        self, method: str, target: str, body: bytes | str | None = None, *, token: str | None = None, **headers: str
    ) -> Reply:
        """One request, with a token for all; `Content_Type` is a header with a hyphen."""
        connection = http.client.HTTPConnection(self.server.host, self.server.http_port, timeout=PATIENCE_S)
        named = {name.replace("_", "-"): value.encode() for name, value in headers.items()}
        try:
            connection.request(method, target, body, {"Authorization": token or self.server.token(""), **named})
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def send(self, queue: str, body: bytes | str = b"", **headers: str) -> Reply:
        return self.call("POST", f"/{queue}/messages", body, **headers)

    def send_with(self, queue: str, body: bytes | str = b"", **properties: object) -> Reply:
        """... and with BrokerProperties."""
        return self.send(queue, body, BrokerProperties=json.dumps(properties))

    def send_batch(self, queue: str, items: object) -> Reply:
        return self.send(queue, json.dumps(items), Content_Type=BATCH)

    def lock(self, queue: str, timeout: object = 10) -> Reply:
        return self.call("POST", f"/{queue}/messages/head?timeout={timeout}")

    def take(self, queue: str, timeout: object = 10) -> Reply:
        return self.call("DELETE", f"/{queue}/messages/head?timeout={timeout}")

    def raw(self) -> socket.socket:
        return socket.create_connection((self.server.host, self.server.http_port), timeout=PATIENCE_S)

    def head(self, method: str, target: str, *lines: str, host: str = "Host: x") -> bytes:
        """A request without its body, as it is on the wire."""
        authorization = f"Authorization: {self.server.token('')}"
        return "\r\n".join([f"{method} {target} HTTP/1.1", host, authorization, *lines, "", ""]).encode("latin-1")
