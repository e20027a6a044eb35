"""What one request says, apart from its body.

Owns: headers and query parameters, and what is valid in them. Knows nothing of what is done about it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from starlette.requests import Request

PARTITIONING_SINCE: Final = "2013-10"
DEFAULT_TOP: Final = 100
_VERSION: Final = re.compile(r"[0-9]{4}-[0-9]{2}(-.*)?")
_COUNT: Final = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Call:
    """A request and the entity in its address."""

    request: Request
    name: str
    """Path of the entity; "" if the address has none."""
    knows_partitioning: bool
    """The caller's api-version has EnablePartitioning. Read first: an error after the deed would be a lie."""

    @classmethod
    def of(cls, request: Request, name: str) -> Call:
        """No api-version means the newest."""
        version = request.query_params.get("api-version", PARTITIONING_SINCE)
        if not _VERSION.fullmatch(version):
            raise InvalidArgument(f"api-version is {version!r:.40}; it has to be a year and a month, such as 2021-05")
        return cls(request, name, version[: len(PARTITIONING_SINCE)] >= PARTITIONING_SINCE)

    @property
    def entity(self) -> str:
        """The name, where there has to be one."""
        if not self.name:
            raise InvalidArgument("the address names no entity")
        return self.name

    @property
    def token(self) -> str | None:
        """What the caller shows."""
        return self.request.headers.get("authorization")

    @property
    def host(self) -> str:
        """The service, as the caller knows it: behind another port or name, ours would lead nowhere."""
        return self.request.headers.get("host") or "localhost"

    @property
    def base(self) -> str:
        """What the addresses in the answer start with."""
        return f"{self.request.scope['scheme']}://{self.host}"

    def page(self, longest: int) -> tuple[int, int]:
        """How many to skip, and how many to list."""
        return self._count("$skip", 0), min(self._count("$top", DEFAULT_TOP), longest)

    def _count(self, parameter: str, default: int) -> int:
        text = self.request.query_params.get(parameter, str(default))
        if not _COUNT.fullmatch(text):
            raise InvalidArgument(f"{parameter} is {text!r:.40}; it has to be a whole number, and not negative")
        return int(text)
