"""What one caller over HTTP may take: bytes and time. Connections are limited where they are accepted."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.server.http import error_responses

if TYPE_CHECKING:
    from starlette.requests import Request

    from twinbus.model.errors import ServiceBusError


async def read_body(
    request: Request,
    *,
    max_bytes: int,
    timeout_s: float,
    too_large_error: type[ServiceBusError] = error_responses.BodyTooLarge,
) -> bytes:
    """All of it. `too_large` if there is more than `limit`, BodyTooSlow, ClientDisconnect."""
    chunks: list[bytes] = []
    size = int(request.headers.get("content-length", 0))  # the protocol has seen to it that it is a number
    try:
        async with asyncio.timeout(timeout_s), aclosing(request.stream()) as stream:
            while size <= max_bytes and (chunk := await anext(stream, b"")):
                chunks.append(chunk)
                size = max(size, sum(map(len, chunks)))
    except TimeoutError:
        raise error_responses.BodyTooSlow(f"the body did not come within {timeout_s} s") from None
    if size > max_bytes:  # what is left of it is read and dropped by the protocol, so that this answer arrives
        raise too_large_error(f"the body has {size} bytes or more; it can have {max_bytes}")
    return b"".join(chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The numbers of one listener and of what it serves."""

    max_head_bytes: int = 65_536
    """Request line and headers. Tokens travel there."""
    max_body_bytes: int = 65_536
    """The description of an entity is a few kilobytes. Messages wait in the same loop while it is read."""
    max_wait_s: float = 240.0
    """For a message, whatever `timeout` asks for."""
    max_page: int = 1_000
    """Entities in one page of a list, whatever `$top` asks for."""
    tls_handshake_timeout_s: float = 20.0
    head_timeout_s: float = 20.0
    """From the first byte of a request, or the opening of the connection, to the end of its headers."""
    body_timeout_s: float = 20.0
    """From the end of the headers to the end of the body."""
    write_timeout_s: float = 20.0
    """How long a client may not read what is sent to it."""
    keep_alive_s: int = 75
    """How long a connection may be without a request. Longer than the clients' own, who else reuse one as it closes."""


DEFAULT_LIMITS: Final = HttpLimits()
