"""The body of a request: read as a whole, up to a size and within a time."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from twinbus.server.http import faults

if TYPE_CHECKING:
    from starlette.requests import Request

    from twinbus.model.errors import ServiceBusError


async def read_body(
    request: Request, *, max_bytes: int, timeout_s: float, too_large_error: type[ServiceBusError] = faults.BodyTooLarge
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
        raise faults.BodyTooSlow(f"the body did not come within {timeout_s} s") from None
    if size > max_bytes:  # what is left of it is read and dropped by the protocol, so that this answer arrives
        raise too_large_error(f"the body has {size} bytes or more; it can have {max_bytes}")
    return b"".join(chunks)
