"""A link to send on: bytes of messages out, what became of each back.

Owns: the order of what waits for credit, and which answer is whose. A message leaves at once where there is credit and
waits in line where there is none.
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

    from twinbus.amqp.composite import Composite
    from twinbus.amqp.delivery import OutgoingDelivery
    from twinbus.amqp.performatives import Attach
    from twinbus.amqp.sender import Sender
    from twinbus.model.errors import ServiceBusError


class SenderLink(LinkEndpoint):
    """Our end of it."""

    def __init__(self, link: Sender) -> None:
        """`link` was asked for."""
        super().__init__(link)
        self._sender = link
        self._max_message_bytes = 0
        self._pending: dict[OutgoingDelivery, asyncio.Future[object]] = {}
        self._waiting_for_credit: OrderedDict[asyncio.Future[object], tuple[bytes, int, Composite | None]] = (
            OrderedDict()
        )

    @property
    def max_message_bytes(self) -> int | None:
        """The largest message that the entity takes; None where it does not say."""
        return self._max_message_bytes or None

    def on_attach_confirmed(self, attach: Attach) -> None:
        """The peer has attached, too, and says how large a message can be."""
        self._max_message_bytes = int(attach.max_message_size or 0)
        super().on_attach_confirmed(attach)

    def send(self, payload: bytes, message_format: int = 0, state: Composite | None = None) -> asyncio.Future[object]:
        """Send an encoded message. The future has the outcome once the peer has taken it, or why it has not.

        Whoever cancels it calls `withdraw`, too: what has left may be stored, whoever still waits for it.
        """
        future: asyncio.Future[object] = self.loop.create_future()
        if self.failure is not None:
            future.set_exception(_unsent_error(self.failure))
        elif (
            len(payload) > self._max_message_bytes > 0
        ):  # the peer would end the link for it, and with it the sends of others
            size = f"{len(payload):,} bytes; the entity takes {self._max_message_bytes:,}"
            future.set_exception(MessageTooLarge(f"the message, or the batch, has {size}"))
        elif self._waiting_for_credit or not self._sender.sendable:
            self._waiting_for_credit[future] = payload, message_format, state
        else:
            delivery = self._sender.send(payload, message_format=message_format, state=state)
            self._pending[delivery] = future
        return future

    def withdraw(self, future: asyncio.Future[object]) -> bool:
        """Take a message back that waits in line; False where it may be on its way."""
        return self._waiting_for_credit.pop(future, None) is not None

    # --- the conversation calls these ---------------------------------------------------------------------------------

    def on_credit_granted(self) -> None:
        """There is credit: send what waits."""
        sender, waiting = self._sender, self._waiting_for_credit
        while waiting and sender.sendable:
            future, (payload, message_format, state) = waiting.popitem(last=False)
            if not future.done():  # else whoever waited has given up
                self._pending[sender.send(payload, message_format=message_format, state=state)] = future

    def on_sends_updated(self, deliveries: Sequence[OutgoingDelivery], state: object) -> None:
        """The peer said what became of messages."""
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
        """It is over: what is on its way may have arrived, what waits in line has not."""
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
    """Why there is no answer for a message that has left: the peer may have stored it before it ended the link."""
    if error.failure_class is FailureClass.CALLER:
        return error.copy_with(may_have_happened=True, text=f"no answer came, it may have been stored: {error}")
    return ConnectionLost(f"no answer came: {error}")


def _unsent_error(error: ServiceBusError) -> ServiceBusError:
    """Why a message did not leave at all."""
    if error.failure_class is FailureClass.CALLER:
        return error.copy_with(may_have_happened=False)
    return ConnectionFailed(f"not sent: {error}")


def _rejection_error(outcome: object) -> ServiceBusError:
    if isinstance(outcome, Rejected):
        return (
            error_from_peer(outcome.error) if outcome.error is not None else InternalFault("rejected without a reason")
        )
    return InternalFault(f"a message sent was neither accepted nor rejected, but {type(outcome).__name__.lower()}")
