"""Receivers: local ends of links on which we receive messages.

Owns the credit granted to the peer, and the assembly of messages from frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from twinbus.amqp.codec.performatives import Attach, Error, Flow
from twinbus.amqp.delivery import IncomingDelivery
from twinbus.amqp.errors import (
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    TRANSFER_LIMIT_EXCEEDED,
    LinkViolation,
    SessionViolation,
)
from twinbus.amqp.link import MAX_TAG_BYTES, SERIAL_HALF, SERIAL_MASK, Link
from twinbus.amqp.outcomes import ACCEPTED, Rejected
from twinbus.amqp.states import LinkState, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.codec.delivery_frames import TransferTail
    from twinbus.amqp.session import Session


class _Partial:
    """Message whose frames are still arriving. If the message is too large, only its size is kept."""

    __slots__ = ("data", "delivery_id", "message_format", "settled", "size", "state", "tag")

    def __init__(self, delivery_id: int, tag: bytes, message_format: int) -> None:
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.data = bytearray()
        self.size = 0
        """Number of bytes received so far, including discarded bytes."""
        self.settled = False
        self.state: object = None


class Receiver(Link):
    """Local end of a link on which we receive messages."""

    role: ClassVar[bool] = Role.RECEIVER

    def __init__(self, session: Session, name: str, handle: int) -> None:
        """Create an unattached receiver; only the session does this."""
        super().__init__(session, name, handle)
        self.available = 0
        """Number of messages that the peer reports as available."""
        self.max_message_size = session.limits.max_message_size
        self._window = 0
        self._max_delivery_count = 0
        """Delivery count up to which the peer may send. A smaller grant does not lower this count: messages may be in
        transit."""
        self._partial: _Partial | None = None
        self._enforce_credit = session.limits.enforce_credit
        self._unsettled_deliveries = session.unsettled_deliveries

    def attach(self, attach: Attach) -> None:
        """Send our attach. From now on, enforce the maximum message size in the attach."""
        super().attach(attach)
        if attach.max_message_size:
            self.max_message_size = attach.max_message_size

    def grant(self, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        """Grant the peer credit for `credit` messages, replacing the remaining credit from earlier grants.

        With `drain`, the peer sends its available messages and gives back the remaining credit; a `Drained` event
        follows.
        """
        if self.is_over:
            return
        self.credit = credit
        ceiling = (self.delivery_count + credit) & SERIAL_MASK
        if (ceiling - self._max_delivery_count) & SERIAL_MASK < SERIAL_HALF:
            self._max_delivery_count = ceiling
        self.is_draining = drain
        self.send_flow(echo=echo)

    def keep_credit(self, window: int) -> None:
        """Keep at most `window` messages in transit or unanswered; grant more credit as the program answers them."""
        self._window = window
        self.grant(max(0, window - self.unanswered_count))

    def stop_replenishing(self) -> None:
        """Stop granting new credit automatically; this ends `keep_credit`."""
        self._window = 0

    def drain(self) -> bool:
        """Ask the peer to use up or give back its credit; `Drained` follows. Return False if there is no credit."""
        if not self.credit or self.is_over:
            return False
        self.grant(self.credit, drain=True)
        return True

    def settle(
        self, deliveries: Sequence[IncomingDelivery], state: Composite | None = ACCEPTED, *, settled: bool = True
    ) -> None:
        """Send the outcome of received messages, with consecutive delivery ids in one frame.

        Call this method for every message. Nothing is sent for messages that the sender has settled, but even these
        messages count as unanswered until this call. Messages whose link or session has ended are skipped.
        `settled=False` leaves settling to the sender (receiver-settle-mode second). A server passes `settled=True` even
        in that mode, because pyamqp's senders wait for the receiver to settle.
        """
        self.session.unsettled_deliveries.send_outcome(Role.RECEIVER, deliveries, state, settled=settled)
        self.replenish()

    def replenish(self) -> None:
        """Grant more credit when the window set by `keep_credit` is half empty."""
        window = self._window
        if not window or self.is_draining or not self.is_attached:
            return
        if (self.credit + self.unanswered_count) * 2 <= window:
            self.grant(window - self.unanswered_count)

    def receive_flow(self, flow: Flow) -> bool:
        """Apply the sender's flow. Its credit has no meaning for a receiver; its delivery count matters for a drain."""
        if flow.available is not None:
            self.available = flow.available
        if self.is_draining and flow.delivery_count is not None:
            used = (flow.delivery_count - self.delivery_count) & SERIAL_MASK
            if used <= self.credit:
                self.delivery_count = flow.delivery_count
                self.credit -= used
        return self.has_drained()

    def has_drained(self) -> bool:
        """Return True, once, when a drain is complete: the peer has used up or given back all credit."""
        if self.is_draining and self.credit == 0 and self._partial is None and not self.is_over:
            self.is_draining = False
            return True
        return False

    def receive_transfer(
        self, delivery_id: int | None, tag: bytes | None, tail: TransferTail, payload: bytes
    ) -> IncomingDelivery | int | None:
        """Process one transfer frame. Return the message if it is complete, its size if it was rejected, else None."""
        if self.local_state is not LinkState.ATTACHED:
            if self.is_over:
                return None
            raise LinkViolation(TRANSFER_LIMIT_EXCEEDED, "a message was sent before the link was accepted")
        if self._partial is not None or not tail.is_whole:
            return self._receive_partial(delivery_id, tag, tail, payload)
        if delivery_id is None or tag is None or len(tag) > MAX_TAG_BYTES:
            raise _incomplete_start(self)
        if self.credit > 0:  # inlined `_use_credit`: this runs once per message
            self.delivery_count = (self.delivery_count + 1) & SERIAL_MASK
            self.credit -= 1
        else:
            self._use_credit()
        if len(payload) > self.max_message_size:
            return self._reject(delivery_id, len(payload), settled=tail.settled)
        delivery = IncomingDelivery(self, delivery_id, tag, tail.message_format, payload, tail.settled, tail.state)
        self._unsettled_deliveries.add_incoming(delivery)
        return delivery

    def _use_credit(self) -> None:
        self.delivery_count = (self.delivery_count + 1) & SERIAL_MASK
        if self.credit > 0:
            self.credit -= 1
        elif self._enforce_credit and (self._max_delivery_count - self.delivery_count) & SERIAL_MASK >= SERIAL_HALF:
            raise LinkViolation(TRANSFER_LIMIT_EXCEEDED, "a message was sent without credit for it")

    def _receive_partial(
        self, delivery_id: int | None, tag: bytes | None, tail: TransferTail, payload: bytes
    ) -> IncomingDelivery | int | None:
        partial = self._partial
        if partial is None:
            if delivery_id is None or tag is None or len(tag) > MAX_TAG_BYTES:
                raise _incomplete_start(self)
            partial = self._partial = _Partial(delivery_id, tag, tail.message_format)
            self._use_credit()
        elif delivery_id is not None and delivery_id != partial.delivery_id and tag != partial.tag:
            # A different id alone is no error: pyamqp reads its id counter for each frame of a message, and another of
            # its threads may have incremented the counter.
            raise SessionViolation(
                INVALID_FIELD, f"delivery {delivery_id} starts inside delivery {partial.delivery_id}"
            )
        if tail.aborted:
            self.drop_partial()
            self.replenish()
            return None
        self._append_partial(partial, tail, payload)
        if tail.more:
            return None
        self.drop_partial()
        if partial.size > self.max_message_size:
            return self._reject(partial.delivery_id, partial.size, settled=partial.settled)
        whole = bytes(partial.data)
        delivery = IncomingDelivery(
            self, partial.delivery_id, partial.tag, partial.message_format, whole, partial.settled, partial.state
        )
        self._unsettled_deliveries.add_incoming(delivery)
        return delivery

    def _append_partial(self, partial: _Partial, tail: TransferTail, payload: bytes) -> None:
        partial.size += len(payload)
        partial.settled = partial.settled or tail.settled
        partial.state = tail.state if tail.state is not None else partial.state
        connection = self.session.connection
        if partial.size > self.max_message_size:
            connection.count_assembling(-len(partial.data))
            partial.data.clear()
        else:
            connection.count_assembling(len(payload))
            partial.data += payload

    def drop_partial(self) -> None:
        """Drop the partially received message, if there is one."""
        if self._partial is not None:
            self.session.connection.count_assembling(-len(self._partial.data))
            self._partial = None

    def _reject(self, delivery_id: int, size: int, *, settled: bool) -> int:
        message = f"the message has {size} bytes; {self.max_message_size} are allowed"
        if settled:  # a settled delivery cannot be rejected, so detach the link
            raise LinkViolation(MESSAGE_SIZE_EXCEEDED, message)
        error = Error(condition=MESSAGE_SIZE_EXCEEDED, description=message)
        self.session.unsettled_deliveries.send_disposition(
            Role.RECEIVER, delivery_id, delivery_id, Rejected(error=error).encode()
        )
        self.replenish()
        return size


def _incomplete_start(link: Link) -> SessionViolation:
    message = f"the first frame of a delivery on {link.name!r:.80} has no delivery id, no tag, or a tag over 32 bytes"
    return SessionViolation(INVALID_FIELD, message)
