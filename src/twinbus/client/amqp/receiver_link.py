"""Receiver links: deliveries in, dispositions out.

Owns the credit, the deliveries that the receiver has not taken yet, and the pending confirmations of dispositions.
Completions from one turn of the event loop are sent together, and consecutive deliveries share one disposition frame.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from twinbus.amqp.errors import AmqpError
from twinbus.amqp.outcomes import ACCEPTED, Rejected, TransactionalState
from twinbus.client.amqp.link_endpoint import LinkEndpoint
from twinbus.client.errors import ConnectionLost, MessageNotHeld, error_from_peer
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.receiver import Receiver
    from twinbus.client.amqp.lease import Lease
    from twinbus.model.errors import ServiceBusError

DEAD_LETTER_CONDITION: Final = "com.microsoft:dead-letter"
"""Error condition of a rejected disposition that asks for dead-lettering."""


class _SettlementGroup:
    """Deliveries settled together, with one future for their confirmations."""

    __slots__ = ("error", "future", "remaining")

    def __init__(self, future: asyncio.Future[None], remaining: int) -> None:
        self.future = future
        self.remaining = remaining
        self.error: ServiceBusError | None = None

    def confirm(self, error: ServiceBusError | None) -> None:
        """Record the confirmation, or the error, of one delivery. The last confirmation completes the future."""
        self.remaining -= 1
        self.error = self.error or error
        if self.remaining or self.future.done():
            return
        if self.error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(self.error)


class ReceiverLink(LinkEndpoint):
    """The client's end of a receiver link."""

    def __init__(self, link: Receiver) -> None:
        """Take over a receiver link whose attach was sent."""
        super().__init__(link)
        self.arrived: deque[IncomingDelivery] = deque()
        """Deliveries that arrived and that the receiver has not taken yet."""
        self.on_arrival: Callable[[], None] | None = None
        """Called when deliveries have arrived, a drain has finished, or the link has ended."""
        self.lease: Lease | None = None
        """Lease of an exclusive link; None if the server granted no lease."""
        self.requested_s = self.loop.time()
        """When the attach was sent, in loop time."""
        self._receiver = link
        self._pending: dict[IncomingDelivery, asyncio.Future[None]] = {}
        self._settlement_groups: dict[IncomingDelivery, _SettlementGroup] = {}
        self._completions: list[IncomingDelivery] = []
        self._unconfirmed_completions: list[IncomingDelivery] = []
        """Deliveries to complete without asking for a confirmation."""

    @property
    def credit(self) -> int:
        """Number of messages that the peer may still send."""
        return self._receiver.credit

    @property
    def is_draining(self) -> bool:
        """Whether a drain is in progress."""
        return self._receiver.is_draining

    def grant(self, credit: int) -> None:
        """Set the credit: the peer may send this many messages from now on."""
        if self.failure is None:
            self._receiver.grant(credit)

    def keep_credit(self, window: int) -> None:
        """Keep at most `window` messages in flight or unsettled, and replenish credit as messages are settled."""
        if self.failure is None:
            self._receiver.keep_credit(window)

    def stop_replenishing(self) -> None:
        """Stop the replenishing of credit that `keep_credit` started."""
        self._receiver.stop_replenishing()

    def drain(self) -> bool:
        """Start a drain: the peer sends available messages and uses up the credit.

        Return False if the drain cannot start.
        """
        return self.failure is None and self._receiver.drain()

    def settle(self, delivery: IncomingDelivery, state: Composite = ACCEPTED) -> asyncio.Future[None]:
        """Settle a delivery. The future is done when the peer has confirmed the outcome or refused it."""
        future: asyncio.Future[None] = self.loop.create_future()
        earlier = self._pending.get(delivery)
        if self.failure is not None:
            future.set_exception(_unconfirmed_error(self.failure))
        elif earlier is not None and not earlier.done():
            future.set_exception(MessageNotHeld("the message is already being settled"))
        elif state is ACCEPTED:
            if not self._completions:
                self.loop.call_soon(self._flush_completions)
            self._completions.append(delivery)
            self._pending[delivery] = future
        else:
            self._send_disposition(delivery, state, future)
        return future

    def _send_disposition(self, delivery: IncomingDelivery, state: Composite, future: asyncio.Future[None]) -> None:
        try:
            self._receiver.settle([delivery], state, settled=False)
        except AmqpError as error:
            future.set_exception(InvalidArgument(f"the disposition of the message cannot be sent: {error}"))
        else:
            self._pending[delivery] = future

    def settle_batch(
        self, deliveries: Sequence[IncomingDelivery], state: Composite, confirmed_deliveries: Sequence[IncomingDelivery]
    ) -> asyncio.Future[None]:
        """Settle several deliveries with one outcome, and ask for confirmation of `confirmed_deliveries` only.

        The future is done when `confirmed_deliveries` are confirmed, or fails with the first error. Their dispositions
        are sent last, and a queue applies dispositions in the order of arrival, so their confirmation covers all
        deliveries. Consecutive deliveries share one disposition frame.
        """
        future: asyncio.Future[None] = self.loop.create_future()
        if self.failure is not None:
            future.set_exception(_unconfirmed_error(self.failure))
            return future
        group, confirmed = _SettlementGroup(future, len(confirmed_deliveries)), set(confirmed_deliveries)
        for delivery in confirmed_deliveries:
            self._settlement_groups[delivery] = group
        ordered = sorted(deliveries, key=_delivery_id_of)
        self._receiver.settle([delivery for delivery in ordered if delivery not in confirmed], state)
        self._receiver.settle([delivery for delivery in ordered if delivery in confirmed], state, settled=False)
        return future

    def complete_unconfirmed(self, deliveries: Sequence[IncomingDelivery]) -> None:
        """Complete deliveries without asking for confirmation; a message whose completion is lost is redelivered.

        Completions from one turn of the event loop are sorted, so that consecutive deliveries share one frame.
        """
        if not self._unconfirmed_completions:
            self.loop.call_soon(self._flush_unconfirmed_completions)
        self._unconfirmed_completions += deliveries

    def _flush_unconfirmed_completions(self) -> None:
        completed, self._unconfirmed_completions = self._unconfirmed_completions, []
        if completed and self.failure is None:
            completed.sort(key=_delivery_id_of)
            self._receiver.settle(completed, ACCEPTED)

    def mark_taken(self, deliveries: Sequence[IncomingDelivery]) -> None:
        """Mark settled deliveries as taken, so that the window no longer counts them. Nothing is sent to the peer."""
        self._receiver.settle(deliveries)

    def release(self, deliveries: Sequence[IncomingDelivery], state: Composite) -> None:
        """Settle deliveries that go back to the entity, without asking for confirmation."""
        self._flush_unconfirmed_completions()
        if self.failure is None:
            self._receiver.settle(deliveries, state)

    def _flush_completions(self) -> None:
        completed, self._completions = self._completions, []
        if self.failure is None:
            self._receiver.settle(completed, ACCEPTED, settled=False)

    # --- callbacks of the connection ----------------------------------------------------------------------------------

    def on_deliveries_received(self, deliveries: Sequence[IncomingDelivery]) -> None:
        """Buffer deliveries that arrived."""
        self.arrived.extend(deliveries)
        if self.on_arrival is not None:
            self.on_arrival()

    def on_drained(self) -> None:
        """Handle a finished drain: the peer has no credit left."""
        if self.on_arrival is not None:
            self.on_arrival()

    def on_receipts_updated(self, deliveries: Sequence[IncomingDelivery], state: object) -> None:
        """Handle the peer's confirmation or refusal of dispositions."""
        outcome = state.outcome if isinstance(state, TransactionalState) else state
        error = _rejection_error(outcome) if isinstance(outcome, Rejected) else None
        for delivery in deliveries:
            future = self._pending.pop(delivery, None)
            if future is None:
                group = self._settlement_groups.pop(delivery, None)
                if group is not None:
                    group.confirm(error)
            elif not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

    def fail(self, error: ServiceBusError) -> None:
        """Mark the link as ended; pending dispositions fail, although the peer may have applied them."""
        if self.lease is not None:
            self.lease.end()
        super().fail(error)
        pending, self._pending = self._pending, {}
        groups, self._settlement_groups = self._settlement_groups, {}
        for future in [*pending.values(), *[group.future for group in groups.values()]]:
            if not future.done():
                future.set_exception(_unconfirmed_error(error))
        if self.on_arrival is not None:
            self.on_arrival()


def _delivery_id_of(delivery: IncomingDelivery) -> int:
    return delivery.delivery_id


def _rejection_error(outcome: Rejected) -> ServiceBusError | None:
    """Return the error for a rejected disposition; None if the peer only echoes a requested dead-lettering."""
    if outcome.error is None or outcome.error.condition == DEAD_LETTER_CONDITION:
        return None
    return error_from_peer(outcome.error)


def _unconfirmed_error(error: ServiceBusError) -> ServiceBusError:
    return ConnectionLost(f"the settlement of the message was not confirmed: {error}")
