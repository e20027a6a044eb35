"""HTTP server with scripted responses, for responses that a real server does not give.

async with run_fake_service(http_response(200, atom_feed())) as service, service.manager() as manager:
    ...
assert service.requests[0].target.startswith("/orders")
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from twinbus.client import NO_RETRY, NamespaceManager

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ENTRY: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><id>https://localhost/x</id><title type="text">{title}</title>'
    '<content type="application/xml">'
    '<{tag} xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"'
    ' xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{elements}</{tag}></content></entry>'
)
FEED: Final = '<feed xmlns="http://www.w3.org/2005/Atom"><title type="text">x</title>{}</feed>'
CLOSE_CONNECTION: Final = b""
"""The service closes the connection instead of responding."""
NO_RESPONSE: Final = None
"""The service never responds."""


def atom_entry(elements: str = "", *, tag: str = "QueueDescription", title: str = "x") -> str:
    return ENTRY.format(elements=elements, tag=tag, title=title)


def atom_feed(*entries: str) -> str:
    return FEED.format("".join(entries))


def http_response(status: int, body: str | bytes = "", *, retry_after: int | None = None) -> bytes:
    content = body if isinstance(body, bytes) else body.encode()
    pause = "" if retry_after is None else f"Retry-After: {retry_after}\r\n"
    return f"HTTP/1.1 {status} Said\r\n{pause}Content-Length: {len(content)}\r\n\r\n".encode() + content


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """Request that the service received."""

    method: str
    target: str
    headers: dict[str, str]
    """Header values by lower-case names."""
    body: str


class FakeService:
    """Service that sends its responses in turn and repeats the last one."""

    def __init__(self, responses: tuple[bytes | None, ...]) -> None:
        self._responses = list(responses)
        self.requests: list[ReceivedRequest] = []
        self.port = 0

    def manager(self, **options: Any) -> NamespaceManager:  # noqa: ANN401  # arguments of NamespaceManager
        text = f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"
        options = {"retry_policy": NO_RETRY, "operation_timeout": 20, **options}
        return NamespaceManager.from_connection_string(f"{text};UseDevelopmentEmulator=true", **options)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while response := await self._respond(reader):
                writer.write(response)
                await writer.drain()
        finally:
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return CLOSE_CONNECTION
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, target, _ = first.split(" ")
        self.requests.append(ReceivedRequest(method, target, headers, body.decode()))
        response = self._responses.pop(0) if len(self._responses) > 1 else self._responses[0]
        if response is NO_RESPONSE:
            await reader.read()  # until the client gives up
            return CLOSE_CONNECTION
        return response


@asynccontextmanager
async def run_fake_service(*responses: bytes | None) -> AsyncIterator[FakeService]:
    service = FakeService(responses)
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    async with server:
        yield service
