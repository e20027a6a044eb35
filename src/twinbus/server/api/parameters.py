"""Query parameters of the API's requests.

Owns their limits, and the errors for values outside the limits. Unknown parameters are refused, because a misspelt
parameter would otherwise be ignored.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, cast, get_args

from twinbus.model.errors import InvalidArgument
from twinbus.model.status import EntityKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.server.http.call import Call

MAX_TOP: Final = 1_000
DEFAULT_TOP: Final = 100
MAX_TEXT_CHARACTERS: Final = 512
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_CONNECTION_ID: Final = re.compile(r"([0-9]{1,6})-([0-9]{1,18})")
_KINDS: Final = get_args(EntityKind)
_ALWAYS_ALLOWED: Final = frozenset({"api-version"})
"""Clients for management over HTTP add this parameter to all requests; the API's version is in its path."""


class Parameters:
    """The query parameters of one request."""

    def __init__(self, call: Call, *allowed: str) -> None:
        """Create the parameters. Raise InvalidArgument for a parameter that is not allowed."""
        self._query: Mapping[str, str] = call.request.query_params
        unknown = sorted(set(self._query) - set(allowed) - _ALWAYS_ALLOWED)
        if unknown:
            known = ", ".join(allowed) if allowed else "none"
            raise InvalidArgument(f"{unknown[0]!r:.60} is not a parameter of this resource; it has {known}")

    @property
    def top(self) -> int:
        """How many items a page has at most."""
        text = self._query.get("top", str(DEFAULT_TOP))
        if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= MAX_TOP:
            raise InvalidArgument(f"top is {text!r:.60}; it has to be a number from 1 to {MAX_TOP:,}")
        return int(text)

    @property
    def kind(self) -> EntityKind | None:
        """The kind of entities in a list; None for all kinds."""
        text = self._query.get("kind")
        if text is not None and text not in _KINDS:
            raise InvalidArgument(f"kind is {text!r:.60}; it has to be one of {', '.join(_KINDS)}")
        return cast("EntityKind | None", text)

    def text(self, name: str) -> str:
        """Return a text (default: empty)."""
        text = self._query.get(name, "")
        if len(text) > MAX_TEXT_CHARACTERS:
            raise InvalidArgument(f"{name} has {len(text):,} characters (limit: {MAX_TEXT_CHARACTERS})")
        return text

    def number(self, name: str) -> int:
        """Return a whole number (default: 0)."""
        text = self._query.get(name, "0")
        if not _NUMBER.fullmatch(text):
            raise InvalidArgument(f"{name} is {text!r:.60}; it has to be the value of 'next' in the previous page")
        return int(text)

    def after_connection(self) -> tuple[int, int]:
        """Return the worker and number of the connection in `after` (default: before the first connection)."""
        text = self._query.get("after")
        return parse_connection_id(text) if text is not None else (0, 0)


def parse_connection_id(text: str) -> tuple[int, int]:
    """Return the worker and number in the id of a connection."""
    match = _CONNECTION_ID.fullmatch(text)
    if match is None:
        raise InvalidArgument(f"{text!r:.60} is not the id of a connection, such as 0-17")
    return int(match[1]), int(match[2])
