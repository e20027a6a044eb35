"""A loan: the credit that a receiver lends to one fragment of another process.

A receiver never lends more than it has: what it lends is reserved until messages come for it, or the owner says that
there were no more (`Drained`). Then the owner says when there is something (`Ready`), and the receiver claims again. So
no fragment locks messages for which there is no room, however many fragments the receiver takes from.

Owns: what one receiver has lent to one fragment, and whether there may be something for it. An owner that is silent
does not keep what it was lent: that is written off, and what comes for it later is given back, uncounted. One that was
late, because its disk is slow, or it has much to do, is given more time for the next: else nothing would ever come in
time.
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
"""How long credit is lent to an owner that was late before, at most: else twice as long as it took then. An owner that
was in time is lent credit for `PATIENCE_S`."""


class CreditReservation:
    """One receiver at one fragment of another process. To the owner's side it is a guest."""

    def __init__(
        self,
        fragment: RemoteFragment,
        consumer: GatewayConsumer,
        on_closed: Callable[[], None],
        *,
        session_id: bytes | None = None,
        on_granted: Callable[[SessionLock], None] | None = None,
    ) -> None:
        """`left` is called when the owner ends it. Where there are sessions `on_granted` hears of the one it has."""
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
        """Messages that came for the last claim."""
        self._pending_returns = 0
        """What was given back and may not be free yet: what follows it must not be given before."""
        self._is_expired = False
        self._on_drained: Callable[[], None] | None = None
        self._is_final_grant = False
        """Of a drain: what was there when it began is asked for."""
        self._peer.notice_handlers[self._consumer_id] = self
        self._attach()

    # --- the way to the owner -----------------------------------------------------------------------------------------

    def _attach(self) -> None:
        if self._peer.is_connected:
            self._peer.send_request(self._attach_request(), self._on_attached)

    def _attach_request(self) -> Request:
        card = self.consumer.receiver_identity
        link = card.link_id or self._consumer_id
        return AttachConsumer(
            self._consumer_id,
            self._fragment.address,
            link,
            card.client_id,
            self.consumer.receive_and_delete,
            self._session_id,
            card.epoch,
            card.only_if_free,
        )

    def _on_attached(self, reply: Reply | ServiceBusError) -> None:
        if self._consumer_id not in self._peer.notice_handlers:
            return
        if not isinstance(reply, ServiceBusError):
            self.consumer.on_admitted()
            if self._on_granted is None:
                self._start()
        elif self._peer.is_connected:
            self.on_detached(reply)  # else it is opened when the owner is there again

    def _start(self) -> None:
        self._is_attached = self._may_have_messages = True
        if self._on_drained is not None:
            self._grant_final_credit()
        else:
            self.consumer.request_messages()

    def close(self) -> None:
        """The receiver has gone, or does not want anything of this fragment any more."""
        self._is_attached = False
        if self._peer.notice_handlers.pop(self._consumer_id, None) is not None:
            self._peer.send_notice(Detach(self._consumer_id, self._received_count))
            self._release_credit()

    def reattach(self) -> None:
        """As if it had just come."""
        self.close()
        self.is_credit_granted = self._is_expired = False
        self._consumer_id = self._peer.next_id()
        self._peer.notice_handlers[self._consumer_id] = self
        self._attach()

    # --- the receiver -------------------------------------------------------------------------------------------------

    def request_messages(self) -> None:
        """The receiver has room."""
        is_wanted = self._may_have_messages and self._may_grant and not self._peer.is_suspect
        if is_wanted and self._fragment.can_deliver:
            self._grant_credit()

    @property
    def _may_grant(self) -> bool:
        return self._is_attached and not self.is_credit_granted and not self._pending_returns

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Ask for what there is now; `drained` is called when that was all, or after a tenth of a second."""
        if not self._peer.is_connected or self._peer.is_suspect:
            on_drained()
            return
        self._on_drained, self._is_final_grant = on_drained, False
        when_s = self._fragment.clock.monotonic_s() + DRAIN_TIMEOUT_S
        self._fragment.timers.call_at(when_s, lambda: self._end_drain(on_drained))
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
        room = self.consumer.available_credit
        if room <= 0:
            return False
        self.consumer.reserve_credit(room)
        self._reserved, self.is_credit_granted, self._may_have_messages = room, True, False
        self._grant_count += 1
        self._received_count = 0
        claim = self._grant_count
        self._granted_s = self._fragment.clock.monotonic_s()
        self._peer.send_notice(GrantCredit(self._consumer_id, room))
        self._fragment.timers.call_at(self._granted_s + self._timeout_s, lambda: self._expire(claim))
        return True

    def _expire(self, grant_number: int) -> None:
        is_guest = self._consumer_id in self._peer.notice_handlers  # else it has gone, and nothing is lent any more
        if is_guest and self.is_credit_granted and grant_number == self._grant_count and not self._is_expired:
            self._is_expired = True
            self._peer.mark_suspect()
            self._release_credit()
            self.consumer.request_messages()

    def _release_credit(self) -> None:
        lent, self._reserved = self._reserved, 0
        if lent:
            self.consumer.reserve_credit(-lent)
        if self._on_drained is not None:
            self._end_drain(self._on_drained)

    # --- the owner says these -----------------------------------------------------------------------------------------

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Messages for what was lent."""
        count, consumer = len(deliveries), self.consumer
        self._received_count += count
        if self._is_expired or consumer.is_closed:
            self._return_messages(deliveries)
            return
        self._reserved -= count
        if not consumer.receive_and_delete:  # else it frees what it had reserved itself
            consumer.reserve_credit(-count)
        taken = consumer.deliver(deliveries)
        if taken and consumer.receive_and_delete:
            self._peer.send_notice(ConfirmDelivered(self._consumer_id, self._received_count - count + taken))
        if taken < count:
            self._is_expired = True  # all that comes for this claim later is given back as well
            self._release_credit()
            self._return_messages(deliveries[taken:])

    def _return_messages(self, deliveries: list[Delivery]) -> None:
        """They have no receiver: they are free as they were."""
        tags = [tag for _, tag in deliveries]
        with suppress(ServiceBusError):  # its owner has gone, and the locks with it
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
        """There is no more for what was lent."""
        self.is_credit_granted = self._is_expired = False
        took_s = self._fragment.clock.monotonic_s() - self._granted_s
        self._timeout_s = min(max(OWNER_TIMEOUT_S, 2 * took_s), MAX_TIMEOUT_S)
        left, self._reserved = self._reserved, 0
        if left:
            self.consumer.reserve_credit(-left)
        if self._on_drained is None:
            self.consumer.request_messages()  # other fragments may have what this one has not
        elif self._is_final_grant:
            self._end_drain(self._on_drained)
        elif self._may_grant:
            self._grant_final_credit()

    def on_messages_available(self) -> None:
        """There is something."""
        self._may_have_messages = True
        self.request_messages()

    def on_session_granted(self, session_id: bytes, locked_until_ms: int) -> None:
        """The receiver has a session."""
        assert self._on_granted is not None
        self.session_lock = hold = SessionLock(session_id, self.consumer, locked_until_ms)
        self._is_attached = self._may_have_messages = True
        self._on_granted(hold)

    def on_detached(self, error: ServiceBusError) -> None:
        """The receiver gets nothing any more."""
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
        """What was lent to it is not any more; a session that it gave is lost."""
        self._is_attached = self.is_credit_granted = self._is_expired = False
        if self.session_lock is not None:
            self.on_detached(session_lock_lost_error(self.session_lock.session_id))
            return
        if self.consumer.receiver_identity.is_withholding:
            self.on_detached(
                StoreUnavailable("the process that withheld messages is gone: attach again, and say which to withhold")
            )
            return
        self._release_credit()
        self.consumer.request_messages()

    def on_peer_connected(self) -> None:
        """It knows nothing of the receiver."""
        self._attach()
