"""Receiving links of the simulation, which count as those in `server/outgoing.py` and `server/session_link.py` do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.ledger.problems import Violation
from twinbus.broker.ports.consumer import Card
from twinbus.broker.ports.gathering import Gathering
from twinbus.model.errors import ServiceBusError, SessionCannotBeLocked, SessionLockLost, StoreUnavailable
from twinbus.model.partition_key import fragment_of
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from tests.simulation.processes.process import Process
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.fragment import Hold

DRAIN_S = 0.15


class Taker:
    """A receiver of all fragments of a queue, or of its dead letters."""

    def __init__(
        self, process: Process, number: int, *, deletes: bool = False, sub_queue: SubQueue = SubQueue.MAIN
    ) -> None:
        self.process = process
        self.number = number
        self.deletes = deletes
        self.is_of_dead = sub_queue is SubQueue.DEAD_LETTER
        self.card = Card(link=number, client=number)
        self.credit = 0
        self.reserved = 0
        self.is_gone = False
        self.is_cut_short = False
        """A drain was over before all that it had lent was back: it may be given what it has no credit for."""
        self.drain_until_s: float | None = None
        self.session: str | None = None
        self.last_sequence = 0
        self.gathering = Gathering(process.fragments(sub_queue))
        self._world = process.world
        process.takers.append(self)
        self._world.ledger.deletions.has_receivers |= deletes
        self._enter()

    def __hash__(self) -> int:
        return self.number  # the order in a set is the same in every run

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        what = "deleting " * self.deletes + "dead-letter " * self.is_of_dead
        return f"{what}receiver {self.number} at {self.process!r}, credit {self.credit} - {self.reserved}"

    def _enter(self) -> None:
        self.gathering.add(self)

    # --- the broker calls these ---------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        return self.credit - self.reserved

    def reserve(self, count: int) -> None:
        if count > 0 and (count > self.room or self.is_gone):
            raise Violation(f"{count} are reserved for {self!r}")
        self.reserved += count
        if self.reserved < 0:
            raise Violation(f"{-count} are given back to {self!r}")

    def deliver(self, deliveries: list[Delivery]) -> int:
        if self.is_gone:
            raise Violation(f"{self!r} is gone, and was given {len(deliveries)}")
        if self.deletes:
            self.reserve(-len(deliveries))
        count = min(len(deliveries), self.credit)
        if count < len(deliveries) and not self.is_cut_short:
            raise Violation(f"{len(deliveries)} messages for {self!r}")
        self.credit -= count
        for payload, tag in deliveries[:count]:
            self._take(payload, tag)
        return count

    def _take(self, payload: bytes, tag: bytes) -> None:
        world = self._world
        if self.deletes:
            world.say(f"  {world.ledger.hand_over(self, payload)!r} for {self!r}")
            return
        lock = world.ledger.lend(self, payload, tag)
        lock.is_void = lock.is_lost = not world.knows_lock(lock)
        if self.gathering.find(tag).number != lock.copy.sequence >> 48:
            raise Violation(f"the tag of {lock.copy!r} is of another fragment")
        world.held.append(lock)
        world.say(f"  {lock.copy!r} for {self!r}")

    def feed(self) -> None:
        if self.credit > 0 and not self.is_gone:
            self.gathering.feed(self)

    def let_in(self) -> None:
        pass

    def entity_gone(self, error: ServiceBusError) -> None:
        raise Violation(f"{self!r} is told that the entity is gone: {error}")

    def session_lost(self, error: ServiceBusError) -> None:
        raise Violation(f"{self!r} has no session, and lost one: {error}")

    # --- the client does these ----------------------------------------------------------------------------------------

    def grant(self, credit: int) -> None:
        self.credit += credit
        self.feed()

    def drain(self) -> None:
        self.drain_until_s = self._world.clock.monotonic_s() + DRAIN_S
        self.gathering.drain(self, self._drained)

    def _drained(self) -> None:
        if self.is_gone:
            raise Violation(f"{self!r} is gone, and told of its drain")
        if self.drain_until_s is None:
            return  # of a drain before, whose time is over now
        self._world.say(f"  drained: {self!r}")
        self.drain_until_s = None
        self.credit = 0
        self.is_cut_short = self.reserved > 0

    def leave(self) -> None:
        self.end()
        self.gathering.remove(self)
        if self.reserved and not self.deletes:
            raise Violation(f"{self!r} has left, and something is reserved for it")

    def end(self) -> None:
        """It is not there any more."""
        self.is_gone = True
        self.drain_until_s = None
        self.process.takers.remove(self)


class SessionTaker(Taker):
    """A receiver of one session: of that which it names, or of any."""

    def __init__(self, process: Process, number: int, *, wanted: str | None = None, deletes: bool = False) -> None:
        self.wanted = wanted
        self.hold: Hold | None = None
        super().__init__(process, number, deletes=deletes)

    def __repr__(self) -> str:
        return f"{super().__repr__()}, session {self.session or f'wanted: {self.wanted}'}"

    def _enter(self) -> None:
        fragments = self.gathering.fragments
        if self.wanted is None:
            for fragment in self.gathering.begin():
                fragment.line.wait(self, self._granted)
                if self.hold is not None:
                    return
            return
        session = self.wanted.encode()
        self.gathering = Gathering([fragments[0] if len(fragments) == 1 else fragments[fragment_of(session)]])
        try:
            self.gathering.fragments[0].line.accept(self, session, self._granted)
        except (SessionCannotBeLocked, StoreUnavailable) as error:
            self._world.say(f"  refused: {error}")
            self.end()

    def _granted(self, hold: Hold) -> None:
        if self.is_gone or self.hold is not None:
            raise Violation(f"{self!r} is given the session {hold.session!r}")
        self.hold = hold
        self.session = hold.session.decode()
        if self.wanted not in (None, self.session):
            raise Violation(f"{self!r} wanted {self.wanted}")
        if self._world.knows_session(self.session, hold.until_ms):
            self._world.ledger.grant(self, self.session, hold.until_ms)
        self._world.say(f"  granted: {self!r}")
        for fragment in self.gathering.fragments:
            if fragment.line.gave(hold):
                self.gathering = Gathering([fragment])
            else:
                fragment.line.give_up(self)
        self.feed()

    def entity_gone(self, error: ServiceBusError) -> None:
        if self.is_gone:
            return
        if not isinstance(error, SessionLockLost) and (self.wanted is None or self.hold is not None):
            raise Violation(f"{self!r} is told that the entity is gone: {error}")
        if not isinstance(error, SessionLockLost | SessionCannotBeLocked | StoreUnavailable):
            raise Violation(f"{self!r} does not get its session: {error}")
        self._world.say(f"  {self!r}: {error}")
        self.end()
        for fragment in self.gathering.fragments:
            fragment.line.give_up(self)

    session_lost = entity_gone

    def end(self) -> None:
        super().end()
        self._world.ledger.end_session(self)
