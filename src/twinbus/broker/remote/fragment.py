"""A fragment that another process owns.

Owns: nothing but the way to it: receivers, settlements and readers ask the owner.
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
    """Who receives from one fragment, with or without sessions."""

    def __init__(self, fragment: RemoteFragment) -> None:
        """Nobody is there yet."""
        self.reservations: dict[Consumer, CreditReservation] = {}
        self._fragment = fragment

    @property
    def consumers(self) -> list[Consumer]:
        """All receivers of this process."""
        return list(self.reservations)

    def add(self, consumer: Consumer) -> None:
        """Add a receiver; it says when it has room."""
        self._attach_consumer(consumer)

    def accept_session(self, consumer: Consumer, session_id: bytes, on_accepted: Callable[[SessionLock], None]) -> None:
        """Have the owner give a receiver the session that it names; a refusal is reported by `entity_gone`."""
        self._fragment.check_available()
        self._attach_consumer(consumer, session_id, on_accepted)

    def accept_next_session(self, consumer: Consumer, on_accepted: Callable[[SessionLock], None]) -> None:
        """Have the owner give a receiver any session, as soon as there is one."""
        self._attach_consumer(consumer, None, on_accepted)

    def _attach_consumer(
        self,
        consumer: Consumer,
        session_id: bytes | None = None,
        on_granted: Callable[[SessionLock], None] | None = None,
    ) -> None:
        def left() -> None:
            self.reservations.pop(consumer, None)

        receiver = cast("GatewayConsumer", consumer)
        self.reservations[consumer] = CreditReservation(
            self._fragment, receiver, left, session_id=session_id, on_granted=on_granted
        )

    def cancel_accept(self, consumer: Consumer) -> bool:
        """Stop waiting for a session. Return False if the receiver has one by now."""
        loan = self.reservations.get(consumer)
        if loan is None or loan.session_lock is not None:
            return False
        self.remove(consumer)
        return True

    def owns_session_lock(self, session_lock: SessionLock) -> bool:
        """Whether a session that a receiver has is of this fragment."""
        loan = self.reservations.get(session_lock.consumer)
        return loan is not None and loan.session_lock is session_lock

    def remove(self, consumer: Consumer) -> None:
        """Remove a receiver: what it has lent is its own again, and its session is free."""
        loan = self.reservations.pop(consumer, None)
        if loan is not None:
            loan.close()
            if loan.session_lock is not None:
                loan.session_lock.has_ended = True

    def dispatch_to(self, consumer: Consumer) -> None:
        """Ask the owner for messages, if there may be some."""
        loan = self.reservations.get(consumer)
        if loan is not None:
            loan.request_messages()

    def drain(self, consumer: Consumer, on_drained: Callable[[], None]) -> None:
        """Ask the owner for what there is now."""
        loan = self.reservations.get(consumer)
        if loan is None:
            on_drained()
        else:
            loan.drain(on_drained)

    def has_reserved_credit(self, consumer: Consumer) -> bool:
        """Whether the owner has been asked for messages and holds credit of the receiver."""
        loan = self.reservations.get(consumer)
        return loan is not None and loan.is_credit_granted

    def close(self, error: ServiceBusError) -> None:
        """End all receivers."""
        loans, self.reservations = self.reservations, {}
        for consumer, loan in loans.items():
            loan.close()
            consumer.force_detach(error)

    def dispatch(self) -> None:
        """Ask for messages again: a rehearsed outage is over."""
        for loan in list(self.reservations.values()):
            loan.request_messages()


class RemoteFragment(FragmentPort):
    """One fragment, as another process than its owner sees it."""

    def __init__(
        self, address: FragmentAddress, store: RemoteStore, *, time_services: TimeServices, has_sessions: bool = False
    ) -> None:
        """`place` is how its owner knows it."""
        super().__init__(address[1], time_services, has_sessions=has_sessions)
        self.store = store
        self.address = address
        self._dispatcher = RemoteDispatcher(self)
        self._settlement = RemoteSettlement(self)
        self._browser = RemoteMessageBrowser(self)

    @property
    def dispatcher(self) -> RemoteDispatcher:
        """Who receives from it."""
        return self._dispatcher

    @property
    def settlement(self) -> RemoteSettlement:
        """The ends of its locks."""
        return self._settlement

    @property
    def browser(self) -> RemoteMessageBrowser:
        """Looking at its messages."""
        return self._browser

    @property
    def owner(self) -> PeerClient:
        """The process that owns it."""
        return self.store.peer

    @property
    def is_available(self) -> bool:
        """Whether its store works, as far as is known."""
        return self.store.unavailable_reason is None

    @property
    def accepts_sends(self) -> bool:
        """Whether its store takes messages, as far as is known."""
        return self.store.accepts_sends

    def check_available(self) -> None:
        """Raise StoreUnavailable if its store does not work, as far as is known."""
        self.store.check_available()

    def check_accepts_sends(self) -> None:
        """Raise StoreUnavailable or ServerBusy if its store takes no messages, as far as is known."""
        self.store.check_accepts_sends()

    def lock_numbers(self, tags: Iterable[bytes]) -> list[int]:
        """Return tags as numbers: only the owner knows which locks there are."""
        return [int.from_bytes(tag) if len(tag) == LOCK_TOKEN_BYTES else 0 for tag in tags]

    @property
    def admits_asynchronously(self) -> bool:
        """Whether the owner is connected, and will admit a receiver."""
        return self.owner.is_connected

    @property
    def reserves_credit(self) -> bool:
        """Credit that is lent to the owner cannot be offered to others."""
        return True

    def manage(self, request: ManagementRequest, run_locally: Callable[[], None]) -> None:  # noqa: ARG002
        """Have a request carried out by the owner. StoreUnavailable."""
        reply = request.on_reply

        def told(answer: Reply | ServiceBusError) -> None:
            if isinstance(answer, ManagementResponse):
                reply(answer.response)
            else:
                assert isinstance(answer, ServiceBusError)
                reply(answer)

        call = request.message_type(self.address, request.encode_arguments(), request.client_id, request.transaction_id)
        self.owner.send_request(call, told)
