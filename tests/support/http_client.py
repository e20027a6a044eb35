"""A plain HTTP client for sending, receiving and settling messages."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

TIMEOUT_S = 30.0
BATCH = "application/vnd.microsoft.servicebus.json"


@dataclass
class HttpResponse:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def properties(self) -> dict[str, Any]:
        """Content of the header BrokerProperties."""
        return dict(json.loads(self.headers["BrokerProperties"]))

    @property
    def detail(self) -> str:
        """Detail of an error response, after checking that the body has the form of an error."""
        error = ET.fromstring(self.body)  # noqa: S314  # a response of our own server
        assert [child.tag for child in error] == ["Code", "Detail"]
        assert error.findtext("Code") == str(self.status)
        return error.findtext("Detail") or ""

    @property
    def location(self) -> str:
        """Path of the Location header, which settles the message."""
        return "/" + self.headers["Location"].split("/", 3)[3]


class HttpClient:
    """A client of one server."""

    connection: http.client.HTTPConnection
    """Persistent connection of tests that need one."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server

    def request(
        self, method: str, target: str, body: bytes | str | None = None, *, token: str | None = None, **headers: str
    ) -> HttpResponse:
        """Send one request on a new connection (default token: for the whole namespace).

        Headers are keyword arguments with underscores for hyphens: `Content_Type`.
        """
        connection = http.client.HTTPConnection(self.server.host, self.server.http_port, timeout=TIMEOUT_S)
        encoded = {name.replace("_", "-"): value.encode() for name, value in headers.items()}
        try:
            connection.request(method, target, body, {"Authorization": token or self.server.token(""), **encoded})
            response = connection.getresponse()
            return HttpResponse(response.status, response.headers, response.read())
        finally:
            connection.close()

    def send(self, queue: str, body: bytes | str = b"", **headers: str) -> HttpResponse:
        return self.request("POST", f"/{queue}/messages", body, **headers)

    def send_with_properties(self, queue: str, body: bytes | str = b"", **properties: object) -> HttpResponse:
        """Send a message with the header BrokerProperties."""
        return self.send(queue, body, BrokerProperties=json.dumps(properties))

    def send_batch(self, queue: str, items: object) -> HttpResponse:
        return self.send(queue, json.dumps(items), Content_Type=BATCH)

    def peek_lock(self, queue: str, timeout: object = 10) -> HttpResponse:
        return self.request("POST", f"/{queue}/messages/head?timeout={timeout}")

    def receive_and_delete(self, queue: str, timeout: object = 10) -> HttpResponse:
        return self.request("DELETE", f"/{queue}/messages/head?timeout={timeout}")

    def raw_socket(self) -> socket.socket:
        return socket.create_connection((self.server.host, self.server.http_port), timeout=TIMEOUT_S)

    def request_head(self, method: str, target: str, *lines: str, host: str = "Host: x") -> bytes:
        """Return the bytes of a request up to its body."""
        authorization = f"Authorization: {self.server.token('')}"
        return "\r\n".join([f"{method} {target} HTTP/1.1", host, authorization, *lines, "", ""]).encode("latin-1")
