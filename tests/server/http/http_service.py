"""The HTTP gateway of a namespace on real sockets, and helpers that send it requests."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from xml.etree import ElementTree as ET

import uvloop

from twinbus.model.errors import Unauthorized
from twinbus.server.http import listener as http_listener
from twinbus.server.http.app import HttpApp
from twinbus.server.http.limits import DEFAULT_LIMITS
from twinbus.server.runtime import listening_sockets
from twinbus.server.runtime.acceptor import FIRST_BYTES_TIMEOUT_S, Acceptor
from twinbus.server.runtime.admission import Admission

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine

    from starlette.types import ASGIApp

    from tests.server.http.in_memory_administration import InMemoryAdministration
    from twinbus.server.http.limits import HttpLimits
    from twinbus.server.http.listener import HttpListener

T = TypeVar("T")
TOKEN = {"Authorization": "SharedAccessSignature sr=here&sig=good&se=1&skn=manager"}
ATOM = "{http://www.w3.org/2005/Atom}"
BUS = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"
ENTRY = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"'
    ' xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{}</QueueDescription></content></entry>'
)


async def listen(
    app: ASGIApp,
    *,
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    limits: HttpLimits = DEFAULT_LIMITS,
    admission: Admission | None = None,
    first_bytes_s: float = FIRST_BYTES_TIMEOUT_S,
) -> HttpListener:
    """Serve an app on a free port, as the server does."""
    (sock,) = listening_sockets.bind_sockets("127.0.0.1", port)
    acceptor = Acceptor(sock, Admission() if admission is None else admission, first_bytes_timeout_s=first_bytes_s)
    return await http_listener.listen(app, serve=acceptor.serve, tls=tls, limits=limits)


class LoopThread:
    """An event loop on a separate thread, since the SDK's blocking client blocks the thread of the test."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def run(self, coroutine: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@dataclass
class HttpResponse:
    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def detail(self) -> str:
        """The detail of an error reply. Checks that the reply has the form of an error."""
        error = ET.fromstring(self.text)  # noqa: S314  # our own answer
        assert [child.tag for child in error] == ["Code", "Detail"]
        assert error.findtext("Code") == str(self.status)
        return error.findtext("Detail") or ""

    def element(self, name: str) -> str | None:
        """The text of an element of the description."""
        entry = ET.fromstring(self.text)  # noqa: S314  # our own answer
        return entry.findtext(f"{ATOM}content/{BUS}QueueDescription/{BUS}{name}")


@dataclass
class HttpService:
    loop: LoopThread
    administration: InMemoryAdministration
    ca_file: str
    limits: HttpLimits
    admission: Admission = field(default_factory=Admission)
    first_bytes_s: float = FIRST_BYTES_TIMEOUT_S
    authorisation_requests: list[tuple[str, str]] = field(default_factory=list)
    """The rights and paths that requests were authorised for."""
    http_listener: HttpListener = field(init=False)
    https_listener: HttpListener = field(init=False)

    def start(self, tls: ssl.SSLContext, app: ASGIApp | None = None) -> HttpService:
        app = app or HttpApp(self.administration, self.authorise, self.limits)
        self.http_listener, self.https_listener = [self.loop.run(self._listen(app, tls)) for tls in (None, tls)]
        return self

    async def _listen(self, app: ASGIApp, tls: ssl.SSLContext | None) -> HttpListener:
        return await listen(
            app, tls=tls, limits=self.limits, admission=self.admission, first_bytes_s=self.first_bytes_s
        )

    def stop(self) -> None:
        for listener in (self.http_listener, self.https_listener):
            self.loop.run(listener.close(grace_s=1.0))

    def authorise(self, header: str | None, right: str, path: str, _host: str = "", _address: str = "") -> None:
        if header is None or not header.endswith("skn=manager"):
            raise Unauthorized(f"no token with the right {right} for '{path}'")
        self.authorisation_requests.append((right, path))

    @property
    def connection_string(self) -> str:
        return f"Endpoint=sb://localhost:{self.https_listener.port};SharedAccessKeyName=manager;SharedAccessKey=abcd"

    def request(self, method: str, target: str, body: str | bytes = b"", **headers: str) -> HttpResponse:
        """Send a request with a token; keyword arguments are headers, such as `If_Match="*"`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_listener.port, timeout=20)
        try:
            sent_headers = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, target, body or None, TOKEN | sent_headers)
            response = connection.getresponse()
            return HttpResponse(response.status, response.headers, response.read().decode())
        finally:
            connection.close()

    def put(self, target: str, elements: str = "", **headers: str) -> HttpResponse:
        return self.request("PUT", target, ENTRY.format(elements), **headers)

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.http_listener.port), timeout=20)


def read_to_end(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    received = b""
    try:
        while chunk := connection.recv(65_536):
            received += chunk
    except ConnectionResetError:
        pass
    return received
