"""Credit that a receiver grants to one fragment in another process.

Granted credit is reserved until messages arrive, or the owner reports that no more messages are available (`Drained`).
When messages are available again, the owner reports this (`MessagesAvailable`), and the receiver grants credit again.
Since a receiver never grants more credit than it has, no fragment locks messages that the receiver cannot accept,
however many fragments the receiver uses.

Owns the credit that one receiver has granted to one fragment, and whether messages may be available there. If the owner
does not reply in time, the credit expires: the credit is released, and messages that arrive later are returned without
incrementing their delivery count. After a late reply, an owner that is busy or has a slow disk gets more time for the
next grant; otherwise no message would ever arrive in time.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from twinbus.broker.ports.fragment import OWNER_TIMEOUT_S, SessionLock
from twinbus.broker.ports.multi_fragment_receiver import DRAIN_TIMEOUT_S
from twinbus.broker.ports.peer_protocol import AttachConsumer, ConfirmDelivered, Detach, GrantCredit, ReturnMessages
from twinbus.broker.ports.settlement import session_lock_lost_error
from twinbus.model.errors import ServiceBusError, SessionLockLost, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.ports.consumer import Delivery, GatewayConsumer
    from twinbus.broker.ports.peer_protocol import Reply, Request
    from twinbus.broker.remote.fragment import RemoteFragment

MAX_TIMEOUT_S: Final = 4.0
"""Longest timeout for a credit grant. The timeout is twice the duration of the previous grant, but at least
OWNER_TIMEOUT_S."""


class CreditReservation:
    """A receiver attached to one fragment in another process, where a `RemoteConsumer` represents the receiver."""

    def __init__(
        self,
        fragment: RemoteFragment,
        consumer: GatewayConsumer,
        on_closed: Callable[[], None],
        *,
        session_id: bytes | None = None,
        on_granted: Callable[[SessionLock], None] | None = None,
    ) -> None:
        """Attach a receiver.

        `on_closed` is called when the owner detaches the receiver, `on_granted` when the receiver holds a session.
        """
        self.consumer = consumer
        self.session_lock: SessionLock | None = None
        self.is_credit_granted = False
        self._fragment = fragment
        self._peer = fragment.owner
        self._on_closed = on_closed
        self._session_id = session_id
        self._on_granted = on_granted
        self._consumer_id = self._peer.next_id()
        self._is_attached = False
        self._may_have_messages = False
        self._reserved = 0
        self._grant_count = 0
        self._granted_s = 0.0
        self._timeout_s = OWNER_TIMEOUT_S
        self._received_count = 0
        """Messages that have arrived since the last grant."""
        self._pending_returns = 0
        """Returns that the owner has not confirmed; no credit is granted meanwhile, to keep the messages in order."""
        self._is_expired = False
        self._on_drained: Callable[[], None] | None = None
        self._is_final_grant = False
        """Whether the present grant of credit began after the drain was requested, so that the drain ends with this
        grant."""
        self._peer.notice_handlers[self._consumer_id] = self
        self._attach()

    # --- attaching ----------------------------------------------------------------------------------------------------

    def _attach(self) -> None:
        if self._peer.is_connected:
            self._peer.send_request(self._attach_request(), self._on_attached)

    def _attach_request(self) -> Request:
        identity = self.consumer.receiver_identity
        link_id = identity.link_id or self._consumer_id
        return AttachConsumer(
            self._consumer_id,
            self._fragment.address,
            link_id,
            identity.client_id,
            self.consumer.receive_and_delete,
            self._session_id,
            identity.epoch,
            identity.only_if_free,
        )

    def _on_attached(self, reply: Reply | ServiceBusError) -> None:
        if self._consumer_id not in self._peer.notice_handlers:
            return
        if not isinstance(reply, ServiceBusError):
            self.consumer.on_admitted()
            if self._on_granted is None:
                self._start()
        elif self._peer.is_connected:
            self.on_detached(reply)  # otherwise the receiver is attached again after a reconnection

    def _start(self) -> None:
        self._is_attached = self._may_have_messages = True
        if self._on_drained is not None:
            self._grant_final_credit()
        else:
            self.consumer.request_messages()

    def close(self) -> None:
        """Detach the receiver from the fragment and release its credit."""
        self._is_attached = False
        if self._peer.notice_handlers.pop(self._consumer_id, None) is not None:
            self._peer.send_notice(Detach(self._consumer_id, self._received_count))
            self._release_credit()

    def reattach(self) -> None:
        """Detach the receiver and attach it again under a new id."""
        self.close()
        self.is_credit_granted = self._is_expired = False
        self._consumer_id = self._peer.next_id()
        self._peer.notice_handlers[self._consumer_id] = self
        self._attach()

    # --- the receiver -------------------------------------------------------------------------------------------------

    def request_messages(self) -> None:
        """Grant the receiver's available credit to the owner, if messages may be available there."""
        should_grant = self._may_have_messages and self._may_grant and not self._peer.is_suspect
        if should_grant and self._fragment.can_deliver:
            self._grant_credit()

    @property
    def _may_grant(self) -> bool:
        return self._is_attached and not self.is_credit_granted and not self._pending_returns

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Ask for the available messages, then call `on_drained`, after at most 0.1 s."""
        if not self._peer.is_connected or self._peer.is_suspect:
            on_drained()
            return
        self._on_drained, self._is_final_grant = on_drained, False
        deadline_s = self._fragment.clock.monotonic_s() + DRAIN_TIMEOUT_S
        self._fragment.timers.call_at(deadline_s, lambda: self._end_drain(on_drained))
        if self._may_grant:
            self._grant_final_credit()

    def _grant_final_credit(self) -> None:
        self._is_final_grant = True
        if not self._grant_credit() and self._on_drained is not None:
            self._end_drain(self._on_drained)

    def _end_drain(self, on_drained: Callable[[], None]) -> None:
        if self._on_drained is on_drained:
            self._on_drained = None
            on_drained()

    def _grant_credit(self) -> bool:
        credit = self.consumer.available_credit
        if credit <= 0:
            return False
        self.consumer.reserve_credit(credit)
        self._reserved, self.is_credit_granted, self._may_have_messages = credit, True, False
        self._grant_count += 1
        self._received_count = 0
        grant_number = self._grant_count
        self._granted_s = self._fragment.clock.monotonic_s()
        self._peer.send_notice(GrantCredit(self._consumer_id, credit))
        self._fragment.timers.call_at(self._granted_s + self._timeout_s, lambda: self._expire(grant_number))
        return True

    def _expire(self, grant_number: int) -> None:
        is_open = self._consumer_id in self._peer.notice_handlers  # False after a detach, which released the credit
        if is_open and self.is_credit_granted and grant_number == self._grant_count and not self._is_expired:
            self._is_expired = True
            self._peer.mark_suspect()
            self._release_credit()
            self.consumer.request_messages()

    def _release_credit(self) -> None:
        reserved, self._reserved = self._reserved, 0
        if reserved:
            self.consumer.reserve_credit(-reserved)
        if self._on_drained is not None:
            self._end_drain(self._on_drained)

    # --- notices from the owner ---------------------------------------------------------------------------------------

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Deliver messages that arrived for the granted credit; return those that the receiver cannot accept."""
        count, consumer = len(deliveries), self.consumer
        self._received_count += count
        if self._is_expired or consumer.is_closed:
            self._return_messages(deliveries)
            return
        self._reserved -= count
        if not consumer.receive_and_delete:  # a receive-and-delete consumer releases its credit in `deliver`
            consumer.reserve_credit(-count)
        accepted = consumer.deliver(deliveries)
        if accepted and consumer.receive_and_delete:
            self._peer.send_notice(ConfirmDelivered(self._consumer_id, self._received_count - count + accepted))
        if accepted < count:
            self._is_expired = True  # later messages for this grant are returned as well
            self._release_credit()
            self._return_messages(deliveries[accepted:])

    def _return_messages(self, deliveries: list[Delivery]) -> None:
        """Return messages that were not delivered; their state and delivery count do not change."""
        tags = [tag for _, tag in deliveries]
        with suppress(ServiceBusError):  # if the owner is disconnected, it has released the locks
            if self.consumer.receive_and_delete:
                self._peer.send_request(
                    ReturnMessages(self._consumer_id, [int.from_bytes(tag) for tag in tags]), self._on_returned
                )
            else:
                self._fragment.settlement.release(self._fragment.lock_numbers(tags), self._on_returned)
            self._pending_returns += 1

    def _on_returned(self, _outcome: object) -> None:
        self._pending_returns -= 1
        if not self._may_grant:
            return
        if self._on_drained is None or self._is_final_grant:
            self.consumer.request_messages()
        else:
            self._grant_final_credit()

    def on_credit_drained(self) -> None:
        """Release unused credit after the owner has reported that there are no more messages."""
        self.is_credit_granted = self._is_expired = False
        took_s = self._fragment.clock.monotonic_s() - self._granted_s
        self._timeout_s = min(max(OWNER_TIMEOUT_S, 2 * took_s), MAX_TIMEOUT_S)
        unused, self._reserved = self._reserved, 0
        if unused:
            self.consumer.reserve_credit(-unused)
        if self._on_drained is None:
            self.consumer.request_messages()  # other fragments may have messages for the unused credit
        elif self._is_final_grant:
            self._end_drain(self._on_drained)
        elif self._may_grant:
            self._grant_final_credit()

    def on_messages_available(self) -> None:
        """Note that messages are available, and grant credit if possible."""
        self._may_have_messages = True
        self.request_messages()

    def on_session_granted(self, session_id: bytes, locked_until_ms: int) -> None:
        """Record the session that the owner has locked for the receiver."""
        assert self._on_granted is not None
        self.session_lock = session_lock = SessionLock(session_id, self.consumer, locked_until_ms)
        self._is_attached = self._may_have_messages = True
        self._on_granted(session_lock)

    def on_detached(self, error: ServiceBusError) -> None:
        """Detach the receiver with the owner's error."""
        self._close_after_detach()
        if isinstance(error, SessionLockLost):
            self.consumer.on_session_lock_lost(error)
        else:
            self.consumer.force_detach(error)

    def _close_after_detach(self) -> None:
        self._peer.notice_handlers.pop(self._consumer_id, None)
        self._peer.send_notice(Detach(self._consumer_id, self._received_count))
        self._is_attached = False
        if self.session_lock is not None:
            self.session_lock.has_ended = True
        self._on_closed()
        self._release_credit()

    def on_peer_lost(self) -> None:
        """Release the credit after the connection to the owner is lost; a session lock at the owner is lost as well."""
        self._is_attached = self.is_credit_granted = self._is_expired = False
        if self.session_lock is not None:
            self.on_detached(session_lock_lost_error(self.session_lock.session_id))
            return
        if self.consumer.receiver_identity.is_withholding:
            self.on_detached(
                StoreUnavailable(
                    "the broker process that withheld messages is disconnected: attach again, and repeat the request "
                    "to withhold them"
                )
            )
            return
        self._release_credit()
        self.consumer.request_messages()

    def on_peer_connected(self) -> None:
        """Attach the receiver again, because the owner has lost the receiver's state."""
        self._attach()
