"""Which requests there are: tables of addresses, each with what is done for the methods that it has.

Owns: how a request finds what answers it. A table is a sequence of routes, and the first whose pattern fits the whole
address is taken: who adds a table decides by its place what it hides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from twinbus.server.http.error_responses import MethodNotAllowed, ResourceNotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from typing import TypeAlias

    from starlette.responses import Response

    from twinbus.server.http.call import Call

    Handler: TypeAlias = Callable[[Call], Awaitable[Response]]
    Recheck: TypeAlias = Callable[[], None]
    """Raises Unauthorized if the key of a token that was good is not so any more."""

MANAGE_RIGHT: Final = "Manage"


class Authorise(Protocol):
    """Checks a token."""

    def __call__(
        self, token: str | None, right: str, path: str, host: str = "", address: str = "", /
    ) -> Recheck | None:
        """Unauthorized if the token of a request, or None, does not give this right on a path ("" is the namespace).

        `host` is what the caller calls the service, where a token may name it instead of the namespace. `address` is
        that of the request, where it is below `path` and a token may be for any prefix of it. A request that waits
        calls the result, if there is one, before it hands anything out.
        """


@dataclass(frozen=True, slots=True)
class Route:
    """An address, or several of one form."""

    pattern: re.Pattern[str]
    """Of the address after decoding, without slashes at its ends: a name may have had its own as %2F. Its groups are
    names in the address. Whoever may not do anything can make it be tried on some 60,000 characters."""
    handlers: Mapping[str, Handler]
    """By method."""
    right: str | None = MANAGE_RIGHT
    """What the caller's token has to allow. None: it is not asked for here."""
    scope_group: str | None = None
    """The name in the address that it has to allow that on; None: the whole address."""
    falls_through: bool = False
    """What it has no method for is looked for among the routes behind it."""


def route(address: str, right: str | None = MANAGE_RIGHT, **handlers: Handler) -> Route:
    """An address as a regular expression, in any spelling of its letters."""
    return Route(re.compile(address, re.IGNORECASE | re.DOTALL), handlers, right)


def find_route(routes: Iterable[Route], method: str, address: str) -> tuple[Route, Handler, dict[str, str]]:
    """The route of a request, what answers it, and the names in its address; NoSuchResource, MethodNotAllowed."""
    allowed: list[str] = []
    for one in routes:
        if match := one.pattern.fullmatch(address):
            if method in one.handlers:
                return one, one.handlers[method], match.groupdict()
            allowed += one.handlers
            if not one.falls_through:
                raise MethodNotAllowed(method, tuple(dict.fromkeys(allowed)))
    raise ResourceNotFound(f"{address!r:.300} is nothing that this service has")
