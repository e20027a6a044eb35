"""A link to receive on: messages in, what becomes of each back.

Owns: credit, what has arrived and was not taken yet, and which confirmation is whose. Outcomes told in one turn of the
loop go together: neighbours share a frame.
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

    from twinbus.amqp.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.receiver import Receiver
    from twinbus.client.amqp.lease import Lease
    from twinbus.model.errors import ServiceBusError

DEAD_LETTER_CONDITION: Final = "com.microsoft:dead-letter"
"""How a receiver asks for a message to be dead-lettered."""


class _SettlementGroup:
    """Messages whose outcome was told together: one answer for all."""

    __slots__ = ("error", "future", "remaining")

    def __init__(self, future: asyncio.Future[None], remaining: int) -> None:
        self.future = future
        self.remaining = remaining
        self.error: ServiceBusError | None = None

    def confirm(self, error: ServiceBusError | None) -> None:
        """The outcome of one of them is confirmed, or refused."""
        self.remaining -= 1
        self.error = self.error or error
        if self.remaining or self.future.done():
            return
        if self.error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(self.error)


class ReceiverLink(LinkEndpoint):
    """Our end of it."""

    def __init__(self, link: Receiver) -> None:
        """`link` was asked for."""
        super().__init__(link)
        self.arrived: deque[IncomingDelivery] = deque()
        """What has come and was not taken."""
        self.on_arrival: Callable[[], None] | None = None
        """Told when something has arrived, a drain has ended, or the link has."""
        self.lease: Lease | None = None
        """Of an exclusive link: for how long that is certainly ours. None where the server grants none."""
        self.requested_s = self.loop.time()
        """When the link was asked for."""
        self._receiver = link
        self._pending: dict[IncomingDelivery, asyncio.Future[None]] = {}
        self._settlement_groups: dict[IncomingDelivery, _SettlementGroup] = {}
        self._completions: list[IncomingDelivery] = []
        self._unconfirmed_completions: list[IncomingDelivery] = []
        """Completed, too, but nobody waits for the confirmation."""

    @property
    def credit(self) -> int:
        """Messages that the peer may still send."""
        return self._receiver.credit

    @property
    def is_draining(self) -> bool:
        """Unused credit was asked back, and is on its way."""
        return self._receiver.is_draining

    def grant(self, credit: int) -> None:
        """Let the peer send so many messages from now on."""
        if self.failure is None:
            self._receiver.grant(credit)

    def keep_credit(self, window: int) -> None:
        """Have at most so many messages on their way or unanswered, and more as they are answered."""
        if self.failure is None:
            self._receiver.keep_credit(window)

    def stop_topping_up(self) -> None:
        """Grant no more than is granted: `keep_credit` is over."""
        self._receiver.stop_replenishing()

    def drain(self) -> bool:
        """Ask for what there is now and for the rest of the credit back; False where there is none."""
        return self.failure is None and self._receiver.drain()

    def settle(self, delivery: IncomingDelivery, state: Composite = ACCEPTED) -> asyncio.Future[None]:
        """Say what becomes of a message. The future is done when the peer has done so, or has the reason why not."""
        future: asyncio.Future[None] = self.loop.create_future()
        earlier = self._pending.get(delivery)
        if self.failure is not None:
            future.set_exception(_unconfirmed_error(self.failure))
        elif earlier is not None and not earlier.done():
            future.set_exception(MessageNotHeld("the message is being settled already"))
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
            future.set_exception(InvalidArgument(f"what is said of the message cannot be sent: {error}"))
        else:
            self._pending[delivery] = future

    def settle_batch(
        self, deliveries: Sequence[IncomingDelivery], state: Composite, confirmed_deliveries: Sequence[IncomingDelivery]
    ) -> asyncio.Future[None]:
        """Say one thing of several messages, and ask for the confirmation of the `last` of them only.

        The future is done when these are confirmed, or has the first reason why not: what a queue is told of messages
        it does in that order. Neighbours share a frame.
        """
        future: asyncio.Future[None] = self.loop.create_future()
        if self.failure is not None:
            future.set_exception(_unconfirmed_error(self.failure))
            return future
        together, confirmed = _SettlementGroup(future, len(confirmed_deliveries)), set(confirmed_deliveries)
        for delivery in confirmed_deliveries:
            self._settlement_groups[delivery] = together
        ordered = sorted(deliveries, key=_delivery_id_of)
        self._receiver.settle([delivery for delivery in ordered if delivery not in confirmed], state)
        self._receiver.settle([delivery for delivery in ordered if delivery in confirmed], state, settled=False)
        return future

    def complete_unconfirmed(self, deliveries: Sequence[IncomingDelivery]) -> None:
        """Complete messages, and ask for no confirmation: one that is not completed comes again.

        Those of one turn are put in order, so that as many as can be are neighbours.
        """
        if not self._unconfirmed_completions:
            self.loop.call_soon(self._flush_unconfirmed_completions)
        self._unconfirmed_completions += deliveries

    def _flush_unconfirmed_completions(self) -> None:
        done, self._unconfirmed_completions = self._unconfirmed_completions, []
        if done and self.failure is None:
            done.sort(key=_delivery_id_of)
            self._receiver.settle(done, ACCEPTED)

    def mark_taken(self, deliveries: Sequence[IncomingDelivery]) -> None:
        """Messages that came settled were taken: nothing is told, but they do not count as waiting any more."""
        self._receiver.settle(deliveries)

    def release(self, deliveries: Sequence[IncomingDelivery], state: Composite) -> None:
        """Give messages back; nobody waits for an answer."""
        self._flush_unconfirmed_completions()
        if self.failure is None:
            self._receiver.settle(deliveries, state)

    def _flush_completions(self) -> None:
        completed, self._completions = self._completions, []
        if self.failure is None:
            self._receiver.settle(completed, ACCEPTED, settled=False)

    # --- the conversation calls these ---------------------------------------------------------------------------------

    def on_deliveries_received(self, deliveries: Sequence[IncomingDelivery]) -> None:
        """Messages have come."""
        self.arrived.extend(deliveries)
        if self.on_arrival is not None:
            self.on_arrival()

    def on_drained(self) -> None:
        """The peer has no credit left."""
        if self.on_arrival is not None:
            self.on_arrival()

    def on_receipts_updated(self, deliveries: Sequence[IncomingDelivery], state: object) -> None:
        """The peer confirms what we said of messages, or says why it cannot be."""
        outcome = state.outcome if isinstance(state, TransactionalState) else state
        error = _rejection_error(outcome) if isinstance(outcome, Rejected) else None
        for delivery in deliveries:
            future = self._pending.pop(delivery, None)
            if future is None:
                together = self._settlement_groups.pop(delivery, None)
                if together is not None:
                    together.confirm(error)
            elif not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

    def fail(self, error: ServiceBusError) -> None:
        """It is over: what we said of messages may have been done."""
        if self.lease is not None:
            self.lease.end()
        super().fail(error)
        pending, self._pending = self._pending, {}
        together, self._settlement_groups = self._settlement_groups, {}
        for future in [*pending.values(), *[one.future for one in together.values()]]:
            if not future.done():
                future.set_exception(_unconfirmed_error(error))
        if self.on_arrival is not None:
            self.on_arrival()


def _delivery_id_of(delivery: IncomingDelivery) -> int:
    return delivery.delivery_id


def _rejection_error(outcome: Rejected) -> ServiceBusError | None:
    """Why not; None where the peer only repeats that the message is dead-lettered, as we have asked."""
    if outcome.error is None or outcome.error.condition == DEAD_LETTER_CONDITION:
        return None
    return error_from_peer(outcome.error)


def _unconfirmed_error(error: ServiceBusError) -> ServiceBusError:
    return ConnectionLost(f"what was said of the message was not confirmed: {error}")
