"""One HTTP request, as its handler sees it.

Owns: reading and checking the headers, the query parameters and the body. Knows nothing of how requests are handled.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.model import path
from twinbus.model.atom.value_formats import NEWEST_API_VERSION, PARTITIONING_SINCE, WriteContext
from twinbus.model.callbacks import do_nothing
from twinbus.model.errors import InvalidArgument
from twinbus.server.http import limits

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from starlette.requests import Request
    from starlette.types import Scope

    from twinbus.server.http.limits import HttpLimits
    from twinbus.server.http.routes import Recheck


@dataclass(frozen=True, slots=True)
class Caller:
    """The client connection of a request."""

    closed: asyncio.Future[None]
    """Done when the connection is closed, so that no response can be sent."""
    respond_now: asyncio.Future[None]
    """Done when a waiting request needs a response at once: the server is stopping, or another request has arrived."""
    raw_headers: list[tuple[bytes, bytes]]
    """The headers with their original letter case, because header names can be names of properties."""
    on_authorised: Callable[[], None] = do_nothing
    """Called when the client has presented a valid token. The connection is then not dropped to admit other clients."""

    @classmethod
    def from_scope(cls, scope: Scope) -> Caller:
        """Return the caller that the listener stored in an ASGI scope."""
        caller = scope["state"]["caller"]
        assert isinstance(caller, cls)
        return caller


def mark_authorised(scope: Scope) -> None:
    """Notify the listener that the client has presented a valid token; do nothing under another ASGI server."""
    caller = scope.get("state", {}).get("caller")
    if isinstance(caller, Caller):
        caller.on_authorised()


DEFAULT_PAGE_SIZE: Final = 100
_API_VERSION: Final = re.compile(r"[0-9]{4}-[0-9]{2}(-.*)?")
_YEAR_MONTH_CHARACTERS: Final = len("2013-10")
_COUNT_PATTERN: Final = re.compile(r"[0-9]{1,9}")


def address_of(request: Request) -> str:
    """Return the decoded path of a request, without leading and trailing slashes."""
    return str(request.scope["path"]).strip("/")


@dataclass(frozen=True, slots=True)
class Call:
    """A request, with the names that its route found in the path."""

    request: Request
    names: Mapping[str, str]
    """The named groups of the route's pattern."""
    limits: HttpLimits
    version: str
    """The year and month of the api-version, checked before anything is changed."""
    received_ms: int
    recheck: Recheck | None = None
    """A function for requests that wait, which raises Unauthorized if the key was changed during the wait."""

    @classmethod
    def from_request(cls, request: Request, names: Mapping[str, str], limits: HttpLimits) -> Call:
        """Create a call. Raise InvalidArgument if the api-version (default: the newest) is not valid."""
        version = request.query_params.get("api-version", NEWEST_API_VERSION)
        if not _API_VERSION.fullmatch(version):
            raise InvalidArgument(f"api-version is {version!r:.40}; it has to be a year and a month, such as 2021-05")
        return cls(request, names, limits, version[:_YEAR_MONTH_CHARACTERS], int(time.time() * 1000))

    @property
    def address(self) -> str:
        """The decoded path of the request, for which a token is checked."""
        return address_of(self.request)

    @property
    def entity(self) -> str:
        """The path of a queue or topic. Raise InvalidArgument if the request names no entity."""
        if not self.names["entity"]:
            raise InvalidArgument("the address names no entity")
        return self.names["entity"]

    @property
    def subscription(self) -> str:
        """The path of a subscription."""
        return path.subscription_path(self.entity, self.names["subscription"])

    @property
    def rule(self) -> str:
        """The name of a rule."""
        return self.names["rule"]

    @property
    def token(self) -> str | None:
        """The token in the Authorization header, or None."""
        return self.request.headers.get("authorization")

    @property
    def knows_partitioning(self) -> bool:
        """Whether the caller's api-version supports EnablePartitioning."""
        return self.version >= PARTITIONING_SINCE

    @property
    def is_update(self) -> bool:
        """Whether a PUT has If-Match and so updates an existing entity; without If-Match, a PUT creates an entity."""
        condition = self.request.headers.get("if-match")
        if condition not in (None, "*"):
            raise InvalidArgument(f"If-Match is {condition!r:.40}: entities have no ETags, use *")
        return condition is not None

    @property
    def host(self) -> str:
        """The host and port that the caller used. Behind a proxy, they differ from the server's own host and port."""
        return self.request.headers.get("host") or "localhost"

    @property
    def base(self) -> str:
        """The base of all URLs in the response."""
        return f"{self.request.scope['scheme']}://{self.host}"

    @property
    def view(self) -> WriteContext:
        """The host and api-version that determine how descriptions are written."""
        return WriteContext(self.host, self.version)

    @property
    def prefix(self) -> str:
        """The prefix of the paths in a list (default: empty)."""
        return str(self.request.query_params.get("prefix", ""))

    @property
    def page(self) -> tuple[int, int]:
        """How many items in a list to skip, and how many to return at most."""
        return self._read_count("$skip", 0), min(self._read_count("$top", DEFAULT_PAGE_SIZE), self.limits.max_page)

    def _read_count(self, parameter: str, default: int) -> int:
        text = self.request.query_params.get(parameter, str(default))
        if not _COUNT_PATTERN.fullmatch(text):
            raise InvalidArgument(f"{parameter} is {text!r:.40}; it has to be a whole number, and not negative")
        return int(text)

    async def body(self) -> bytes:
        """Read the body. Raise BodyTooLarge or BodyTooSlow if the body exceeds a limit."""
        return await limits.read_body(
            self.request, max_bytes=self.limits.max_body_bytes, timeout_s=self.limits.body_timeout_s
        )
