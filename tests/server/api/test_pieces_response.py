"""A long response is sent in chunks, and its length is announced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from twinbus.server.api.pieces_response import CHUNK_BYTES, PiecesResponse

if TYPE_CHECKING:
    from collections.abc import MutableMapping


async def send(pieces: list[bytes]) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Return the headers and the chunks of a response."""
    events: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("nothing is read")

    async def note(event: MutableMapping[str, Any]) -> None:
        events.append(event)

    await PiecesResponse(pieces, "text/plain")({"type": "http"}, receive, note)
    assert [event.get("more_body", False) for event in events[1:]] == [True] * (len(events) - 2) + [False]
    return dict(events[0]["headers"]), [event["body"] for event in events[1:-1]]


@pytest.mark.parametrize("size", [1, 1_000, CHUNK_BYTES, CHUNK_BYTES + 1])
async def test_the_chunks_have_all_pieces_in_order(size: int) -> None:
    pieces = [bytes([number]) * size for number in range(5)]
    headers, chunks = await send(pieces)
    assert b"".join(chunks) == b"".join(pieces)
    assert headers[b"content-length"] == str(5 * size).encode()
    assert max(map(len, chunks)) < CHUNK_BYTES + size


async def test_a_long_response_has_several_chunks() -> None:
    _, chunks = await send([bytes(1_000)] * 1_000)
    assert len(chunks) == 4


async def test_a_response_may_be_empty() -> None:
    headers, chunks = await send([])
    assert headers[b"content-length"] == b"0"
    assert chunks == []
