"""A client of the JSON API that shows statuses and bodies as they are."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

TIMEOUT_S = 20.0


class ApiResponse(NamedTuple):
    status: int
    text: str

    @property
    def content(self) -> Any:  # noqa: ANN401  # JSON
        return json.loads(self.text)

    @property
    def error(self) -> str:
        """Text of an error response, after checking that the body has the form of an error."""
        body = self.content
        assert set(body) == {"status", "error", "tracking_id"}
        assert body["status"] == self.status
        return str(body["error"])


class ApiClient:
    """Requests to one server, each on its own connection."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def get(self, resource: str, *, authorization: str | None = "", tls: bool = False) -> ApiResponse:
        return self.request("GET", f"/$api/v1/{resource}", authorization=authorization, tls=tls)

    def read(self, resource: str) -> Any:  # noqa: ANN401  # JSON
        """Return the content of a successful response."""
        response = self.get(resource)
        assert response.status == 200, response.text
        return response.content

    def request(self, method: str, target: str, *, authorization: str | None = "", tls: bool = False) -> ApiResponse:
        """Send a request (default: with a token for the namespace; None: without a token)."""
        server = self._server
        if tls:
            context = ssl.create_default_context(cafile=server.ca_file)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                server.host, server.https_port, timeout=TIMEOUT_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(server.host, server.http_port, timeout=TIMEOUT_S)
        header = server.token("") if authorization == "" else authorization
        with contextlib.closing(connection):
            connection.request(method, target, headers={"Authorization": header} if header is not None else {})
            response = connection.getresponse()
            return ApiResponse(response.status, response.read().decode())


def basic(name: str, secret: str) -> str:
    """Return the Authorization header that curl and Prometheus send."""
    return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()
