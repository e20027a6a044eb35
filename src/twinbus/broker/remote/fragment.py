"""A fragment that another process owns.

Owns no messages: receivers, settlement and browsing send requests to the owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twinbus.broker.ports.fragment import DispatcherPort, FragmentPort
from twinbus.broker.ports.peer_protocol import ManagementResponse
from twinbus.broker.remote.credit_reservation import CreditReservation
from twinbus.broker.remote.message_browser import RemoteMessageBrowser
from twinbus.broker.remote.settlement import LOCK_TOKEN_BYTES, RemoteSettlement
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from twinbus.broker.clock import TimeServices
    from twinbus.broker.ports.consumer import Consumer, GatewayConsumer
    from twinbus.broker.ports.fragment import ManagementRequest, SessionLock
    from twinbus.broker.ports.peer_protocol import FragmentAddress, Reply
    from twinbus.broker.remote.peer_client import PeerClient, RemoteStore


class RemoteDispatcher(DispatcherPort):
    """Receivers in this process that use one remote fragment, with or without sessions."""

    def __init__(self, fragment: RemoteFragment) -> None:
        """Create a dispatcher without receivers."""
        self.reservations: dict[Consumer, CreditReservation] = {}
        self._fragment = fragment

    @property
    def consumers(self) -> list[Consumer]:
        """All receivers in this process."""
        return list(self.reservations)

    def add(self, consumer: Consumer) -> None:
        """Attach a receiver to the owner's fragment."""
        self._attach_consumer(consumer)

    def accept_session(self, consumer: Consumer, session_id: bytes, on_accepted: Callable[[SessionLock], None]) -> None:
        """Ask the owner to lock a session for a receiver; a refusal is reported by the receiver's `force_detach`."""
        self._fragment.check_available()
        self._attach_consumer(consumer, session_id, on_accepted)

    def accept_next_session(self, consumer: Consumer, on_accepted: Callable[[SessionLock], None]) -> None:
        """Ask the owner to lock any free session for a receiver, as soon as there is one."""
        self._attach_consumer(consumer, None, on_accepted)

    def _attach_consumer(
        self,
        consumer: Consumer,
        session_id: bytes | None = None,
        on_granted: Callable[[SessionLock], None] | None = None,
    ) -> None:
        def on_closed() -> None:
            self.reservations.pop(consumer, None)

        receiver = cast("GatewayConsumer", consumer)
        self.reservations[consumer] = CreditReservation(
            self._fragment, receiver, on_closed, session_id=session_id, on_granted=on_granted
        )

    def cancel_accept(self, consumer: Consumer) -> bool:
        """Stop waiting for a session; return False if the receiver already holds a session."""
        reservation = self.reservations.get(consumer)
        if reservation is None or reservation.session_lock is not None:
            return False
        self.remove(consumer)
        return True

    def owns_session_lock(self, session_lock: SessionLock) -> bool:
        """Return whether a session lock belongs to this fragment."""
        reservation = self.reservations.get(session_lock.consumer)
        return reservation is not None and reservation.session_lock is session_lock

    def remove(self, consumer: Consumer) -> None:
        """Detach a receiver, and release its reserved credit and its session."""
        reservation = self.reservations.pop(consumer, None)
        if reservation is not None:
            reservation.close()
            if reservation.session_lock is not None:
                reservation.session_lock.has_ended = True

    def dispatch_to(self, consumer: Consumer) -> None:
        """Ask the owner for messages, if some may be available."""
        reservation = self.reservations.get(consumer)
        if reservation is not None:
            reservation.request_messages()

    def drain(self, consumer: Consumer, on_drained: Callable[[], None]) -> None:
        """Ask the owner for the available messages, then call `on_drained`."""
        reservation = self.reservations.get(consumer)
        if reservation is None:
            on_drained()
        else:
            reservation.drain(on_drained)

    def has_reserved_credit(self, consumer: Consumer) -> bool:
        """Return whether the owner holds credit from the receiver."""
        reservation = self.reservations.get(consumer)
        return reservation is not None and reservation.is_credit_granted

    def close(self, error: ServiceBusError) -> None:
        """Detach all receivers with an error."""
        reservations, self.reservations = self.reservations, {}
        for consumer, reservation in reservations.items():
            reservation.close()
            consumer.force_detach(error)

    def dispatch(self) -> None:
        """Ask the owner for messages for all receivers, after a rehearsed outage has ended."""
        for reservation in list(self.reservations.values()):
            reservation.request_messages()


class RemoteFragment(FragmentPort):
    """A fragment in another process, as this process sees it."""

    def __init__(
        self, address: FragmentAddress, store: RemoteStore, *, time_services: TimeServices, has_sessions: bool = False
    ) -> None:
        """Create a remote fragment; `address` identifies it to its owner."""
        super().__init__(address[1], time_services, has_sessions=has_sessions)
        self.store = store
        self.address = address
        self._dispatcher = RemoteDispatcher(self)
        self._settlement = RemoteSettlement(self)
        self._browser = RemoteMessageBrowser(self)

    @property
    def dispatcher(self) -> RemoteDispatcher:
        """Dispatcher for the receivers in this process."""
        return self._dispatcher

    @property
    def settlement(self) -> RemoteSettlement:
        """Settlement of the fragment's locked messages."""
        return self._settlement

    @property
    def browser(self) -> RemoteMessageBrowser:
        """Browser of the fragment's messages."""
        return self._browser

    @property
    def owner(self) -> PeerClient:
        """The process that owns the fragment."""
        return self.store.peer

    @property
    def is_available(self) -> bool:
        """Whether the fragment's store works, as far as this process knows."""
        return self.store.unavailable_reason is None

    @property
    def accepts_sends(self) -> bool:
        """Whether the fragment's store accepts messages, as far as this process knows."""
        return self.store.accepts_sends

    def check_available(self) -> None:
        """Raise StoreUnavailable if the fragment's store does not work, as far as this process knows."""
        self.store.check_available()

    def check_accepts_sends(self) -> None:
        """Raise StoreUnavailable or ServerBusy if the store accepts no messages, as far as this process knows."""
        self.store.check_accepts_sends()

    def lock_numbers(self, tags: Iterable[bytes]) -> list[int]:
        """Return delivery tags as numbers, since only the owner knows its locks; 0 for a tag of the wrong length."""
        return [int.from_bytes(tag) if len(tag) == LOCK_TOKEN_BYTES else 0 for tag in tags]

    @property
    def admits_asynchronously(self) -> bool:
        """Whether the owner is connected and can admit receivers."""
        return self.owner.is_connected

    @property
    def reserves_credit(self) -> bool:
        """True, because credit granted to the owner cannot be used by other fragments."""
        return True

    def manage(self, request: ManagementRequest, run_locally: Callable[[], None]) -> None:  # noqa: ARG002
        """Send a request to `$management` to the owner; raise StoreUnavailable if the owner is not connected."""
        on_reply = request.on_reply

        def handle_reply(reply: Reply | ServiceBusError) -> None:
            if isinstance(reply, ManagementResponse):
                on_reply(reply.response)
            else:
                assert isinstance(reply, ServiceBusError)
                on_reply(reply)

        call = request.message_type(self.address, request.encode_arguments(), request.client_id, request.transaction_id)
        self.owner.send_request(call, handle_reply)
