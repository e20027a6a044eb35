"""Deliveries: messages sent or received on a link.

Owns the ids, the encoded bytes and the outcome of one delivery. Deliveries are plain records, created at a high rate;
`sender`, `receiver` and `unsettled_deliveries` fill and settle them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.sender import Sender

OVERHEAD_BYTES: Final = 256
"""Approximate memory cost of a message in addition to its payload."""


class IncomingDelivery:
    """Message that was received completely."""

    __slots__ = (
        "answered",
        "counted_bytes",
        "delivery_id",
        "link",
        "message_format",
        "payload",
        "settled",
        "state",
        "tag",
    )

    def __init__(
        self,
        link: Receiver,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        payload: bytes,
        settled: bool,
        state: object,
    ) -> None:
        """Create a delivery; only the engine does this."""
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.payload = payload
        """Encoded sections of the message; `message.Message` decodes them."""
        self.settled = settled
        """True if the sender or we have settled the delivery, so that no outcome can be sent anymore."""
        self.state = state
        """Latest delivery state from the sender: a transactional state, or None."""
        self.answered = False
        """True if the program has settled the delivery. The program must settle even deliveries that the sender has
        settled."""
        self.counted_bytes = len(payload) + OVERHEAD_BYTES
        """Size that this delivery adds to `connection.unanswered_bytes`."""

    def __repr__(self) -> str:
        return f"<IncomingDelivery {self.delivery_id} tag {self.tag.hex()}, {len(self.payload)} bytes>"


class OutgoingDelivery:
    """Message that was passed to a sender."""

    __slots__ = ("delivery_id", "link", "settled", "state", "tag")

    def __init__(self, link: Sender, tag: bytes, settled: bool) -> None:
        """Create a delivery; only the engine does this."""
        self.link = link
        self.delivery_id: int | None = None
        """Delivery id, assigned when the first frame is sent; None while the message waits for the session's window."""
        self.tag = tag
        self.settled = settled
        """True if no further outcome will arrive. A message that was lost with its link is never settled."""
        self.state: object = None
        """Latest delivery state from the receiver."""

    def __repr__(self) -> str:
        return f"<OutgoingDelivery {self.delivery_id} tag {self.tag.hex()} state {self.state}>"
