"""A receiving link of the simulation, which counts credit like `server/amqp/outgoing_link.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.delivery_checker.problems import Violation
from twinbus.broker.fragment.dispatcher import Dispatcher

if TYPE_CHECKING:
    from tests.simulation.broker.expected_state import AreaState
    from tests.simulation.broker.simulation import BrokerSimulation
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.model.errors import ServiceBusError


class SimulatedConsumer:
    def __init__(self, simulation: BrokerSimulation, area_state: AreaState, number: int, *, deletes: bool) -> None:
        self.area_state = area_state
        self.number = number
        self.receive_and_delete = deletes
        self.is_closed = False
        self.is_blocked = False
        """Whether its socket is full."""
        self.credit = 0
        self.drain_until_s: float | None = None
        self._reserved = 0
        self._simulation = simulation
        area_state.consumers.append(self)
        assert isinstance(area_state.fragment.dispatcher, Dispatcher)
        area_state.fragment.dispatcher.add(self)

    def __hash__(self) -> int:
        return self.number  # so that the order of a set is the same in every process

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return (
            f"{'deleting ' if self.receive_and_delete else ''}consumer {self.number} of {self.area_state} (credit "
            f"{self.credit})"
        )

    @property
    def available_credit(self) -> int:
        return 0 if self.is_blocked else max(0, self.credit - self._reserved)

    @property
    def wants_messages(self) -> bool:
        """Whether it has credit for more messages than are being deleted for it."""
        messages = self._simulation.checker.messages.values()
        pending_count = (
            sum([message.deleting_consumer is self for message in messages]) if self.receive_and_delete else 0
        )
        return self.credit > pending_count and not self.is_blocked

    def reserve_credit(self, count: int) -> None:
        """Reserve credit for messages that are being deleted; a negative count returns credit."""
        if self.is_closed and count > 0:
            raise Violation(f"{self!r} is gone, and {count} are reserved for it")
        if not self.receive_and_delete or count > self.available_credit or self._reserved + count < 0:
            raise Violation(f"{count} reserved for {self!r}, and {self._reserved} before")
        self._reserved += count
        if count > 0:
            self._simulation.checker.messages_reserved(self, count)

    def deliver(self, deliveries: list[Delivery]) -> int:
        simulation, count = self._simulation, len(deliveries)
        if self.is_closed:
            raise Violation(f"{self!r} is gone, and was given {count}")
        if self.receive_and_delete:
            self._reserved -= count
            count = min(count, self.credit)
            simulation.checker.messages_deleted(self, deliveries[:count])
            simulation.checker.messages_refused(deliveries[count:])
        else:
            if count > self.available_credit:
                raise Violation(f"{self!r} was given {count}")
            simulation.record_locks(self, deliveries)
        self.credit = max(0, self.credit - count)
        if simulation.is_tracing:
            simulation.trace(f"  {count} for {self!r}: {simulation.identities(deliveries)}")
        return count

    def force_detach(self, _error: ServiceBusError) -> None:
        self.leave()

    def on_session_lock_lost(self, _error: ServiceBusError) -> None:
        raise Violation(f"{self!r} has no session, and lost one")

    def grant(self, credit: int) -> None:
        self.credit += credit
        self.request_messages()

    def request_messages(self) -> None:
        if self.credit > 0 and not self.is_closed:
            self.area_state.fragment.dispatcher.dispatch_to(self)

    def drain(self) -> None:
        self.drain_until_s = self._simulation.clock.monotonic_s() + 0.1
        self.area_state.fragment.dispatcher.drain(self, self._drained)

    def _drained(self) -> None:
        simulation = self._simulation
        if self.is_closed:
            return
        if self.drain_until_s is None:
            raise Violation(f"{self!r} was drained unasked")
        is_early = simulation.clock.monotonic_s() < self.drain_until_s
        messages = simulation.checker.messages.values()
        pending = [message for message in messages if message.deleting_consumer is self and not message.is_refused]
        if is_early and pending:
            raise Violation(f"{self!r} was drained, and what it waits for comes later: {pending}")
        if is_early and self.credit > 0 and not self.is_blocked and simulation.has_room(self.area_state):
            available = simulation.checker.available_sequence_numbers(self.area_state)
            if available:
                raise Violation(f"{self!r} was drained, and there are still {available}")
        self.drain_until_s = None
        self.credit = 0
        if simulation.is_tracing:
            simulation.trace(f"  drained: {self!r}")

    def leave(self) -> None:
        """Close the link, without notice to the broker."""
        self.is_closed = True
        self.drain_until_s = None
        self.area_state.consumers.remove(self)
