"""What one request says.

Owns: headers, query parameters and the reading of the body, and what is valid in them. Knows nothing of what is done
about it.
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


DEFAULT_PAGE_SIZE: Final = 100
_API_VERSION: Final = re.compile(r"[0-9]{4}-[0-9]{2}(-.*)?")
_YEAR_MONTH_CHARACTERS: Final = len("2013-10")
_COUNT_PATTERN: Final = re.compile(r"[0-9]{1,9}")


def address_of(request: Request) -> str:
    """What was asked for, decoded, without slashes at its ends."""
    return str(request.scope["path"]).strip("/")


@dataclass(frozen=True, slots=True)
class Call:
    """A request and the names in its address."""

    request: Request
    names: Mapping[str, str]
    """As the pattern of the route has them."""
    limits: HttpLimits
    version: str
    """Year and month of the api-version. Read first: an error after the deed would be a lie."""
    received_ms: int
    recheck: Recheck | None = None
    """For a request that waits: raises Unauthorized if its key was changed meanwhile."""

    @classmethod
    def from_request(cls, request: Request, names: Mapping[str, str], limits: HttpLimits) -> Call:
        """No api-version means the newest."""
        version = request.query_params.get("api-version", NEWEST_API_VERSION)
        if not _API_VERSION.fullmatch(version):
            raise InvalidArgument(f"api-version is {version!r:.40}; it has to be a year and a month, such as 2021-05")
        return cls(request, names, limits, version[:_YEAR_MONTH_CHARACTERS], int(time.time() * 1000))

    @property
    def address(self) -> str:
        """What a token has to be for."""
        return address_of(self.request)

    @property
    def entity(self) -> str:
        """The path of a queue or topic, where there has to be one."""
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
        """What the caller shows."""
        return self.request.headers.get("authorization")

    @property
    def knows_partitioning(self) -> bool:
        """The caller's api-version has EnablePartitioning."""
        return self.version >= PARTITIONING_SINCE

    @property
    def is_update(self) -> bool:
        """A PUT that changes what is there; without If-Match it is to make something new."""
        condition = self.request.headers.get("if-match")
        if condition not in (None, "*"):
            raise InvalidArgument(f"If-Match is {condition!r:.40}; entities have no tags here: it can only be *")
        return condition is not None

    @property
    def host(self) -> str:
        """The service, as the caller knows it: behind another port or name, ours would lead nowhere."""
        return self.request.headers.get("host") or "localhost"

    @property
    def base(self) -> str:
        """What the addresses in the answer start with."""
        return f"{self.request.scope['scheme']}://{self.host}"

    @property
    def view(self) -> WriteContext:
        """Who descriptions are written for."""
        return WriteContext(self.host, self.version)

    @property
    def prefix(self) -> str:
        """What the paths in a list start with."""
        return str(self.request.query_params.get("prefix", ""))

    @property
    def page(self) -> tuple[int, int]:
        """How many to skip, and how many to list."""
        return self._read_count("$skip", 0), min(self._read_count("$top", DEFAULT_PAGE_SIZE), self.limits.max_page)

    def _read_count(self, parameter: str, default: int) -> int:
        text = self.request.query_params.get(parameter, str(default))
        if not _COUNT_PATTERN.fullmatch(text):
            raise InvalidArgument(f"{parameter} is {text!r:.40}; it has to be a whole number, and not negative")
        return int(text)

    async def body(self) -> bytes:
        """All of it, if it comes in time and is not too large."""
        return await limits.read_body(
            self.request, max_bytes=self.limits.max_body_bytes, timeout_s=self.limits.body_timeout_s
        )
