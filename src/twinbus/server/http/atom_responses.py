"""Answers that show things: one as an entry, or a page of them as a feed.

Owns: the addresses in an answer, and the way from one page to the next. What is in an entry is made elsewhere.
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
"""Entries that are written in one turn of the loop, some milliseconds: messages wait meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomEntry:
    """One thing, as it is shown."""

    path: str
    """From the root of the service. JavaScript reads names from it, and goes by the capitals in it."""
    title: str
    content: Element
    created_ms: int
    updated_ms: int


def entry_response(call: Call, entry: AtomEntry, author: str, status: int = 200) -> Response:
    """An answer with one entry."""
    return Response(_encode_entry(call, entry, author), status_code=status, media_type=envelope.ENTRY_MEDIA_TYPE)


async def feed_response(
    call: Call,
    path: str,
    list_items: Callable[..., Awaitable[Sequence[T]]],
    make_entry: Callable[[T], AtomEntry],
    author: str,
) -> Response:
    """An answer with a page of a list; `list_some` is told how many to `skip` and how many to list, its `top`."""
    skip, top = call.page
    found = await list_items(skip=skip, top=top + 1)  # one more tells whether there are more
    entries: list[bytes] = []
    for number, one in enumerate(found[:top], start=1):
        entries.append(_encode_entry(call, make_entry(one), author))
        if number % MAX_ENTRIES_PER_TURN == 0:
            await asyncio.sleep(0)
    next_url = None
    if len(found) > top > 0:
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
