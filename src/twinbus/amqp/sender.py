"""Senders: local ends of links on which we send messages.

Owns the use of the peer's credit. Messages that do not fit the session's window wait in the session's `send_queue`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from twinbus.amqp.codec.delivery_frames import TransferWriter
from twinbus.amqp.delivery import OutgoingDelivery
from twinbus.amqp.errors import FrameTooLarge, LocalError
from twinbus.amqp.link import MAX_TAG_BYTES, SERIAL_MASK, Link
from twinbus.amqp.outcomes import ACCEPTED
from twinbus.amqp.states import Role, SenderSettleMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.codec.performatives import Flow
    from twinbus.amqp.session import Session

_TRANSFER_SIZE: Final = 100
"""Upper bound for the size of a transfer frame without its state and payload."""


class Sender(Link):
    """Local end of a link on which we send messages."""

    role: ClassVar[bool] = Role.SENDER

    def __init__(self, session: Session, name: str, handle: int) -> None:
        """Create an unattached sender; only the session does this."""
        super().__init__(session, name, handle)
        self.drain_requested = False
        """True if the peer asked for a drain: `send` the available messages, then call `drained`."""
        self.ignores_credit = False
        """True if `send` works even without credit. Used for replies to requests, because some clients grant credit for
        replies only once."""
        self.waiting_count = 0
        """Number of messages in the send queue of which no frame was sent, because the session's window is closed."""
        self._is_drained = False
        self._writer = TransferWriter(session.channel, handle)
        self._next_tag = 0

    @property
    def sendable(self) -> int:
        """Number of single-frame messages that can be sent now, within credit, the session's window and our limits.

        Larger messages may be sent as well. Frames beyond the window wait, and `sendable` is 0 until these frames are
        sent.
        """
        session = self.session
        if not self.is_attached or not session.send_queue.is_open:
            return 0
        return max(0, min(self.credit, session.send_queue.window, session.unsettled_deliveries.room))

    def send(
        self,
        payload: bytes,
        tag: bytes | None = None,
        *,
        settled: bool | None = None,
        message_format: int = 0,
        state: Composite | None = None,
    ) -> OutgoingDelivery:
        """Send an encoded message, or raise LocalError if there is no credit.

        `settled` defaults to the link's settle mode; True means that no outcome is expected.
        """
        if not self.is_attached or (self.credit <= 0 and not self.ignores_credit):
            raise LocalError(f"no credit to send on {self!r}")
        if tag is None:
            tag = self._make_tag()
        elif len(tag) > MAX_TAG_BYTES:
            raise LocalError(f"the delivery tag has {len(tag)} bytes; the limit is {MAX_TAG_BYTES}")
        if message_format and not 0 < message_format <= SERIAL_MASK:
            raise LocalError(f"message format {message_format} is not an unsigned 32-bit number")
        if settled is None:
            settled = self.snd_settle_mode == SenderSettleMode.SETTLED
        session = self.session
        delivery = OutgoingDelivery(self, tag, settled)
        if state is not None:
            self._check_fits(state)
        elif session.send_queue.is_open and len(payload) + _TRANSFER_SIZE <= session.max_frame_size:
            self._use_credit()
            delivery_id = self.assign_delivery_id(delivery)
            head = self._writer.head(
                delivery_id, tag, message_format, settled=settled, more=False, payload_size=len(payload)
            )
            session.send_queue.write_frame(head, payload)
            return delivery
        self._use_credit()
        session.send_queue.enqueue(self, delivery, payload, message_format, state)
        return delivery

    def send_many(self, messages: Sequence[tuple[bytes, bytes]], *, settled: bool) -> None:
        """Send (payload, tag) pairs as `send` does, but with fewer checks per message."""
        session = self.session
        largest = session.max_frame_size - _TRANSFER_SIZE
        if len(messages) > self.sendable or max([len(payload) for payload, _ in messages], default=0) > largest:
            for payload, tag in messages:
                self.send(payload, tag, settled=settled)
            return
        unsettled, write_head = session.unsettled_deliveries, self._writer.head
        chunks = []
        for payload, tag in messages:
            delivery_id = unsettled.next_delivery_id()
            if not settled:
                delivery = OutgoingDelivery(self, tag, settled)
                delivery.delivery_id = delivery_id
                unsettled.add_outgoing(delivery_id, delivery)
            chunks.append(write_head(delivery_id, tag, 0, settled=settled, more=False, payload_size=len(payload)))
            chunks.append(payload)
        self.credit -= len(messages)
        self.delivery_count = (self.delivery_count + len(messages)) & SERIAL_MASK
        session.send_queue.write_frames(chunks)

    def _use_credit(self) -> None:
        if self.credit > 0:
            self.credit -= 1

    def assign_delivery_id(self, delivery: OutgoingDelivery) -> int:
        """Assign a delivery id to a message that is being sent, and track the message unless it is settled."""
        unsettled = self.session.unsettled_deliveries
        delivery_id = delivery.delivery_id = unsettled.next_delivery_id()
        self.delivery_count = (self.delivery_count + 1) & SERIAL_MASK
        if not delivery.settled:
            unsettled.add_outgoing(delivery_id, delivery)
        return delivery_id

    def _check_fits(self, state: Composite) -> None:
        """Check that a frame with `state` has room for payload, because every frame of a message carries the state."""
        size, largest = len(state.encode()) + _TRANSFER_SIZE, self.session.max_frame_size
        if size >= largest:
            raise FrameTooLarge(f"{state.symbol} needs a transfer frame of {size} bytes; the peer accepts {largest}")

    def _make_tag(self) -> bytes:
        self._next_tag = (self._next_tag + 1) & SERIAL_MASK
        return self._next_tag.to_bytes(4, "big")

    def abort(self, delivery: OutgoingDelivery) -> bool:
        """Take back a message that was not sent completely; return False if it was sent completely."""
        if not self.session.send_queue.withdraw(delivery):
            return False
        self.session.unsettled_deliveries.drop_outgoing(delivery)
        self.session.send_queue.send_queued()
        return True

    def settle(
        self, deliveries: Sequence[OutgoingDelivery], state: Composite | None = ACCEPTED, *, settled: bool = True
    ) -> None:
        """Settle messages we sent, as a receiver in receiver-settle-mode second expects."""
        self.session.unsettled_deliveries.send_outcome(Role.SENDER, deliveries, state, settled=settled)

    def unsettled(self) -> list[OutgoingDelivery]:
        """Return the messages that were sent and not settled by either end, in order."""
        outgoing = self.session.unsettled_deliveries.outgoing
        return [outgoing[delivery_id] for delivery_id in sorted(self.unsettled_ids)]

    def drained(self) -> None:
        """Give back the remaining credit after a drain request. Does nothing before the link is attached.

        Messages that wait for the session's window are sent first.
        """
        if not self.is_attached:
            return
        if self.session.send_queue.has_queued(self):
            self._is_drained = True
            return
        self._is_drained = self.drain_requested = False
        self.delivery_count = (self.delivery_count + self.credit) & SERIAL_MASK
        self.credit = 0
        self.send_flow(drain=True)

    def on_queued_sent(self) -> None:
        """Complete a pending drain after a queued message was sent."""
        if self._is_drained:
            self.drained()

    def receive_flow(self, flow: Flow) -> bool:
        """Apply the peer's credit and drain flag."""
        if flow.link_credit is not None:
            # A peer that has not seen our attach counts from our initial delivery count, which is 0.
            in_transit = (self.delivery_count - (flow.delivery_count or 0)) & SERIAL_MASK
            self.credit = max(0, flow.link_credit - in_transit - self.waiting_count)
        self.drain_requested = flow.drain
        return True
