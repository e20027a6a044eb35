"""Sender links: encoded messages out, outcomes in.

Owns the queue of messages that wait for credit, and the pending outcomes. If the link has credit, a message is sent at
once. Otherwise, the message waits in the queue.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from twinbus.amqp.outcomes import Accepted, Declared, Rejected, TransactionalState
from twinbus.client.amqp.link_endpoint import LinkEndpoint
from twinbus.client.errors import ConnectionFailed, ConnectionLost, error_from_peer
from twinbus.model.errors import FailureClass, InternalFault, MessageTooLarge

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.codec.performatives import Attach
    from twinbus.amqp.delivery import OutgoingDelivery
    from twinbus.amqp.sender import Sender
    from twinbus.model.errors import ServiceBusError


class SenderLink(LinkEndpoint):
    """The client's end of a sender link."""

    def __init__(self, link: Sender) -> None:
        """Take over a sender link whose attach was sent."""
        super().__init__(link)
        self._sender = link
        self._max_message_bytes = 0
        self._pending: dict[OutgoingDelivery, asyncio.Future[object]] = {}
        self._waiting_for_credit: OrderedDict[asyncio.Future[object], tuple[bytes, int, Composite | None]] = (
            OrderedDict()
        )

    @property
    def max_message_bytes(self) -> int | None:
        """Size of the largest message that the entity accepts; None if the entity sets no limit."""
        return self._max_message_bytes or None

    def on_attach_confirmed(self, attach: Attach) -> None:
        """Handle the peer's attach, which states the maximum message size."""
        self._max_message_bytes = int(attach.max_message_size or 0)
        super().on_attach_confirmed(attach)

    def send(self, payload: bytes, message_format: int = 0, state: Composite | None = None) -> asyncio.Future[object]:
        """Send an encoded message. The returned future completes with the peer's outcome, or fails with the error.

        A caller that cancels the future must call `withdraw`, which returns whether the message was not sent.
        """
        future: asyncio.Future[object] = self.loop.create_future()
        if self.failure is not None:
            future.set_exception(_unsent_error(self.failure))
        elif len(payload) > self._max_message_bytes > 0:  # the peer would detach the link, and fail other sends
            size = f"{len(payload):,} bytes; the entity accepts {self._max_message_bytes:,}"
            future.set_exception(MessageTooLarge(f"the message or batch has {size}"))
        elif self._waiting_for_credit or not self._sender.sendable:
            self._waiting_for_credit[future] = payload, message_format, state
        else:
            delivery = self._sender.send(payload, message_format=message_format, state=state)
            self._pending[delivery] = future
        return future

    def withdraw(self, future: asyncio.Future[object]) -> bool:
        """Remove a message that waits for credit. Return False if the message may have been sent."""
        return self._waiting_for_credit.pop(future, None) is not None

    # --- callbacks of the connection ----------------------------------------------------------------------------------

    def on_credit_granted(self) -> None:
        """Send waiting messages with the new credit."""
        sender, waiting = self._sender, self._waiting_for_credit
        while waiting and sender.sendable:
            future, (payload, message_format, state) = waiting.popitem(last=False)
            if not future.done():  # a future is done if its caller was cancelled
                self._pending[sender.send(payload, message_format=message_format, state=state)] = future

    def on_sends_updated(self, deliveries: Sequence[OutgoingDelivery], state: object) -> None:
        """Handle the outcomes of sent messages."""
        pending = self._pending
        outcome = state.outcome if isinstance(state, TransactionalState) else state
        error = None if isinstance(outcome, Accepted | Declared) else _rejection_error(outcome)
        for delivery in deliveries:
            future = pending.pop(delivery, None)
            if future is not None and not future.done():
                if error is None:
                    future.set_result(outcome)
                else:
                    future.set_exception(error)

    def fail(self, error: ServiceBusError) -> None:
        """Mark the link as ended. Messages already sent may have been stored; waiting messages were not sent."""
        super().fail(error)
        pending, waiting = self._pending, self._waiting_for_credit
        self._pending, self._waiting_for_credit = {}, OrderedDict()
        lost = _unanswered_error(error)
        for future in pending.values():
            if not future.done():
                future.set_exception(lost)
        for future in waiting:
            if not future.done():
                future.set_exception(_unsent_error(error))


def _unanswered_error(error: ServiceBusError) -> ServiceBusError:
    """Return the error for a sent message without an outcome, which the peer may have stored before the link ended."""
    if error.failure_class is FailureClass.CALLER:
        return error.copy_with(may_have_happened=True, text=f"no response arrived, it may have been stored: {error}")
    return ConnectionLost(f"no response arrived: {error}")


def _unsent_error(error: ServiceBusError) -> ServiceBusError:
    """Return the error for a message that was not sent."""
    if error.failure_class is FailureClass.CALLER:
        return error.copy_with(may_have_happened=False)
    return ConnectionFailed(f"not sent: {error}")


def _rejection_error(outcome: object) -> ServiceBusError:
    if isinstance(outcome, Rejected):
        return (
            error_from_peer(outcome.error) if outcome.error is not None else InternalFault("rejected without a reason")
        )
    return InternalFault(f"the message was neither accepted nor rejected, but {type(outcome).__name__.lower()}")
