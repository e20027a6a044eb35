"""Who made a request, as far as its connection tells.

Owns: what the listener knows and ASGI has no word for. It comes with each request, in its scope.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from starlette.types import Scope


@dataclass(frozen=True, slots=True)
class Caller:
    """The connection that a request came through."""

    lost: asyncio.Future[None]
    """Done when it is gone: nobody is there to be answered."""
    hurry: asyncio.Future[None]
    """Done when the answer should not wait for anything: the server stops, or the next request is there already."""
    headers: list[tuple[bytes, bytes]]
    """As they were spelled: names of headers can be names of properties, and those have upper and lower case."""

    @classmethod
    def of(cls, scope: Scope) -> Caller:
        """The listener has put it there."""
        found = scope["state"]["caller"]
        assert isinstance(found, cls)
        return found
