"""A receiving link of the simulation, which counts as the one in `server/outgoing.py` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.ledger.problems import Violation
from twinbus.broker.line import Line

if TYPE_CHECKING:
    from tests.simulation.shelf import Shelf
    from tests.simulation.world import World
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.model.errors import ServiceBusError


class SimulatedConsumer:
    def __init__(self, world: World, shelf: Shelf, number: int, *, deletes: bool) -> None:
        self.shelf = shelf
        self.number = number
        self.deletes = deletes
        self.is_gone = False
        self.is_blocked = False
        """Its socket is full."""
        self.credit = 0
        self.drain_until_s: float | None = None
        self._reserved = 0
        self._world = world
        shelf.consumers.append(self)
        assert isinstance(shelf.fragment.line, Line)
        shelf.fragment.line.add(self)

    def __hash__(self) -> int:
        return self.number  # the order in a set is the same in every process

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"{'deleting ' if self.deletes else ''}consumer {self.number} of {self.shelf} (credit {self.credit})"

    @property
    def room(self) -> int:
        return 0 if self.is_blocked else max(0, self.credit - self._reserved)

    @property
    def is_hungry(self) -> bool:
        """It has credit for more than what is on its way to it."""
        messages = self._world.ledger.messages.values()
        coming = sum([message.handed is self for message in messages]) if self.deletes else 0
        return self.credit > coming and not self.is_blocked

    def reserve(self, count: int) -> None:
        """A negative count takes back what could not be deleted."""
        if self.is_gone and count > 0:
            raise Violation(f"{self!r} is gone, and {count} are reserved for it")
        if not self.deletes or count > self.room or self._reserved + count < 0:
            raise Violation(f"{count} reserved for {self!r}, and {self._reserved} before")
        self._reserved += count
        if count > 0:
            self._world.ledger.reserve(self, count)

    def deliver(self, deliveries: list[Delivery]) -> int:
        world, count = self._world, len(deliveries)
        if self.is_gone:
            raise Violation(f"{self!r} is gone, and was given {count}")
        if self.deletes:
            self._reserved -= count
            count = min(count, self.credit)
            world.ledger.hand_over(self, deliveries[:count])
            world.ledger.refuse(deliveries[count:])
        else:
            if count > self.room:
                raise Violation(f"{self!r} was given {count}")
            world.lent(self, deliveries)
        self.credit = max(0, self.credit - count)
        if world.is_tracing:
            world.say(f"  {count} for {self!r}: {world.identities(deliveries)}")
        return count

    def entity_gone(self, _error: ServiceBusError) -> None:
        self.leave()

    def session_lost(self, _error: ServiceBusError) -> None:
        raise Violation(f"{self!r} has no session, and lost one")

    def grant(self, credit: int) -> None:
        self.credit += credit
        self.feed()

    def feed(self) -> None:
        if self.credit > 0 and not self.is_gone:
            self.shelf.fragment.line.feed(self)

    def drain(self) -> None:
        self.drain_until_s = self._world.clock.monotonic_s() + 0.1
        self.shelf.fragment.line.drain(self, self._drained)

    def _drained(self) -> None:
        world = self._world
        if self.is_gone:
            return
        if self.drain_until_s is None:
            raise Violation(f"{self!r} was drained unasked")
        is_early = world.clock.monotonic_s() < self.drain_until_s
        messages = world.ledger.messages.values()
        coming = [message for message in messages if message.handed is self and not message.is_refused]
        if is_early and coming:
            raise Violation(f"{self!r} was drained, and what it waits for comes later: {coming}")
        if is_early and self.credit > 0 and not self.is_blocked and world.has_room(self.shelf):
            idle = world.ledger.idle(self.shelf)
            if idle:
                raise Violation(f"{self!r} was drained, and there are still {idle}")
        self.drain_until_s = None
        self.credit = 0
        if world.is_tracing:
            world.say(f"  drained: {self!r}")

    def leave(self) -> None:
        """The link is over."""
        self.is_gone = True
        self.drain_until_s = None
        self.shelf.consumers.remove(self)
