"""Links of the queue simulation: receivers, which count credit like the links of the server, and browsing links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.queue.messages import read_delivery
from tests.simulation.queue.model_state import ACTIVE, MAIN, NEVER_S, Location, Lock, Message, SessionHold, Violation
from twinbus.broker.fragment.message_browser import BrowseCursor
from twinbus.broker.fragment.session_lock import LocalSessionLock

if TYPE_CHECKING:
    from tests.simulation.queue.simulation import QueueSimulation
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.ports import fragment as ports
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.model.errors import ServiceBusError


class Receiver:
    """A receiving link, which may hold a session or wait for one."""

    def __init__(self, simulation: QueueSimulation, area: str, number: int, *, deletes: bool) -> None:
        self.area = area
        self.number = number
        self.receive_and_delete = deletes
        self.is_closed = False
        self.credit = 0
        self.reserved = 0
        self.session: bytes | None = None
        self.requested_session: bytes | None = None
        """Requested session; None for any."""
        self.is_waiting = False
        self.drain_until_s: float | None = None
        self._simulation = simulation
        self._model = simulation.model
        self._model.receivers.append(self)

    def __hash__(self) -> int:
        return self.number  # so that the order of a set is the same in every process

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        name = "deleting receiver" if self.receive_and_delete else "receiver"
        source = f"session {self.session!r}" if self.session is not None else self.area
        return f"{name} {self.number} of {source} (credit {self.credit}, {self.reserved} reserved)"

    @property
    def fragment(self) -> Fragment:
        return self._simulation.fragment(self.area)

    # --- called by the broker ----------------------------------------------------------------------------------------

    @property
    def available_credit(self) -> int:
        return max(0, self.credit - self.reserved)

    def reserve_credit(self, count: int) -> None:
        if (
            (self.is_closed and count > 0)
            or not self.receive_and_delete
            or count > self.available_credit
            or self.reserved + count < 0
        ):
            raise Violation(f"{count} reserved for {self!r}")
        self.reserved += count

    def deliver(self, deliveries: list[Delivery]) -> int:
        self._simulation.trace(f"  {[read_delivery(payload)[:3] for payload, _ in deliveries]} for {self!r}")
        if self.is_closed:
            raise Violation(f"{self!r} is gone, and was given {len(deliveries)}")
        count = len(deliveries)
        if self.receive_and_delete:
            self.reserved -= count
            count = min(count, self.credit)
            numbers = [read_delivery(payload).number for payload, _ in deliveries]
            if numbers != sorted(set(numbers)):
                raise Violation(f"{self!r} was given {numbers}")
            for payload, _ in deliveries[:count]:
                self._record_deleted(payload)
        else:
            if count > self.available_credit or self._simulation.commit_log.unavailable_reason is not None:
                raise Violation(f"{self!r} was given {count}")
            for payload, tag in deliveries:
                self._record_locked(payload, tag)
        self.credit -= count
        return count

    def request_messages(self) -> None:
        if self.credit > 0 and not self.is_closed:
            self.fragment.dispatcher.dispatch_to(self)

    def force_detach(self, error: ServiceBusError) -> None:
        if not self._simulation.is_disabled:
            raise Violation(f"{self!r} was detached with {error}")
        if self._has_sessions:
            self.mark_gone()
            self._release_session()
        else:
            self.leave()

    def on_session_lock_lost(self, _error: ServiceBusError) -> None:
        model = self._model
        if self.session is None or (
            self.session in model.session_holds and model.session_holds[self.session].receiver is self
        ):
            raise Violation(f"{self!r} was notified of a lost session that it still holds")
        self._simulation.trace(f"  {self!r} has lost its session")
        self.mark_gone()

    def session_granted(self, hold: ports.SessionLock) -> None:
        assert isinstance(hold, LocalSessionLock)
        model = self._model
        self._simulation.trace(f"  {self!r} has session {hold.session_id!r}")
        if self.is_closed or self.session is not None or hold.session_id in model.session_holds:
            raise Violation(f"{self!r} is given session {hold.session_id!r}; there are {list(model.session_holds)}")
        if self.requested_session is not None and self.requested_session != hold.session_id:
            raise Violation(f"{self!r} wants {self.requested_session!r}, and is given {hold.session_id!r}")
        if self.requested_session is None and not self._simulation.available_in_session(hold.session_id):
            raise Violation(f"{self!r} is given session {hold.session_id!r}, which has nothing")
        duration_ms = model.description.lock_duration_ms
        deadline_s = model.clock.monotonic_s() + duration_ms / 1000
        if hold.deadline_s != deadline_s or hold.locked_until_ms != model.clock.wall_ms() + duration_ms:
            raise Violation(f"{self!r} has session {hold.session_id!r} until {hold.deadline_s}")
        model.session_holds[hold.session_id] = SessionHold(hold.session_id, self, deadline_s, hold.locked_until_ms)
        self.session, self.is_waiting = hold.session_id, False
        self.grant(0)

    # --- deliveries --------------------------------------------------------------------------------------------------

    def _find_message(self, payload: bytes) -> Message:
        delivery = read_delivery(payload)
        message = self._model.messages.get(delivery.identity)
        if message is None or delivery.delivered != message.delivery_count:
            raise Violation(f"{self!r} was given {delivery}: {message}")
        return message

    def _record_locked(self, payload: bytes, tag: bytes) -> None:
        """Check and record a delivery under a lock."""
        model, message, delivery = self._model, self._find_message(payload), read_delivery(payload)
        message.clear_release()
        if message.visible_location != Location(self.area, ACTIVE, delivery.number) or not message.is_idle:
            raise Violation(f"{self!r} was given {message}")
        if model.is_expired(message):
            raise Violation(f"{self!r} was given {message}, which has expired")
        if self._simulation.is_full(self.area):
            raise Violation(f"{self!r} was given {message} above the limit of locked messages")
        deadline_s = model.clock.monotonic_s() + model.description.lock_duration_ms / 1000
        until_ms, session = model.clock.wall_ms() + model.description.lock_duration_ms, None
        if self._has_sessions:
            hold = model.session_holds.get(self.session) if self.session is not None else None
            if hold is None or hold.receiver is not self or message.session != self.session:
                raise Violation(f"{self!r} was given {message} of {message.session!r}, which is not its session")
            deadline_s, until_ms, session = NEVER_S, hold.until_ms, self.session
        if delivery.until_ms != until_ms:
            raise Violation(f"{self!r} was given {message} until {delivery.until_ms}, not {until_ms}")
        self._check_order(message)
        message.lock = Lock(message, message.visible_location, tag, deadline_s, session)
        self._simulation.locks.append(message.lock)

    def _check_order(self, message: Message) -> None:
        before = [
            other
            for other in self._simulation.available_for(self)
            if other.location and message.location and other.location < message.location
        ]
        if len(before) > self._model.reserved_count(self.area):
            raise Violation(f"{self!r} was given {message}, and before it there is {before}")

    def _record_deleted(self, payload: bytes) -> None:
        """Check and record a delivery in receive-and-delete mode."""
        message = self._find_message(payload)
        if not message.is_deleted_for_receiver or (self._has_sessions and message.session != self.session):
            raise Violation(f"{self!r} was given {message}")
        message.is_deleted_for_receiver = message.may_be_deleted = False

    @property
    def _has_sessions(self) -> bool:
        return self.area == MAIN and self._model.description.requires_session

    # --- requests ----------------------------------------------------------------------------------------------------

    def grant(self, credit: int) -> None:
        self.credit += credit
        if self.credit > 0:
            self.fragment.dispatcher.dispatch_to(self)

    def drain(self) -> None:
        self.drain_until_s = self._model.clock.monotonic_s() + 0.1
        self.fragment.dispatcher.drain(self, self._drained)

    def _drained(self) -> None:
        if self.is_closed:
            return
        if self.drain_until_s is None:
            raise Violation(f"{self!r} was drained unasked")
        is_early = self._model.clock.monotonic_s() < self.drain_until_s
        if is_early and self.available_credit > 0 and self.fragment.available_locks > 0:
            waiting = self._simulation.available_for(self)
            if len(waiting) > self._model.reserved_count(self.area):
                raise Violation(f"{self!r} was drained, and there are still {waiting}")
        if is_early and self.reserved:
            raise Violation(f"{self!r} was drained, and something is coming")
        self._simulation.trace(f"  drained: {self!r}")
        self.drain_until_s = None
        self.credit = 0

    def mark_gone(self) -> None:
        """Mark the link as closed, without notice to the broker."""
        self.is_closed = True
        self.is_waiting = False
        self.drain_until_s = None
        if self in self._model.receivers:
            self._model.receivers.remove(self)
            if self.reserved:
                self._model.leaving_receivers.append(self)

    def leave(self) -> None:
        """Detach the link, which frees the messages of its session at once."""
        self.mark_gone()
        self._release_session()
        self.fragment.dispatcher.remove(self)

    def _release_session(self) -> None:
        model = self._model
        if (
            self.session is not None
            and self.session in model.session_holds
            and model.session_holds[self.session].receiver is self
        ):
            del model.session_holds[self.session]
            for message in model.by_location.values():
                if message.lock is not None and message.lock.session == self.session:
                    message.lock = None
                    message.idle_since_s = model.clock.monotonic_s()


class BrowsingLink:
    """A browsing link."""

    def __init__(self, simulation: QueueSimulation, area: str, first: int, last: int) -> None:
        self.area = area
        self.first = first
        self.last = last
        self.available_credit = 0
        self.seen: list[int] = []
        self._simulation = simulation
        self.browser = BrowseCursor(simulation.fragment(area), self, first, last)

    @property
    def wants_messages(self) -> bool:
        return self.available_credit > 0

    def deliver_browsed(self, deliveries: list[Delivery]) -> int:
        shown = deliveries[: self.available_credit]
        for payload, _ in shown:
            delivery = read_delivery(payload)
            if not self.first <= delivery.number <= self.last or (self.seen and self.seen[-1] >= delivery.number):
                raise Violation(f"{delivery} is shown, after {self.seen[-5:]}")
            if delivery.number > self._simulation.model.highest[self.area]:
                raise Violation(f"{delivery} is shown, which is not on disk")
            self.seen.append(delivery.number)
        self.available_credit -= len(shown)
        return len(shown)

    def force_detach(self, error: ServiceBusError) -> None:
        if not self._simulation.is_disabled:
            raise Violation(f"a browsing link was detached with {error}")
        self._simulation.browsing_links.remove(self)

    def check(self) -> None:
        """Check, when idle, that all messages in its range were delivered."""
        if self.available_credit <= 0:
            return
        for message in self._simulation.model.messages_at(self.area, ACTIVE):
            assert message.location is not None
            number = message.location.number
            if self.first <= number <= self.last and number not in self.seen and not message.was_restored:
                raise Violation(f"{message} was not shown to the browsing link from {self.first} to {self.last}")
