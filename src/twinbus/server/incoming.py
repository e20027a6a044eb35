"""A link on which a client sends messages to an entity.

Owns: from a transfer to its accept or reject. A message is accepted when the broker says that it is on disk; whatever
is wrong with one message rejects that one and harms no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from twinbus.amqp.outcomes import ACCEPTED, Rejected
from twinbus.amqp.types import Symbol
from twinbus.broker.namespace import Queue
from twinbus.broker.ports.incoming import Parcel, Terms
from twinbus.model.errors import ServiceBusError
from twinbus.server.answers import error_of
from twinbus.server.keys import Right
from twinbus.server.metering.counter import UNIT, Counter, further_units, messages_in, seems_ping
from twinbus.server.silence import tell

if TYPE_CHECKING:
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.receiver import Receiver
    from twinbus.broker.namespace import Namespace, Topic
    from twinbus.server.transactions import Transactions

VIA: Final = "com.microsoft:transfer-destination-address"
"""A link property: the entity that messages go on to."""
CREDIT: Final = 2_000
"""Messages a client may have on their way or unanswered; what they may weigh is limited by the connection."""


class Incoming:
    """Messages from one link to one queue or topic."""

    right: ClassVar[Right] = Right.SEND
    sends: bool

    def __init__(
        self,
        link: Receiver,
        namespace: Namespace,
        target: Queue | Topic,
        transactions: Transactions,
        destination: str | None = None,
        counter: Counter | None = None,
    ) -> None:
        """Accept the link, and let the client send at once: some cannot before they have credit.

        `destination` is where messages go on to from `target`, which is a queue then. What it does is counted in
        `counter`.
        """
        self._counter = counter or Counter()
        self.link = link
        self.sends = True
        self.path = target.path
        self.used_s = namespace.clock.monotonic_s()
        self._namespace = namespace
        self._target = target
        self._transactions = transactions
        self.destination = destination
        told: dict[str, object] | None = {Symbol(VIA): destination} if destination is not None else None
        link.accept(max_message_size=target.description.max_message_kb * 1024, properties=told)
        link.keep_credit(CREDIT)
        target.producers.add(self)

    @property
    def _terms(self) -> Terms:
        """What goes on to another entity is not asked for what this one wants of its own."""
        return self._target.terms if self.destination is None else Terms()

    @property
    def is_busy(self) -> bool:
        """A message is on its way to the disk."""
        return self.link.unanswered_count > 0

    def entity_gone(self, error: ServiceBusError) -> None:
        """The entity was deleted."""
        self.link.detach(error=error_of(error))

    def detached(self) -> None:
        """The link is over."""
        self._target.producers.discard(self)

    def receive(self, deliveries: list[IncomingDelivery]) -> None:
        """Messages that came in one read: stored together, answered together."""
        clock = self._namespace.clock
        self.used_s, now_ms = clock.monotonic_s(), clock.wall_ms()
        self._target.accessed_ms, self._target.used_s = now_ms, self.used_s
        add_to, terms = self._namespace.intake.add_to, self._terms
        parcel = Parcel()
        taken: list[IncomingDelivery] = []
        for delivery in deliveries:
            if delivery.state is not None:
                self._send_later(delivery)
                continue
            try:
                add_to(parcel, delivery.payload, delivery.message_format, now_ms, terms)
            except ServiceBusError as error:
                self._answer([delivery], error)
            else:
                taken.append(delivery)
        if taken:
            self._send(parcel, taken)

    def _send_later(self, delivery: IncomingDelivery) -> None:
        """A message that is sent when its transaction is committed: until then it is taken on condition."""
        try:
            transaction, answer = self._transactions.join(delivery.state, len(delivery.payload))
            transaction.send_to(self._target, delivery.payload, delivery.message_format, self.destination)
        except ServiceBusError as error:
            self._answer([delivery], error)
        else:
            self._count([delivery], len(messages_in(delivery.payload, delivery.message_format)), 0)
            self.link.settle([delivery], answer)

    def _send(self, parcel: Parcel, deliveries: list[IncomingDelivery], *, is_in_doubt: bool = False) -> None:
        """Store messages. `is_in_doubt`: an earlier attempt may have stored them, whatever this one's error says."""
        messages, pings = len(parcel.records), parcel.pings

        def answer(error: ServiceBusError | None) -> None:
            if error is None:
                self._count(deliveries, messages, pings)
            self._answer(deliveries, error, is_in_doubt=is_in_doubt)

        try:
            if self.destination is not None and parcel.records:
                assert isinstance(self._target, Queue)
                self._target.send_on(parcel.records, self.destination, answer)
            else:
                self._target.send(parcel, answer)
        except ServiceBusError as error:
            if len(deliveries) == 1 or error.is_retriable:
                self._answer(deliveries, error, is_in_doubt=is_in_doubt)
            else:
                self._send_each(deliveries)

    def _send_each(self, deliveries: list[IncomingDelivery], *, is_in_doubt: bool = False) -> None:
        """Store messages one by one: together they do not fit, and the first ones may.

        `is_in_doubt`: an earlier attempt may have stored them, so these are marked as possible duplicates.
        """
        now_ms = self._namespace.clock.wall_ms()
        for delivery in deliveries:
            parcel = Parcel()
            self._namespace.intake.add_to(parcel, delivery.payload, delivery.message_format, now_ms, self._terms)
            if is_in_doubt:
                parcel.mark()
            self._send(parcel, [delivery], is_in_doubt=is_in_doubt)

    def _answer(
        self, deliveries: list[IncomingDelivery], error: ServiceBusError | None, *, is_in_doubt: bool = False
    ) -> None:
        if error is None:
            self.link.settle(deliveries, ACCEPTED)
        else:
            if is_in_doubt:
                error = error.retold(may_have_happened=True)
            self._count_failed(deliveries)
            rejected = Rejected(error=error_of(error))
            tell(self, error, lambda: self.link.settle(deliveries, rejected))

    # --- what is counted ----------------------------------------------------------------------------------------------

    def _count(self, deliveries: list[IncomingDelivery], messages: int, pings: int) -> None:
        """So many messages and pings were accepted, in these deliveries: each may be a batch."""
        size, units = 0, messages
        for delivery in deliveries:
            length = len(delivery.payload)
            size += length
            if length > UNIT:
                units += further_units(delivery.payload, delivery.message_format)
        counter = self._counter
        counter.sends += messages
        counter.send_units += units
        counter.send_bytes += size
        counter.pings += pings

    def _count_failed(self, deliveries: list[IncomingDelivery]) -> None:
        for delivery in deliveries:
            if seems_ping(delivery.payload):
                self._counter.failed_pings += 1
            else:
                self._counter.failed_sends += 1
