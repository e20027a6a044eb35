"""Who uses the queue: receivers, which count as the links of the server do, and those who only look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.letter import read_delivery
from tests.model.things import ACTIVE, FAR_S, MAIN, Hold, Lock, Message, Place
from tests.model.violation import Violation
from twinbus.broker.browser import Browser
from twinbus.broker.hold import LocalHold

if TYPE_CHECKING:
    from tests.model.world import World
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.ports import fragment as ports
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.model.errors import ServiceBusError


class Receiver:
    """A link that receives; of a session, if it has one or waits for one."""

    def __init__(self, world: World, shelf: str, number: int, *, deletes: bool) -> None:
        self.shelf = shelf
        self.number = number
        self.deletes = deletes
        self.is_gone = False
        self.credit = 0
        self.reserved = 0
        self.session: bytes | None = None
        self.wanted: bytes | None = None
        """The session that it asks for; None if any."""
        self.is_waiting = False
        self.drain_until_s: float | None = None
        self._world = world
        self._model = world.model
        self._model.receivers.append(self)

    def __hash__(self) -> int:
        return self.number  # the order in a set is the same in every process

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        what = "deleting receiver" if self.deletes else "receiver"
        of = f"session {self.session!r}" if self.session is not None else self.shelf
        return f"{what} {self.number} of {of} (credit {self.credit}, {self.reserved} reserved)"

    @property
    def fragment(self) -> Fragment:
        return self._world.fragment(self.shelf)

    # --- the broker calls these ---------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        return max(0, self.credit - self.reserved)

    def reserve(self, count: int) -> None:
        if (self.is_gone and count > 0) or not self.deletes or count > self.room or self.reserved + count < 0:
            raise Violation(f"{count} reserved for {self!r}")
        self.reserved += count

    def deliver(self, deliveries: list[Delivery]) -> int:
        self._world.say(f"  {[read_delivery(payload)[:3] for payload, _ in deliveries]} for {self!r}")
        if self.is_gone:
            raise Violation(f"{self!r} is gone, and was given {len(deliveries)}")
        count = len(deliveries)
        if self.deletes:
            self.reserved -= count
            count = min(count, self.credit)
            numbers = [read_delivery(payload).number for payload, _ in deliveries]
            if numbers != sorted(set(numbers)):
                raise Violation(f"{self!r} was given {numbers}")
            for payload, _ in deliveries[:count]:
                self._take_over(payload)
        else:
            if count > self.room or self._world.journal.trouble is not None:
                raise Violation(f"{self!r} was given {count}")
            for payload, tag in deliveries:
                self._take(payload, tag)
        self.credit -= count
        return count

    def feed(self) -> None:
        if self.credit > 0 and not self.is_gone:
            self.fragment.line.feed(self)

    def entity_gone(self, error: ServiceBusError) -> None:
        if not self._world.is_disabled:
            raise Violation(f"{self!r} was told {error}")
        if self._has_sessions:
            self.go()
            self._let_go()
        else:
            self.leave()

    def session_lost(self, _error: ServiceBusError) -> None:
        model = self._model
        if self.session is None or (self.session in model.holds and model.holds[self.session].receiver is self):
            raise Violation(f"{self!r} has not lost its session, and is told so")
        self._world.say(f"  {self!r} has lost its session")
        self.go()

    def granted(self, hold: ports.Hold) -> None:
        assert isinstance(hold, LocalHold)
        model = self._model
        self._world.say(f"  {self!r} has session {hold.session!r}")
        if self.is_gone or self.session is not None or hold.session in model.holds:
            raise Violation(f"{self!r} is given session {hold.session!r}; there are {list(model.holds)}")
        if self.wanted is not None and self.wanted != hold.session:
            raise Violation(f"{self!r} wants {self.wanted!r}, and is given {hold.session!r}")
        if self.wanted is None and not self._world.waiting_in(hold.session):
            raise Violation(f"{self!r} is given session {hold.session!r}, which has nothing")
        duration_ms = model.description.lock_duration_ms
        deadline_s = model.clock.monotonic_s() + duration_ms / 1000
        if hold.deadline_s != deadline_s or hold.until_ms != model.clock.wall_ms() + duration_ms:
            raise Violation(f"{self!r} has session {hold.session!r} until {hold.deadline_s}")
        model.holds[hold.session] = Hold(hold.session, self, deadline_s, hold.until_ms)
        self.session, self.is_waiting = hold.session, False
        self.grant(0)

    # --- what it gets -------------------------------------------------------------------------------------------------

    def _find(self, payload: bytes) -> Message:
        reading = read_delivery(payload)
        message = self._model.messages.get(reading.identity)
        if message is None or reading.delivered != message.count:
            raise Violation(f"{self!r} was given {reading}: {message}")
        return message

    def _take(self, payload: bytes, tag: bytes) -> None:
        """Under a lock."""
        model, message, reading = self._model, self._find(payload), read_delivery(payload)
        message.note_release()
        if message.shown != Place(self.shelf, ACTIVE, reading.number) or not message.is_idle:
            raise Violation(f"{self!r} was given {message}")
        if model.is_expired(message):
            raise Violation(f"{self!r} was given {message}, which has expired")
        if self._world.is_full(self.shelf):
            raise Violation(f"{self!r} was given {message}, and too many are out")
        deadline_s = model.clock.monotonic_s() + model.description.lock_duration_ms / 1000
        until_ms, session = model.clock.wall_ms() + model.description.lock_duration_ms, None
        if self._has_sessions:
            hold = model.holds.get(self.session) if self.session is not None else None
            if hold is None or hold.receiver is not self or message.session != self.session:
                raise Violation(f"{self!r} was given {message} of {message.session!r}, which is not its session")
            deadline_s, until_ms, session = FAR_S, hold.until_ms, self.session
        if reading.until_ms != until_ms:
            raise Violation(f"{self!r} was given {message} until {reading.until_ms}, not {until_ms}")
        self._check_order(message)
        message.lock = Lock(message, message.shown, tag, deadline_s, session)
        self._world.locks.append(message.lock)

    def _check_order(self, message: Message) -> None:
        before = [one for one in self._world.waiting(self) if one.place and message.place and one.place < message.place]
        if len(before) > self._model.coming(self.shelf):
            raise Violation(f"{self!r} was given {message}, and before it there is {before}")

    def _take_over(self, payload: bytes) -> None:
        """Deleted already."""
        message = self._find(payload)
        if not message.is_handed or (self._has_sessions and message.session != self.session):
            raise Violation(f"{self!r} was given {message}")
        message.is_handed = message.is_perhaps_gone = False

    @property
    def _has_sessions(self) -> bool:
        return self.shelf == MAIN and self._model.description.requires_session

    # --- what it does -------------------------------------------------------------------------------------------------

    def grant(self, credit: int) -> None:
        self.credit += credit
        if self.credit > 0:
            self.fragment.line.feed(self)

    def drain(self) -> None:
        self.drain_until_s = self._model.clock.monotonic_s() + 0.1
        self.fragment.line.drain(self, self._drained)

    def _drained(self) -> None:
        if self.is_gone:
            return
        if self.drain_until_s is None:
            raise Violation(f"{self!r} was drained unasked")
        is_early = self._model.clock.monotonic_s() < self.drain_until_s
        if is_early and self.room > 0 and self.fragment.free_locks > 0:
            waiting = self._world.waiting(self)
            if len(waiting) > self._model.coming(self.shelf):
                raise Violation(f"{self!r} was drained, and there are still {waiting}")
        if is_early and self.reserved:
            raise Violation(f"{self!r} was drained, and something is coming")
        self._world.say(f"  drained: {self!r}")
        self.drain_until_s = None
        self.credit = 0

    def go(self) -> None:
        """It is over; not yet told to the broker."""
        self.is_gone = True
        self.is_waiting = False
        self.drain_until_s = None
        if self in self._model.receivers:
            self._model.receivers.remove(self)
            if self.reserved:
                self._model.leaving.append(self)

    def leave(self) -> None:
        """The link ends: of a session, what it had is free at once."""
        self.go()
        self._let_go()
        self.fragment.line.remove(self)

    def _let_go(self) -> None:
        model = self._model
        if self.session is not None and self.session in model.holds and model.holds[self.session].receiver is self:
            del model.holds[self.session]
            for message in model.by_place.values():
                if message.lock is not None and message.lock.session == self.session:
                    message.lock = None
                    message.idle_s = model.clock.monotonic_s()


class Looker:
    """A link that looks."""

    def __init__(self, world: World, shelf: str, first: int, last: int) -> None:
        self.shelf = shelf
        self.first = first
        self.last = last
        self.room = 0
        self.seen: list[int] = []
        self._world = world
        self.browser = Browser(world.fragment(shelf), self, first, last)

    @property
    def is_hungry(self) -> bool:
        return self.room > 0

    def show(self, deliveries: list[Delivery]) -> int:
        shown = deliveries[: self.room]
        for payload, _ in shown:
            reading = read_delivery(payload)
            if not self.first <= reading.number <= self.last or (self.seen and self.seen[-1] >= reading.number):
                raise Violation(f"{reading} is shown, after {self.seen[-5:]}")
            if reading.number > self._world.model.highest[self.shelf]:
                raise Violation(f"{reading} is shown, which is not on disk")
            self.seen.append(reading.number)
        self.room -= len(shown)
        return len(shown)

    def entity_gone(self, error: ServiceBusError) -> None:
        if not self._world.is_disabled:
            raise Violation(f"someone who looks was told {error}")
        self._world.lookers.remove(self)

    def check(self) -> None:
        """All that there is was seen, where nothing is going on."""
        if self.room <= 0:
            return
        for message in self._world.model.at(self.shelf, ACTIVE):
            assert message.place is not None
            number = message.place.number
            if self.first <= number <= self.last and number not in self.seen and not message.was_away:
                raise Violation(f"{message} was not shown to who looks from {self.first} to {self.last}")
