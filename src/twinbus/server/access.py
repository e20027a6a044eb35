"""What one connection may do: the grants that its tokens, or its password, gave it.

Owns: the grants of a connection and when the next one ends. Knows nothing of links: who has one asks again.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from twinbus.model.errors import Unauthorized
from twinbus.server.sas import Grant

if TYPE_CHECKING:
    from twinbus.server.keys import Right

MAX_GRANTS = 1_000
"""Tokens of one connection, each for another entity."""


class Access:
    """The grants of one connection."""

    def __init__(self) -> None:
        """None at first."""
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

    def give(self, audience: str, grant: Grant) -> None:
        """Add a grant, or renew it."""
        if audience not in self._grants and len(self._grants) >= MAX_GRANTS:
            raise Unauthorized(f"the connection has {MAX_GRANTS} tokens, its limit")
        self._grants[audience] = grant

    def give_all(self, key_name: str, rights: frozenset[Right]) -> None:
        """The key itself was shown: its rights hold for the namespace, and do not end."""
        self._grants[""] = Grant(key_name, rights, "", inf)

    def drop_expired(self, wall_s: float) -> None:
        """Forget what has ended."""
        self._grants = {audience: grant for audience, grant in self._grants.items() if grant.expires_s > wall_s}

    def allows(self, right: Right, path: str) -> bool:
        """Some grant has this right on this entity."""
        return any(grant.allows(right, path) for grant in self._grants.values())

    def check(self, right: Right, path: str) -> None:
        """Unauthorized where no grant has this right."""
        if not self.allows(right, path):
            raise Unauthorized(
                f"Unauthorized access. '{right.value}' claim(s) are required to perform this operation on '{path}'."
            )
