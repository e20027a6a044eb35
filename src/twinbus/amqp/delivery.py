"""One message on its way over a link, from either side.

Owns: the ids, the encoded bytes and the outcome of one delivery. Plain records, made by the hundred thousand: `sender`,
`receiver` and `ledger` fill and settle them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.sender import Sender

OVERHEAD_BYTES: Final = 256
"""What keeping a message costs beside its payload, about."""


class IncomingDelivery:
    """A message that has arrived in full."""

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
        """Made by the engine."""
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.payload = payload
        """The message's sections as they came; `message.Message` reads them."""
        self.settled = settled
        """Nothing more can be said of it: the sender settled it, or we have."""
        self.state = state
        """What the sender last said of it: a transactional state, or nothing."""
        self.answered = False
        """The program has said what became of it. For one that came settled it says so, too, though nothing is sent."""
        self.counted_bytes = len(payload) + OVERHEAD_BYTES
        """What it counts for in `connection.unanswered_bytes`."""

    def __repr__(self) -> str:
        return f"<IncomingDelivery {self.delivery_id} tag {self.tag.hex()}, {len(self.payload)} bytes>"


class OutgoingDelivery:
    """A message handed to a sender."""

    __slots__ = ("delivery_id", "link", "settled", "state", "tag")

    def __init__(self, link: Sender, tag: bytes, settled: bool) -> None:
        """Made by the engine."""
        self.link = link
        self.delivery_id: int | None = None
        """Given when it begins to leave; none while it waits for the session's window."""
        self.tag = tag
        self.settled = settled
        """Nothing more will be said of it. A message that was lost with its link never gets settled."""
        self.state: object = None
        """What the receiver last said of it."""

    def __repr__(self) -> str:
        return f"<OutgoingDelivery {self.delivery_id} tag {self.tag.hex()} state {self.state}>"
