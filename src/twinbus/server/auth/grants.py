"""The rights of one connection: the grants from its tokens or its password.

Owns: the grants of a connection and the time at which the next grant expires. Knows nothing of links, because the
connection checks its links when a grant has expired or a key was changed. Every check uses the current state of the
key.
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
"""The maximum number of tokens per connection, one for each audience."""


class ConnectionGrants:
    """The grants of one connection."""

    def __init__(
        self, renew: Callable[[Grant], Grant | None], on_key_used: Callable[[Key], None] | None = None
    ) -> None:
        """Create an empty set of grants.

        `renew` returns a grant with the current state of its key, or None if its secret is no longer valid.
        `on_key_used` is called with the key of every grant that is added.
        """
        self._renew = renew
        self._on_key_used = on_key_used
        self._grants: dict[str, Grant] = {}
        """Grants by audience: a new token for the same audience replaces the previous token's grant."""

    @property
    def is_empty(self) -> bool:
        """Whether the connection has no grants."""
        return not self._grants

    @property
    def next_expiry_s(self) -> float:
        """The time at which the first grant expires, in seconds since 1970; infinite if no grant expires."""
        return min((grant.expires_s for grant in self._grants.values()), default=inf)

    def add(self, audience: str, grant: Grant) -> None:
        """Add or replace the grant for an audience. Raise Unauthorized if the connection has too many tokens."""
        if audience not in self._grants and len(self._grants) >= MAX_GRANTS:
            raise Unauthorized(f"the connection has {MAX_GRANTS} tokens, the limit: use a token for the namespace")
        self._store(audience, grant)

    def add_all(self, grants: Iterable[Grant]) -> None:
        """Add the grants for a client that logged in with the key itself; several entities may have the same key."""
        for grant in grants:
            self._store(grant.scope, grant)

    def drop_expired(self, wall_s: float) -> None:
        """Remove the grants that expired before `wall_s`."""
        self._grants = {audience: grant for audience, grant in self._grants.items() if grant.expires_s > wall_s}

    def drop_revoked(self) -> None:
        """Remove the grants whose secrets are no longer valid."""
        self._grants = {audience: grant for audience, grant in self._grants.items() if self._renew(grant) is not None}

    def _store(self, audience: str, grant: Grant) -> None:
        self._grants[audience] = grant
        if self._on_key_used is not None:
            self._on_key_used(grant.key)

    def allows(self, right: Right, path: str) -> bool:
        """Return whether a grant gives this right on this entity."""
        return any(grant.allows(right, path) for grant in self.current_grants())

    def current_grants(self) -> Iterator[Grant]:
        """Return the grants that are still valid, each with the current state of its key."""
        renewed = map(self._renew, self._grants.values())
        return (grant for grant in renewed if grant is not None)

    def check(self, right: Right, path: str) -> None:
        """Raise Unauthorized if no grant gives this right on this entity."""
        if not self.allows(right, path):
            raise Unauthorized(
                f"Unauthorized access. '{right.value}' claim(s) are required to perform this operation on '{path}'."
            )
