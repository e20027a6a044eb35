"""Routes: path patterns with a handler for each method.

Owns: the choice of the handler for a request. The first route whose pattern matches the whole path is used, so the
order of routes matters.
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
    """A function that raises Unauthorized if the key of a formerly valid token has been revoked."""

MANAGE_RIGHT: Final = "Manage"


class Authorise(Protocol):
    """A function that checks a token."""

    def __call__(
        self, token: str | None, right: str, path: str, host: str = "", address: str = "", /
    ) -> Recheck | None:
        """Raise Unauthorized unless the token grants `right` on `path` ("" is the namespace).

        `host` is the host name that the caller used, if a token may name the host instead of the namespace. `address`
        is the request's path, if that path is below `path` and a token may be for any prefix of the address. A request
        that waits calls the returned function, if any, before it returns a message.
        """


@dataclass(frozen=True, slots=True)
class Route:
    """A path pattern with its handlers."""

    pattern: re.Pattern[str]
    """Matches the decoded path, without leading and trailing slashes. A name may contain an encoded slash (%2F). The
    named groups match the names of entities and rules in the path. Matching 60,000 characters must be fast, because
    the token is checked afterwards."""
    handlers: Mapping[str, Handler]
    """Handlers by method."""
    right: str | None = MANAGE_RIGHT
    """The right that the caller's token must grant; None if the token is not checked before the handler is called."""
    scope_group: str | None = None
    """The group with the path for which the token must grant the right; None for the whole path."""
    falls_through: bool = False
    """Whether methods without a handler are looked up in the following routes."""
    has_version: bool = True
    """Whether requests with an api-version are for this route; otherwise they are looked up in the following routes."""


def route(address: str, right: str | None = MANAGE_RIGHT, **handlers: Handler) -> Route:
    """Return a route for a regular expression, which ignores case."""
    return Route(re.compile(address, re.IGNORECASE | re.DOTALL), handlers, right)


def find_route(
    routes: Iterable[Route], method: str, address: str, *, has_version: bool = False
) -> tuple[Route, Handler, dict[str, str]]:
    """Return the route and handler for a request, and the names in its path.

    Raise ResourceNotFound if no route matches, MethodNotAllowed if the route has no handler for the method.
    """
    allowed: list[str] = []
    for candidate in routes:
        if has_version and not candidate.has_version:
            continue
        if match := candidate.pattern.fullmatch(address):
            if method in candidate.handlers:
                return candidate, candidate.handlers[method], match.groupdict()
            allowed += candidate.handlers
            if not candidate.falls_through:
                raise MethodNotAllowed(method, tuple(dict.fromkeys(allowed)))
    raise ResourceNotFound(f"there is no resource {address!r:.300}")
