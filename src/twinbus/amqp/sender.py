"""Senders: our end of a link on which we send.

Owns: our use of the peer's credit, and the cutting of messages into frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.delivery import OutgoingDelivery
from twinbus.amqp.errors import FrameTooLarge, LocalError
from twinbus.amqp.frames import HEADER_SIZE
from twinbus.amqp.hot import TransferWriter
from twinbus.amqp.link import MAX_TAG_BYTES, SERIAL_MASK, Link
from twinbus.amqp.outcomes import ACCEPTED
from twinbus.amqp.performatives import Flow, Transfer
from twinbus.amqp.states import Role, SenderSettleMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.amqp.composite import Composite
    from twinbus.amqp.session import Session

_TRANSFER_SIZE: Final = 100
"""A transfer frame takes less, its state and its payload aside."""


class Sender(Link):
    """Our end of a link on which we send."""

    role = Role.SENDER

    def __init__(self, session: Session, name: str, handle: int) -> None:
        """Made by the session."""
        super().__init__(session, name, handle)
        self.drain_requested = False
        """The peer wants what there is now, and the rest of its credit back: `send`, then `drained`."""
        self.peer_properties: dict[str, object] | None = None
        """The properties of the peer's last flow on this link."""
        self._writer = TransferWriter(session.channel, handle)
        self._next_tag = 0

    @property
    def sendable(self) -> int:
        """How many messages may be sent now: within the link's credit, the session's window and our own limits."""
        session = self.session
        if not self.is_attached:
            return 0
        return max(0, min(self.credit, session.sendable))

    def send(
        self,
        payload: bytes,
        tag: bytes | None = None,
        *,
        settled: bool | None = None,
        message_format: int = 0,
        state: Composite | None = None,
    ) -> OutgoingDelivery:
        """Send one encoded message. Frames that the session's window has no room for wait for it.

        `settled` is as the link's settle mode says where not given: True means that no outcome is asked for.
        """
        if self.credit <= 0 or not self.is_attached:
            raise LocalError(f"no credit to send on {self!r}")
        if state is not None:
            self._check_fits(state)
        if tag is None:
            tag = self._make_tag()
        elif len(tag) > MAX_TAG_BYTES:
            raise LocalError(f"a tag of {len(tag)} bytes; it may have {MAX_TAG_BYTES}")
        if settled is None:
            settled = self.snd_settle_mode == SenderSettleMode.SETTLED
        session = self.session
        delivery = OutgoingDelivery(self, session.ledger.take_id(), tag, settled)
        self.delivery_count = (self.delivery_count + 1) & SERIAL_MASK
        self.credit -= 1
        if not settled:
            session.ledger.add_outgoing(delivery)
        if state is None:
            head = self._writer.head(
                delivery.delivery_id, tag, message_format, settled=settled, more=False, payload_size=len(payload)
            )
            if len(head) + len(payload) <= session.max_frame_size:
                session.send_transfer(self, delivery.delivery_id, head, payload)
                return delivery
        self._send_in_pieces(delivery, payload, message_format, state)
        return delivery

    def _check_fits(self, state: Composite) -> None:
        """Each frame of a message has its state in it, and needs room for some of the message, too."""
        size, largest = len(state.encode()) + _TRANSFER_SIZE, self.session.max_frame_size
        if size >= largest:
            raise FrameTooLarge(f"{state.symbol} makes a transfer of {size} bytes; the peer takes {largest}")

    def _make_tag(self) -> bytes:
        self._next_tag = (self._next_tag + 1) & SERIAL_MASK
        return self._next_tag.to_bytes(4, "big")

    def _send_in_pieces(
        self, delivery: OutgoingDelivery, payload: bytes, message_format: int, state: Composite | None
    ) -> None:
        at = 0
        while True:
            first = at == 0
            transfer = Transfer(
                handle=self.handle,
                delivery_id=delivery.delivery_id,
                delivery_tag=delivery.tag if first else None,
                message_format=message_format if first else None,
                settled=delivery.settled,
                more=True,
                state=state,
            )
            room = self.session.max_frame_size - HEADER_SIZE - len(transfer.encode())
            piece = payload[at : at + room]
            at += len(piece)
            if at == len(payload):
                transfer.more = False
            head = self.session.frame_head(transfer.encode(), len(piece))
            self.session.send_transfer(self, delivery.delivery_id, head, piece)
            if at == len(payload):
                return

    def abort(self, delivery: OutgoingDelivery) -> bool:
        """Take back a message whose frames have not all left. False where they have."""
        session, delivery_id = self.session, delivery.delivery_id
        if not session.drop_waiting_frames(self, delivery_id):
            return False
        session.ledger.drop_outgoing(delivery)
        aborted = Transfer(
            handle=self.handle, delivery_id=delivery_id, delivery_tag=delivery.tag, settled=True, aborted=True
        )
        session.send_transfer(self, delivery_id, session.frame_head(aborted.encode(), 0), b"")
        return True

    def settle(
        self, deliveries: Sequence[OutgoingDelivery], state: Composite | None = ACCEPTED, *, settled: bool = True
    ) -> None:
        """Settle messages we sent: the confirmation that a receiver in mode `second` waits for."""
        self.session.ledger.dispose(Role.SENDER, deliveries, state, settled=settled)

    def drained(self) -> None:
        """Give back the credit that is left: there is nothing more to send now. Before `accept` this does nothing."""
        if not self.is_attached:
            return
        self.drain_requested = False
        self.delivery_count = (self.delivery_count + self.credit) & SERIAL_MASK
        self.credit = 0
        self.send_flow(drain=True)

    def receive_flow(self, flow: Flow) -> bool:
        """New credit, or a wish to drain."""
        if flow.link_credit is not None:
            # A peer that has not seen our attach yet does not know our count, which is then still the initial one.
            seen = flow.delivery_count if flow.delivery_count is not None else self.delivery_count
            on_the_way = (self.delivery_count - seen) & SERIAL_MASK
            self.credit = max(0, flow.link_credit - on_the_way)
        self.drain_requested = flow.drain
        self.peer_properties = flow.properties
        return True
