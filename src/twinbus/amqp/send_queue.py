"""Outgoing transfers in a session, within the window that the peer has opened.

Owns the outgoing window and the messages that wait for the window. A message gets its delivery id only when its first
frame is sent. A message that is withdrawn earlier, or lost with its link, therefore leaves no gap in the delivery ids.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from twinbus.amqp.codec.frames import DATA_OFFSET, FRAME_HEADER, HEADER_SIZE
from twinbus.amqp.codec.performatives import Transfer
from twinbus.amqp.link import SERIAL_HALF, SERIAL_MASK

if TYPE_CHECKING:
    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.codec.performatives import Flow
    from twinbus.amqp.delivery import OutgoingDelivery
    from twinbus.amqp.link import Link
    from twinbus.amqp.sender import Sender
    from twinbus.amqp.session import Session


class _QueuedTransfer:
    """Queued message, and how much of it has been sent."""

    __slots__ = ("delivery", "is_aborted", "link", "message_format", "payload", "sent_bytes", "state")

    def __init__(
        self, link: Sender, delivery: OutgoingDelivery, payload: bytes, message_format: int, state: Composite | None
    ) -> None:
        self.link = link
        self.delivery = delivery
        self.payload = payload
        self.message_format = message_format
        self.state = state
        self.sent_bytes = 0
        self.is_aborted = False

    @property
    def is_started(self) -> bool:
        """True if at least one frame of the message was sent."""
        return self.delivery.delivery_id is not None


class SendQueue:
    """Queue of outgoing messages in a session."""

    def __init__(self, session: Session) -> None:
        """Create an empty queue; only the session does this."""
        self.window = 0
        """Number of frames that the peer accepts until its next flow."""
        self.next_id = 0
        """Transfer id of the next frame."""
        self._session = session
        self._waiting: deque[_QueuedTransfer] = deque()

    @property
    def is_open(self) -> bool:
        """True if a message can be sent without waiting."""
        return self.window > 0 and not self._waiting

    @property
    def waiting_bytes(self) -> int:
        """Unsent bytes of the messages that wait for the window."""
        return sum(len(queued.payload) - queued.sent_bytes for queued in self._waiting)

    def receive_flow(self, flow: Flow) -> bool:
        """Apply the window in the peer's flow; return True if the window was closed and is open now."""
        # A peer that has not seen our begin sends no next-incoming-id; our first transfer id is 0.
        in_transit = (self.next_id - (flow.next_incoming_id or 0)) & SERIAL_MASK
        was_closed = self.window <= 0
        self.window = max(0, flow.incoming_window - (in_transit if in_transit < SERIAL_HALF else 0))
        self.send_queued()
        return was_closed and self.window > 0

    def write_frame(self, head: bytes, payload: bytes) -> None:
        """Write one transfer frame."""
        self.window -= 1
        self.next_id = (self.next_id + 1) & SERIAL_MASK
        self._session.connection.write(head, payload)

    def write_frames(self, chunks: list[bytes]) -> None:
        """Write several transfer frames; `chunks` alternates between frame heads and payloads."""
        count = len(chunks) // 2
        self.window -= count
        self.next_id = (self.next_id + count) & SERIAL_MASK
        self._session.connection.write(*chunks)

    def enqueue(
        self, link: Sender, delivery: OutgoingDelivery, payload: bytes, message_format: int, state: Composite | None
    ) -> None:
        """Send a message that needs several frames, has to wait for the window, or has a state."""
        link.waiting_count += 1
        self._waiting.append(_QueuedTransfer(link, delivery, payload, message_format, state))
        self.send_queued()

    def send_queued(self) -> None:
        """Send waiting messages as far as the window allows."""
        waiting = self._waiting
        while waiting and self.window > 0:
            queued = waiting[0]
            if not queued.is_started:
                queued.link.waiting_count -= 1
                queued.link.assign_delivery_id(queued.delivery)
            if self._send_next_frame(queued):
                waiting.popleft()
                queued.link.on_queued_sent()

    def _send_next_frame(self, queued: _QueuedTransfer) -> bool:
        """Send the next frame of a message; return True if it was the message's last frame."""
        session, delivery, is_first = self._session, queued.delivery, queued.sent_bytes == 0
        # Only the first frame has a delivery id and tag: pyamqp treats any frame that has them as a first frame.
        transfer = Transfer(
            handle=queued.link.handle,
            delivery_id=delivery.delivery_id if is_first else None,
            delivery_tag=delivery.tag if is_first else None,
            message_format=queued.message_format if is_first else None,
            settled=delivery.settled,
            more=True,
            state=queued.state,
            aborted=queued.is_aborted,
        )
        room = session.max_frame_size - HEADER_SIZE - len(transfer.encode())
        piece = b"" if queued.is_aborted else queued.payload[queued.sent_bytes : queued.sent_bytes + room]
        queued.sent_bytes += len(piece)
        is_last = queued.is_aborted or queued.sent_bytes == len(queued.payload)
        transfer.more = not is_last
        body = transfer.encode()
        head = FRAME_HEADER.pack(HEADER_SIZE + len(body) + len(piece), DATA_OFFSET, 0, session.channel) + body
        self.write_frame(head, piece)
        return is_last

    def withdraw(self, delivery: OutgoingDelivery) -> bool:
        """Withdraw a message, aborting it if some frames were sent; return False if it was sent completely."""
        for queued in self._waiting:
            if queued.delivery is delivery and not queued.is_aborted:
                if queued.is_started:
                    queued.is_aborted = True
                    delivery.settled = True
                else:
                    self._waiting.remove(queued)
                    queued.link.waiting_count -= 1
                    queued.link.credit += 1
                return True
        return False

    def drop(self, link: Link) -> list[OutgoingDelivery]:
        """Drop the queued messages of a link that ends; return messages of which no frame was sent."""
        if not self._waiting:
            return []
        dropped = [queued for queued in self._waiting if queued.link is link]
        self._waiting = deque(queued for queued in self._waiting if queued.link is not link)
        return [queued.delivery for queued in dropped if not queued.is_started]

    def has_queued(self, link: Sender) -> bool:
        """Return whether the link has queued messages."""
        return any(queued.link is link for queued in self._waiting)

    def clear(self) -> list[OutgoingDelivery]:
        """Drop all queued messages; return messages of which no frame was sent."""
        dropped = [queued.delivery for queued in self._waiting if not queued.is_started]
        self._waiting.clear()
        return dropped
