"""Receiving links of the simulation, which count credit like `outgoing_link` and `session_link` of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.delivery_checker.problems import Violation
from twinbus.broker.ports.consumer import ReceiverIdentity
from twinbus.broker.ports.multi_fragment_receiver import MultiFragmentReceiver
from twinbus.model.errors import ServiceBusError, SessionCannotBeLocked, SessionLockLost, StoreUnavailable
from twinbus.model.partition_key import fragment_of
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from tests.simulation.cluster.process import Process
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.fragment import SessionLock

DRAIN_TIMEOUT_S = 0.15


class SimulatedReceiver:
    """A receiver of all fragments of a queue or its dead-letter queue."""

    def __init__(
        self, process: Process, number: int, *, deletes: bool = False, sub_queue: SubQueue = SubQueue.MAIN
    ) -> None:
        self.process = process
        self.number = number
        self.receive_and_delete = deletes
        self.is_for_dead_letters = sub_queue is SubQueue.DEAD_LETTER
        self.receiver_identity = ReceiverIdentity(link_id=number, client_id=number)
        self.credit = 0
        self.reserved = 0
        self.is_closed = False
        self.was_drained_early = False
        """Whether a drain ended before all reserved credit was returned: deliveries may then exceed the credit."""
        self.drain_until_s: float | None = None
        self.session: str | None = None
        self.last_sequence = 0
        self.gathering = MultiFragmentReceiver(process.fragments(sub_queue))
        self._simulation = process.simulation
        process.receivers.append(self)
        self._simulation.checker.deletions.has_receivers |= deletes
        self._attach()

    def __hash__(self) -> int:
        return self.number  # so that the order of a set is the same in every run

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        kind = "deleting " * self.receive_and_delete + "dead-letter " * self.is_for_dead_letters
        return f"{kind}receiver {self.number} at {self.process!r}, credit {self.credit} - {self.reserved}"

    def _attach(self) -> None:
        self.gathering.add(self)

    # --- called by the broker ----------------------------------------------------------------------------------------

    @property
    def available_credit(self) -> int:
        return self.credit - self.reserved

    def reserve_credit(self, count: int) -> None:
        if count > 0 and (count > self.available_credit or self.is_closed):
            raise Violation(f"{count} are reserved for {self!r}")
        self.reserved += count
        if self.reserved < 0:
            raise Violation(f"{-count} are given back to {self!r}")

    def deliver(self, deliveries: list[Delivery]) -> int:
        if self.is_closed:
            raise Violation(f"{self!r} is gone, and was given {len(deliveries)}")
        if self.receive_and_delete:
            self.reserve_credit(-len(deliveries))
        count = min(len(deliveries), self.credit)
        if count < len(deliveries) and not self.was_drained_early:
            raise Violation(f"{len(deliveries)} messages for {self!r}")
        self.credit -= count
        for payload, tag in deliveries[:count]:
            self._record_delivery(payload, tag)
        return count

    def _record_delivery(self, payload: bytes, tag: bytes) -> None:
        simulation = self._simulation
        if self.receive_and_delete:
            simulation.trace(f"  {simulation.checker.message_deleted(self, payload)!r} for {self!r}")
            return
        lock = simulation.checker.message_locked(self, payload, tag)
        lock.is_void = lock.is_lost = not simulation.knows_lock(lock)
        if self.gathering.fragment_of_tag(tag).number != lock.copy.sequence >> 48:
            raise Violation(f"the tag of {lock.copy!r} is of another fragment")
        simulation.given_locks.append(lock)
        simulation.trace(f"  {lock.copy!r} for {self!r}")

    def request_messages(self) -> None:
        if self.credit > 0 and not self.is_closed:
            self.gathering.dispatch_to(self)

    def on_admitted(self) -> None:
        pass

    def force_detach(self, error: ServiceBusError) -> None:
        raise Violation(f"{self!r} was detached: {error}")

    def on_session_lock_lost(self, error: ServiceBusError) -> None:
        raise Violation(f"{self!r} has no session, and lost one: {error}")

    # --- called by the client ----------------------------------------------------------------------------------------

    def grant(self, credit: int) -> None:
        self.credit += credit
        self.request_messages()

    def drain(self) -> None:
        self.drain_until_s = self._simulation.clock.monotonic_s() + DRAIN_TIMEOUT_S
        self.gathering.drain(self, self._drained)

    def _drained(self) -> None:
        if self.is_closed:
            raise Violation(f"{self!r} is closed, and its drain was reported")
        if self.drain_until_s is None:
            return  # the end of an earlier drain
        self._simulation.trace(f"  drained: {self!r}")
        self.drain_until_s = None
        self.credit = 0
        self.was_drained_early = self.reserved > 0

    def leave(self) -> None:
        self.end()
        self.gathering.remove(self)
        if self.reserved and not self.receive_and_delete:
            raise Violation(f"{self!r} has left, and something is reserved for it")

    def end(self) -> None:
        """Mark the receiver as closed, without notice to the broker."""
        self.is_closed = True
        self.drain_until_s = None
        self.process.receivers.remove(self)


class SimulatedSessionReceiver(SimulatedReceiver):
    """A receiver of one session: a named one, or any."""

    def __init__(self, process: Process, number: int, *, wanted: str | None = None, deletes: bool = False) -> None:
        self.requested_session = wanted
        self.hold: SessionLock | None = None
        self._is_drain_postponed = False
        super().__init__(process, number, deletes=deletes)

    def __repr__(self) -> str:
        return f"{super().__repr__()}, session {self.session or f'wanted: {self.requested_session}'}"

    def drain(self) -> None:
        """Drain the session; before the session is granted, the drain is postponed, as in the AMQP gateway."""
        if self.hold is None:
            self._is_drain_postponed = True
        else:
            super().drain()

    def _attach(self) -> None:
        fragments = self.gathering.fragments
        if self.requested_session is None:
            for fragment in self.gathering.begin_rotation():
                fragment.dispatcher.accept_next_session(self, self._granted)
                if self.hold is not None:
                    return
            return
        session = self.requested_session.encode()
        self.gathering = MultiFragmentReceiver(
            [fragments[0] if len(fragments) == 1 else fragments[fragment_of(session)]]
        )
        try:
            self.gathering.fragments[0].dispatcher.accept_session(self, session, self._granted)
        except (SessionCannotBeLocked, StoreUnavailable) as error:
            self._simulation.trace(f"  refused: {error}")
            self.end()

    def _granted(self, hold: SessionLock) -> None:
        if self.is_closed or self.hold is not None:
            raise Violation(f"{self!r} is given the session {hold.session_id!r}")
        self.hold = hold
        self.session = hold.session_id.decode()
        if self.requested_session not in (None, self.session):
            raise Violation(f"{self!r} wanted {self.requested_session}")
        if self._simulation.knows_session(self.session, hold.locked_until_ms):
            self._simulation.checker.session_accepted(self, self.session, hold.locked_until_ms)
        self._simulation.trace(f"  granted: {self!r}")
        for fragment in self.gathering.fragments:
            if fragment.dispatcher.owns_session_lock(hold):
                self.gathering = MultiFragmentReceiver([fragment])
            else:
                fragment.dispatcher.cancel_accept(self)
        if self._is_drain_postponed:
            self.drain()
        else:
            self.request_messages()

    def force_detach(self, error: ServiceBusError) -> None:
        if self.is_closed:
            return
        if not isinstance(error, SessionLockLost) and (self.requested_session is None or self.hold is not None):
            raise Violation(f"{self!r} was detached: {error}")
        if not isinstance(error, SessionLockLost | SessionCannotBeLocked | StoreUnavailable):
            raise Violation(f"{self!r} does not get its session: {error}")
        self._simulation.trace(f"  {self!r}: {error}")
        self.end()
        for fragment in self.gathering.fragments:
            fragment.dispatcher.cancel_accept(self)

    on_session_lock_lost = force_detach

    def end(self) -> None:
        super().end()
        self._simulation.checker.session_ended(self)
