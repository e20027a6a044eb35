"""Receiving links without a connection that count credit like the server's links."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from twinbus.amqp.message import Message
from twinbus.broker.ports.consumer import ReceiverIdentity
from twinbus.broker.ports.multi_fragment_receiver import MultiFragmentReceiver
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.fragment import FragmentPort, SessionLock
    from twinbus.model.errors import ServiceBusError

_links = count(1)


class Results(list["ServiceBusError | None"]):
    """The results of operations, in order; tests pass it as the callback."""

    def __call__(self, error: ServiceBusError | None) -> None:
        self.append(error)


class FakeConsumer:
    """A receiving link over one fragment or several."""

    __test__ = False

    def __init__(self, *fragments: FragmentPort, deletes: bool = False, epoch: int | None = None) -> None:
        self.receiver_identity = ReceiverIdentity(client_id=1, epoch=epoch, link_id=next(_links))
        self.receive_and_delete = deletes
        self.is_closed = False
        self.credit = 0
        self.reserved = 0
        self.deliveries: list[Delivery] = []
        self.errors: list[ServiceBusError] = []
        self.drain_count = 0
        self.multi_fragment_receiver = MultiFragmentReceiver(fragments)
        self._attach()

    def _attach(self) -> None:
        self.multi_fragment_receiver.add(self)

    # --- called by fragments ------------------------------------------------------------------------------------------

    @property
    def available_credit(self) -> int:
        return self.credit - self.reserved

    def reserve_credit(self, count: int) -> None:
        self.reserved += count

    def deliver(self, deliveries: list[Delivery]) -> int:
        assert len(deliveries) <= self.credit
        self.credit -= len(deliveries)
        if self.receive_and_delete:
            self.reserved -= len(deliveries)
        self.deliveries += deliveries
        return len(deliveries)

    def force_detach(self, error: ServiceBusError) -> None:
        self.is_closed = True
        self.errors.append(error)

    def on_session_lock_lost(self, error: ServiceBusError) -> None:
        self.force_detach(error)

    def request_messages(self) -> None:
        if self.credit and not self.is_closed:
            self.multi_fragment_receiver.dispatch_to(self)

    def on_admitted(self) -> None:
        pass

    # --- called by tests, as a client would ---------------------------------------------------------------------------

    def grant(self, credit: int) -> None:
        self.credit += credit
        self.multi_fragment_receiver.dispatch_to(self)

    def drain(self, credit: int = 0) -> None:
        self.credit += credit
        self.multi_fragment_receiver.drain(self, self._drained)

    def _drained(self) -> None:
        self.drain_count += 1
        self.credit = 0

    def leave(self) -> None:
        self.is_closed = True
        self.multi_fragment_receiver.remove(self)

    @property
    def messages(self) -> list[Message]:
        return [Message(payload) for payload, _ in self.deliveries]

    @property
    def bodies(self) -> list[bytes]:
        return [message.data[0] for message in self.messages]

    def lock_numbers(self) -> list[int]:
        """Return the numbers of all locks the consumer received; it must have one fragment."""
        (fragment,) = self.multi_fragment_receiver.fragments
        return fragment.lock_numbers([tag for _, tag in self.deliveries])

    def complete(self, results: Results) -> None:
        """Complete all messages the consumer received."""
        by_fragment: dict[FragmentPort, list[bytes]] = {}
        for _, tag in self.deliveries:
            by_fragment.setdefault(self.multi_fragment_receiver.fragment_of_tag(tag), []).append(tag)
        for fragment, tags in by_fragment.items():
            fragment.settlement.complete(fragment.lock_numbers(tags), results)


class FakeSessionConsumer(FakeConsumer):
    """A receiving link that accepts a session by its id, or any session."""

    def __init__(self, *fragments: FragmentPort, session: bytes | None = None, deletes: bool = False) -> None:
        self.session_locks: list[SessionLock] = []
        self._requested_session = session
        super().__init__(*_candidate_fragments(fragments, session), deletes=deletes)

    def _attach(self) -> None:
        for fragment in self.multi_fragment_receiver.fragments:
            if self._requested_session is not None:
                fragment.dispatcher.accept_session(self, self._requested_session, self._granted)
            else:
                fragment.dispatcher.accept_next_session(self, self._granted)

    def _granted(self, session_lock: SessionLock) -> None:
        self.session_locks.append(session_lock)
        for fragment in self.multi_fragment_receiver.fragments:
            if fragment.dispatcher.owns_session_lock(session_lock):
                self.multi_fragment_receiver = MultiFragmentReceiver([fragment])
            else:
                fragment.dispatcher.cancel_accept(self)
        self.request_messages()

    @property
    def session_lock(self) -> SessionLock | None:
        return self.session_locks[-1] if self.session_locks else None

    @property
    def session(self) -> bytes | None:
        return self.session_lock.session_id if self.session_lock is not None else None


def _candidate_fragments(fragments: Sequence[FragmentPort], session: bytes | None) -> Sequence[FragmentPort]:
    """Return the fragments that may hold a session."""
    return fragments if session is None or len(fragments) == 1 else [fragments[fragment_of(session)]]
