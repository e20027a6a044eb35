"""Senders: our end of a link on which we send.

Owns: our use of the peer's credit. What the session's window has no room for waits in its `outbox`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from twinbus.amqp.delivery import OutgoingDelivery
from twinbus.amqp.delivery_frames import TransferWriter
from twinbus.amqp.errors import FrameTooLarge, LocalError
from twinbus.amqp.link import MAX_TAG_BYTES, SERIAL_MASK, Link
from twinbus.amqp.outcomes import ACCEPTED
from twinbus.amqp.states import Role, SenderSettleMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.amqp.composite import Composite
    from twinbus.amqp.performatives import Flow
    from twinbus.amqp.session import Session

_TRANSFER_SIZE: Final = 100
"""A transfer frame takes less, its state and its payload aside."""


class Sender(Link):
    """Our end of a link on which we send."""

    role: ClassVar[bool] = Role.SENDER

    def __init__(self, session: Session, name: str, handle: int) -> None:
        """Made by the session."""
        super().__init__(session, name, handle)
        self.drain_requested = False
        """The peer wants what there is now, and the rest of its credit back: `send`, then `drained`."""
        self.ignores_credit = False
        """Send also without credit: for answers to requests, whose receivers grant some once and never again."""
        self.waiting_count = 0
        """Messages that were sent and have not begun to leave: the session's window is closed."""
        self._is_drained = False
        self._writer = TransferWriter(session.channel, handle)
        self._next_tag = 0

    @property
    def sendable(self) -> int:
        """How many messages of one frame may be sent now: within credit, the session's window and our own limits.

        Larger ones may be sent, too: what the window has no room for waits, and this is 0 until it has left.
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
        """Send one encoded message; LocalError without credit for it.

        `settled` is as the link's settle mode says where not given: True means that no outcome is asked for.
        """
        if not self.is_attached or (self.credit <= 0 and not self.ignores_credit):
            raise LocalError(f"no credit to send on {self!r}")
        if tag is None:
            tag = self._make_tag()
        elif len(tag) > MAX_TAG_BYTES:
            raise LocalError(f"a tag of {len(tag)} bytes; it may have {MAX_TAG_BYTES}")
        if message_format and not 0 < message_format <= SERIAL_MASK:
            raise LocalError(f"a message format of {message_format}; it has 32 bits")
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
        """Send messages, each with its tag: as `send` for each of them, with fewer questions asked for each."""
        session = self.session
        largest = session.max_frame_size - _TRANSFER_SIZE
        if len(messages) > self.sendable or max([len(payload) for payload, _ in messages], default=0) > largest:
            for payload, tag in messages:
                self.send(payload, tag, settled=settled)
            return
        ledger, write_head = session.unsettled_deliveries, self._writer.head
        chunks = []
        for payload, tag in messages:
            delivery_id = ledger.next_delivery_id()
            if not settled:
                delivery = OutgoingDelivery(self, tag, settled)
                delivery.delivery_id = delivery_id
                ledger.add_outgoing(delivery_id, delivery)
            chunks.append(write_head(delivery_id, tag, 0, settled=settled, more=False, payload_size=len(payload)))
            chunks.append(payload)
        self.credit -= len(messages)
        self.delivery_count = (self.delivery_count + len(messages)) & SERIAL_MASK
        session.send_queue.write_frames(chunks)

    def _use_credit(self) -> None:
        if self.credit > 0:
            self.credit -= 1

    def assign_delivery_id(self, delivery: OutgoingDelivery) -> int:
        """A message leaves: it gets its id, and counts."""
        ledger = self.session.unsettled_deliveries
        delivery_id = delivery.delivery_id = ledger.next_delivery_id()
        self.delivery_count = (self.delivery_count + 1) & SERIAL_MASK
        if not delivery.settled:
            ledger.add_outgoing(delivery_id, delivery)
        return delivery_id

    def _check_fits(self, state: Composite) -> None:
        """Each frame of a message has its state in it, and needs room for some of the message, too."""
        size, largest = len(state.encode()) + _TRANSFER_SIZE, self.session.max_frame_size
        if size >= largest:
            raise FrameTooLarge(f"{state.symbol} makes a transfer of {size} bytes; the peer takes {largest}")

    def _make_tag(self) -> bytes:
        self._next_tag = (self._next_tag + 1) & SERIAL_MASK
        return self._next_tag.to_bytes(4, "big")

    def abort(self, delivery: OutgoingDelivery) -> bool:
        """Take back a message that has not left, or not all of it. False where it has."""
        if not self.session.send_queue.withdraw(delivery):
            return False
        self.session.unsettled_deliveries.drop_outgoing(delivery)
        self.session.send_queue.send_queued()
        return True

    def settle(
        self, deliveries: Sequence[OutgoingDelivery], state: Composite | None = ACCEPTED, *, settled: bool = True
    ) -> None:
        """Settle messages we sent: the confirmation that a receiver in mode `second` waits for."""
        self.session.unsettled_deliveries.send_outcome(Role.SENDER, deliveries, state, settled=settled)

    def unsettled(self) -> list[OutgoingDelivery]:
        """What was sent and neither side has settled, in order."""
        outgoing = self.session.unsettled_deliveries.outgoing
        return [outgoing[delivery_id] for delivery_id in sorted(self.unsettled_ids)]

    def drained(self) -> None:
        """Give back the credit that is left: there is nothing more to send now. Before `accept` this does nothing.

        What was sent and waits for the session's window leaves first.
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
        """A message that waited has left."""
        if self._is_drained:
            self.drained()

    def receive_flow(self, flow: Flow) -> bool:
        """New credit, or a wish to drain."""
        if flow.link_credit is not None:
            # A peer that has not seen our attach counts from our initial delivery count, which is 0.
            on_the_way = (self.delivery_count - (flow.delivery_count or 0)) & SERIAL_MASK
            self.credit = max(0, flow.link_credit - on_the_way - self.waiting_count)
        self.drain_requested = flow.drain
        return True
