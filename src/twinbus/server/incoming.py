"""A link on which a client sends messages to an entity.

Owns: from a transfer to its accept or reject. A message is accepted when the broker says that it is on disk; whatever
is wrong with one message rejects that one and harms no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from twinbus.amqp.outcomes import ACCEPTED, Rejected
from twinbus.broker.intake import Parcel
from twinbus.model.errors import ServiceBusError
from twinbus.server.answers import error_of
from twinbus.server.keys import Right

if TYPE_CHECKING:
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.receiver import Receiver
    from twinbus.broker.namespace import Namespace
    from twinbus.broker.queue import Queue

CREDIT: Final = 2_000
"""Messages a client may have on their way or unanswered; what they may weigh is limited by the connection."""


class Incoming:
    """Messages from one link to one queue."""

    right: ClassVar[Right] = Right.SEND
    sends: bool

    def __init__(self, link: Receiver, namespace: Namespace, queue: Queue) -> None:
        """Accept the link, and let the client send at once: some cannot before they have credit."""
        self.link = link
        self.sends = True
        self.path = queue.path
        self.used_s = namespace.clock.monotonic_s()
        self._namespace = namespace
        self._queue = queue
        link.accept(max_message_size=queue.description.max_message_kb * 1024)
        link.keep_credit(CREDIT)
        queue.producers.add(self)

    @property
    def is_busy(self) -> bool:
        """A message is on its way to the disk."""
        return self.link.unanswered_count > 0

    def entity_gone(self, error: ServiceBusError) -> None:
        """The queue was deleted."""
        self.link.detach(error=error_of(error))

    def detached(self) -> None:
        """The link is over."""
        self._queue.producers.discard(self)

    def receive(self, deliveries: list[IncomingDelivery]) -> None:
        """Messages that came in one read: stored together, answered together."""
        clock = self._namespace.clock
        self.used_s, now_ms = clock.monotonic_s(), clock.wall_ms()
        self._queue.accessed_ms, self._queue.used_s = now_ms, self.used_s
        add_to, terms = self._namespace.intake.add_to, self._queue.terms
        parcel = Parcel()
        taken: list[IncomingDelivery] = []
        for delivery in deliveries:
            try:
                add_to(parcel, delivery.payload, delivery.message_format, now_ms, terms)
            except ServiceBusError as error:
                self._answer([delivery], error)
            else:
                taken.append(delivery)
        if taken:
            self._send(parcel, taken)

    def _send(self, parcel: Parcel, deliveries: list[IncomingDelivery]) -> None:
        try:
            self._queue.send(parcel, lambda error: self._answer(deliveries, error))
        except ServiceBusError as error:
            if len(deliveries) == 1 or error.is_retriable:
                self._answer(deliveries, error)
            else:
                self._send_each(deliveries)

    def _send_each(self, deliveries: list[IncomingDelivery]) -> None:
        """Together they do not fit: the first ones may."""
        now_ms = self._namespace.clock.wall_ms()
        for delivery in deliveries:
            parcel = Parcel()
            self._namespace.intake.add_to(parcel, delivery.payload, delivery.message_format, now_ms, self._queue.terms)
            self._send(parcel, [delivery])

    def _answer(self, deliveries: list[IncomingDelivery], error: ServiceBusError | None) -> None:
        self.link.settle(deliveries, ACCEPTED if error is None else Rejected(error=error_of(error)))
