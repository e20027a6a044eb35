"""Size and time limits for HTTP requests. `admission` limits the connections."""

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
    """Read the whole body of a request.

    Raise `too_large_error` if the body exceeds `max_bytes`, BodyTooSlow after `timeout_s`, and ClientDisconnect if the
    client disconnects.
    """
    chunks: list[bytes] = []
    size = int(request.headers.get("content-length", 0))  # h11 has checked that the value is a number
    try:
        async with asyncio.timeout(timeout_s), aclosing(request.stream()) as stream:
            while size <= max_bytes and (chunk := await anext(stream, b"")):
                chunks.append(chunk)
                size = max(size, sum(map(len, chunks)))
    except TimeoutError:
        raise error_responses.BodyTooSlow(f"the body did not arrive within {timeout_s} s") from None
    if size > max_bytes:  # uvicorn reads and drops the rest of the body, so that the client gets the response
        raise too_large_error(f"the body has {size} bytes or more; it can have {max_bytes}")
    return b"".join(chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits for an HTTP listener and its requests."""

    max_head_bytes: int = 65_536
    """The largest request line with headers, which include tokens."""
    max_body_bytes: int = 65_536
    """The largest body in a management request. Descriptions are a few kilobytes, and parsing blocks the event loop."""
    max_wait_s: float = 240.0
    """The longest wait for a message, whatever `timeout` requests."""
    max_page: int = 1_000
    """The largest page of a list, whatever `$top` requests."""
    tls_handshake_timeout_s: float = 20.0
    head_timeout_s: float = 20.0
    """The time from the first byte of a request, or from when the connection was opened, to the end of the headers."""
    body_timeout_s: float = 20.0
    """The time from the end of the headers to the end of the body."""
    write_timeout_s: float = 20.0
    """How long a client may leave a response unread before its connection is aborted."""
    keep_alive_s: int = 75
    """How long a connection may be idle. Clients must time out first, or they reuse a closing connection."""


DEFAULT_LIMITS: Final = HttpLimits()
