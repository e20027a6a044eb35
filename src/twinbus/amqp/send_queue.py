"""What a session sends, as far as the peer's window lets it.

Owns: the window the peer has opened, and the messages that wait for it. A message that waits has neither id nor frames
yet: it gets both as it leaves, so that one that is taken back, or lost with its link, leaves no gap behind.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from twinbus.amqp.frames import DATA_OFFSET, FRAME_HEADER, HEADER_SIZE
from twinbus.amqp.link import SERIAL_HALF, SERIAL_MASK
from twinbus.amqp.performatives import Transfer

if TYPE_CHECKING:
    from twinbus.amqp.composite import Composite
    from twinbus.amqp.delivery import OutgoingDelivery
    from twinbus.amqp.link import Link
    from twinbus.amqp.performatives import Flow
    from twinbus.amqp.sender import Sender
    from twinbus.amqp.session import Session


class _QueuedTransfer:
    """A message on its way out, and how much of it has left."""

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
        """Some of it has."""
        return self.delivery.delivery_id is not None


class SendQueue:
    """The way out of a session."""

    def __init__(self, session: Session) -> None:
        """Made by the session."""
        self.window = 0
        """Frames that the peer takes before it says more."""
        self.next_id = 0
        """Of the next transfer frame."""
        self._session = session
        self._waiting: deque[_QueuedTransfer] = deque()

    @property
    def is_open(self) -> bool:
        """What is sent now leaves now."""
        return self.window > 0 and not self._waiting

    @property
    def waiting_bytes(self) -> int:
        """Of messages that wait for the window."""
        return sum(len(parcel.payload) - parcel.sent_bytes for parcel in self._waiting)

    def receive_flow(self, flow: Flow) -> bool:
        """The peer's account of its window: True where it was closed and is open now."""
        # A peer that has not seen our begin counts from its beginning, which is 0.
        on_the_way = (self.next_id - (flow.next_incoming_id or 0)) & SERIAL_MASK
        was_closed = self.window <= 0
        self.window = max(0, flow.incoming_window - (on_the_way if on_the_way < SERIAL_HALF else 0))
        self.send_queued()
        return was_closed and self.window > 0

    def write_frame(self, head: bytes, payload: bytes) -> None:
        """Send one transfer frame."""
        self.window -= 1
        self.next_id = (self.next_id + 1) & SERIAL_MASK
        self._session.connection.write(head, payload)

    def write_frames(self, chunks: list[bytes]) -> None:
        """Send several, each given as its head and its payload."""
        count = len(chunks) // 2
        self.window -= count
        self.next_id = (self.next_id + count) & SERIAL_MASK
        self._session.connection.write(*chunks)

    def enqueue(
        self, link: Sender, delivery: OutgoingDelivery, payload: bytes, message_format: int, state: Composite | None
    ) -> None:
        """Send a message that takes several frames, or has to wait, or has a state."""
        link.waiting_count += 1
        self._waiting.append(_QueuedTransfer(link, delivery, payload, message_format, state))
        self.send_queued()

    def send_queued(self) -> None:
        """Send what waits, as far as the window goes."""
        waiting = self._waiting
        while waiting and self.window > 0:
            parcel = waiting[0]
            if not parcel.is_started:
                parcel.link.waiting_count -= 1
                parcel.link.assign_delivery_id(parcel.delivery)
            if self._send_next_frame(parcel):
                waiting.popleft()
                parcel.link.on_queued_sent()

    def _send_next_frame(self, queued: _QueuedTransfer) -> bool:
        """Send the next frame of a message: True if it was the last."""
        session, delivery, is_first = self._session, queued.delivery, queued.sent_bytes == 0
        # Only the first frame says which delivery it is: pyamqp takes any frame that does for the first.
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
        """Take a message back: False if all of it has left already. What has left of it is aborted."""
        for parcel in self._waiting:
            if parcel.delivery is delivery and not parcel.is_aborted:
                if parcel.is_started:
                    parcel.is_aborted = True
                    delivery.settled = True
                else:
                    self._waiting.remove(parcel)
                    parcel.link.waiting_count -= 1
                    parcel.link.credit += 1
                return True
        return False

    def drop(self, link: Link) -> list[OutgoingDelivery]:
        """Forget what waits on a link that goes away: the messages of which nothing has left."""
        if not self._waiting:
            return []
        dropped = [parcel for parcel in self._waiting if parcel.link is link]
        self._waiting = deque(parcel for parcel in self._waiting if parcel.link is not link)
        return [parcel.delivery for parcel in dropped if not parcel.is_started]

    def has_queued(self, link: Sender) -> bool:
        """Something of a link's has not left."""
        return any(parcel.link is link for parcel in self._waiting)

    def clear(self) -> list[OutgoingDelivery]:
        """Forget everything: the messages of which nothing has left."""
        dropped = [parcel.delivery for parcel in self._waiting if not parcel.is_started]
        self._waiting.clear()
        return dropped
