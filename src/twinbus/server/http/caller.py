"""Who made a request, as far as its connection tells.

Owns: what the listener knows and ASGI has no word for. It comes with each request, in its scope.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.model.callbacks import do_nothing

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from starlette.types import Scope


@dataclass(frozen=True, slots=True)
class Caller:
    """The connection that a request came through."""

    closed: asyncio.Future[None]
    """Done when it is gone: nobody is there to be answered."""
    answer_now: asyncio.Future[None]
    """Done when the answer should not wait for anything: the server stops, or the next request is there already."""
    raw_headers: list[tuple[bytes, bytes]]
    """As they were spelled: names of headers can be names of properties, and those have upper and lower case."""
    on_authorised: Callable[[], None] = do_nothing
    """To be called when the caller has shown a valid token: its connection is not dropped to make room for others."""

    @classmethod
    def from_scope(cls, scope: Scope) -> Caller:
        """The listener has put it there."""
        found = scope["state"]["caller"]
        assert isinstance(found, cls)
        return found


def mark_authorised(scope: Scope) -> None:
    """Tell the listener that a valid token was shown; where another server runs the application, nobody."""
    caller = scope.get("state", {}).get("caller")
    if isinstance(caller, Caller):
        caller.on_authorised()
