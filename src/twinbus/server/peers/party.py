"""A party: all visitors of one receiver of another process, at the fragments of an entity that are of this one.

Owns: the claim that it may have on these fragments, and that all of its visitors go when it loses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.ports.claim import Claim
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.remote.visitor import Visitor
    from twinbus.model.errors import ServiceBusError


class Party:
    """One receiver. To the claim it is the consumer that has it."""

    deletes = False

    def __init__(self, link: int, client: int, claim: Claim) -> None:
        """`link` is its number, and `client` that of who it is of, in its process."""
        self.link = link
        self.client = client
        self.visitors: set[Visitor] = set()
        self._claim = claim

    def enter(self, where: str, epoch: int | None, fragments: Sequence[Fragment], *, if_free: bool = False) -> None:
        """It comes, and claims the entity if it has an epoch. EntityClaimed if it cannot."""
        if epoch is None:
            self._claim.check_open(where)
            return
        others = any(fragment.line.consumers for fragment in fragments)
        self._claim.check(where, epoch, others=others, if_free=if_free)
        self._claim.displace(where, epoch, fragments)
        self._claim.take(self, epoch, fragments)

    def leave(self) -> None:
        """It has gone."""
        self._claim.give_up(self)

    def entity_gone(self, error: ServiceBusError) -> None:
        """Another receiver has claimed the entity."""
        for visitor in list(self.visitors):
            visitor.fragment.line.remove(visitor)
            visitor.entity_gone(error)

    @property
    def is_gone(self) -> bool:
        """It is there as long as one of its visitors is."""
        return not self.visitors

    @property
    def room(self) -> int:
        """Its visitors take messages, not it."""
        return 0

    def reserve(self, count: int) -> None:
        """As for `room`."""

    def deliver(self, deliveries: list[Delivery]) -> int:
        """As for `room`."""
        raise AssertionError(deliveries)

    def session_lost(self, error: ServiceBusError) -> None:
        """As for `room`."""
