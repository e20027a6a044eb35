"""What one connection may do: the grants that its tokens, or its password, gave it.

Owns: the grants of a connection and when the next one ends. Knows nothing of links: the connection checks them again
when a grant has expired, or a key was changed. Each check reads the key as it is now.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from twinbus.model.errors import Unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from twinbus.server.auth.keys import Key, Right
    from twinbus.server.auth.sas import Grant

MAX_GRANTS = 1_000
"""Tokens of one connection, each for another entity."""


class ConnectionGrants:
    """The grants of one connection."""

    def __init__(
        self, renew: Callable[[Grant], Grant | None], on_key_used: Callable[[Key], None] | None = None
    ) -> None:
        """None at first. `renewed` returns a grant as it is now; `on_key` is called with the key of each new one."""
        self._renew = renew
        self._on_key_used = on_key_used
        self._grants: dict[str, Grant] = {}
        """By what was asked for: a token that is put again replaces the one before."""

    @property
    def is_empty(self) -> bool:
        """Nothing was shown yet."""
        return not self._grants

    @property
    def next_expiry_s(self) -> float:
        """When the first grant ends, on the wall clock; infinite if none does."""
        return min((grant.expires_s for grant in self._grants.values()), default=inf)

    def add(self, audience: str, grant: Grant) -> None:
        """Add a grant, or renew it."""
        if audience not in self._grants and len(self._grants) >= MAX_GRANTS:
            raise Unauthorized(f"the connection has {MAX_GRANTS} tokens, its limit")
        self._store(audience, grant)

    def add_all(self, grants: Iterable[Grant]) -> None:
        """A key itself was shown: it may be one of several entities."""
        for grant in grants:
            self._store(grant.scope, grant)

    def drop_expired(self, wall_s: float) -> None:
        """Forget what has ended."""
        self._grants = {audience: grant for audience, grant in self._grants.items() if grant.expires_s > wall_s}

    def drop_revoked(self) -> None:
        """Forget the grants of secrets that are not good any more."""
        self._grants = {audience: grant for audience, grant in self._grants.items() if self._renew(grant) is not None}

    def _store(self, audience: str, grant: Grant) -> None:
        self._grants[audience] = grant
        if self._on_key_used is not None:
            self._on_key_used(grant.key)

    def allows(self, right: Right, path: str) -> bool:
        """Some grant has this right on this entity."""
        return any(grant.allows(right, path) for grant in self.current_grants())

    def current_grants(self) -> Iterator[Grant]:
        """All there are, as they are worth now."""
        now = map(self._renew, self._grants.values())
        return (grant for grant in now if grant is not None)

    def check(self, right: Right, path: str) -> None:
        """Unauthorized where no grant has this right."""
        if not self.allows(right, path):
            raise Unauthorized(
                f"Unauthorized access. '{right.value}' claim(s) are required to perform this operation on '{path}'."
            )
