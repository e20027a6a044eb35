"""A long response, sent in chunks: the client reads the first chunk while the next one is put together.

Owns the size of a chunk. A page of megabytes is never copied as a whole, and other work on the event loop waits for one
chunk at most.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.types import Receive, Scope, Send

CHUNK_BYTES: Final = 262_144
"""A chunk is sent as soon as it has this size."""


class PiecesResponse(Response):
    """A response whose body consists of many short pieces."""

    def __init__(self, pieces: Sequence[bytes], media_type: str) -> None:
        """Create a response."""
        super().__init__(media_type=media_type, headers={"content-length": str(sum(map(len, pieces)))})
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's signature
        """Send the response. `send` waits while the client reads too slowly."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for chunk in _chunks(self._pieces):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _chunks(pieces: Sequence[bytes]) -> Iterator[bytes]:
    ends, start = list(accumulate(map(len, pieces))), 0
    while start < len(pieces):
        sent = ends[start - 1] if start else 0
        end = bisect_left(ends, sent + CHUNK_BYTES) + 1
        yield b"".join(pieces[start:end])
        start = end
