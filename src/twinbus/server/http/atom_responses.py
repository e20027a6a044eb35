"""Responses with an ATOM entry, or with a page of entries as an ATOM feed.

Owns: the URLs in a response, and the link to the next page. The content of an entry is created elsewhere.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlencode

from starlette.responses import Response

from twinbus.model.atom import envelope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from xml.etree.ElementTree import Element

    from twinbus.server.http.call import Call

T = TypeVar("T")
MAX_ENTRIES_PER_TURN: Final = 20
"""How many entries are encoded before yielding to the event loop; encoding them takes some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomEntry:
    """An ATOM entry that describes an entity, a rule or the namespace."""

    path: str
    """The path below the root of the service. The JavaScript SDK reads names from the path, case-sensitively."""
    title: str
    content: Element
    created_ms: int
    updated_ms: int


def entry_response(call: Call, entry: AtomEntry, author: str, status: int = 200) -> Response:
    """Return a response with one entry."""
    return Response(_encode_entry(call, entry, author), status_code=status, media_type=envelope.ENTRY_MEDIA_TYPE)


async def feed_response(
    call: Call,
    path: str,
    list_items: Callable[..., Awaitable[Sequence[T]]],
    make_entry: Callable[[T], AtomEntry],
    author: str,
) -> Response:
    """Return a response with one page of a list; `list_items(skip=..., top=...)` returns the items."""
    skip, top = call.page
    items = await list_items(skip=skip, top=top + 1)  # the additional item shows whether there is another page
    entries: list[bytes] = []
    for number, item in enumerate(items[:top], start=1):
        entries.append(_encode_entry(call, make_entry(item), author))
        if number % MAX_ENTRIES_PER_TURN == 0:
            await asyncio.sleep(0)
    next_url = None
    if len(items) > top > 0:
        query = {**call.request.query_params, "$skip": str(skip + top), "$top": str(top)}
        next_url = f"{call.base}/{path}?{urlencode(query, safe='$')}"
    content = envelope.make_feed(
        entries,
        url=f"{call.base}/{path}",
        title=path.rpartition("/")[2].capitalize(),
        updated_ms=call.received_ms,
        next_url=next_url,
    )
    return Response(content, media_type=envelope.FEED_MEDIA_TYPE)


def _encode_entry(call: Call, entry: AtomEntry, author: str) -> bytes:
    root = envelope.make_entry(
        entry.content,
        url=f"{call.base}/{entry.path}",
        title=entry.title,
        author=author,
        created_ms=entry.created_ms,
        updated_ms=entry.updated_ms,
    )
    return envelope.to_bytes(root)
