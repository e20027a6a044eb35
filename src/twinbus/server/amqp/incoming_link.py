"""A link on which a client sends messages to an entity.

Owns: from a transfer to its accept or reject. A message is accepted when the broker says that it is on disk; whatever
is wrong with one message rejects that one and harms no other.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from twinbus.amqp.outcomes import ACCEPTED, Rejected
from twinbus.amqp.types import Symbol
from twinbus.broker.namespace import Queue
from twinbus.broker.ports.incoming_batch import IncomingBatch, ValidationPolicy
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.errors import ServiceBusError
from twinbus.server.amqp.errors import send_error, to_amqp_error
from twinbus.server.auth.keys import Right
from twinbus.server.usage.counter import CHARGE_UNIT_BYTES, UsageCounter, extra_units, looks_like_ping, split_batch

if TYPE_CHECKING:
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.receiver import Receiver
    from twinbus.broker.namespace import Namespace, Topic
    from twinbus.server.amqp.transactions import Transactions

TRANSFER_DESTINATION: Final = "com.microsoft:transfer-destination-address"
"""A link property: the entity that messages go on to."""
SEND_CREDIT: Final = 2_000
"""Messages a client may have on their way or unanswered; what they may weigh is limited by the connection."""


class IncomingLink:
    """Messages from one link to one queue or topic."""

    right: ClassVar[Right] = Right.SEND
    is_sender: bool

    def __init__(
        self,
        link: Receiver,
        namespace: Namespace,
        target: Queue | Topic,
        transactions: Transactions,
        transfer_destination: str | None = None,
        counter: UsageCounter | None = None,
    ) -> None:
        """Accept the link, and let the client send at once: some cannot before they have credit.

        `destination` is where messages go on to from `target`, which is a queue then. What it does is counted in
        `counter`.
        """
        self._counter = counter or UsageCounter()
        self.link = link
        self.is_sender = True
        self.path = target.path
        self.last_used_s = namespace.clock.monotonic_s()
        self._namespace = namespace
        self._target = target
        self._transactions = transactions
        self.transfer_destination = transfer_destination
        told: dict[str, object] | None = (
            {Symbol(TRANSFER_DESTINATION): transfer_destination} if transfer_destination is not None else None
        )
        link.accept(max_message_size=target.description.max_message_kb * 1024, properties=told)
        link.keep_credit(SEND_CREDIT)
        target.links.add(self)

    @property
    def _validation_policy(self) -> ValidationPolicy:
        """What goes on to another entity is not asked for what this one wants of its own."""
        return self._target.validation_policy if self.transfer_destination is None else ValidationPolicy()

    @property
    def is_busy(self) -> bool:
        """A message is on its way to the disk."""
        return self.link.unanswered_count > 0

    def force_detach(self, error: ServiceBusError) -> None:
        """The entity was deleted."""
        self.link.detach(error=to_amqp_error(error))

    def on_detached(self) -> None:
        """The link is over."""
        self._target.links.discard(self)

    def on_deliveries(self, deliveries: list[IncomingDelivery]) -> None:
        """Messages that came in one read: stored together, answered together."""
        clock = self._namespace.clock
        self.last_used_s, now_ms = clock.monotonic_s(), clock.wall_ms()
        self._target.accessed_ms, self._target.last_used_s = now_ms, self.last_used_s
        add_to, terms = self._namespace.intake.add_to, self._validation_policy
        parcel = IncomingBatch()
        taken: list[IncomingDelivery] = []
        for delivery in deliveries:
            if delivery.state is not None:
                self._send_in_transaction(delivery)
                continue
            try:
                add_to(parcel, delivery.payload, delivery.message_format, now_ms, terms)
            except ServiceBusError as error:
                self._settle([delivery], error)
            else:
                taken.append(delivery)
        if taken:
            self._send(parcel, taken)

    def _send_in_transaction(self, delivery: IncomingDelivery) -> None:
        """A message that is sent when its transaction is committed: until then it is taken on condition."""
        try:
            transaction, answer = self._transactions.join(delivery.state, len(delivery.payload))
            transaction.send_to(self._target, delivery.payload, delivery.message_format, self.transfer_destination)
        except ServiceBusError as error:
            self._settle([delivery], error)
        else:
            self._count_sends([delivery], len(split_batch(delivery.payload, delivery.message_format)), 0)
            self.link.settle([delivery], answer)

    def _send(self, batch: IncomingBatch, deliveries: list[IncomingDelivery], *, is_in_doubt: bool = False) -> None:
        """Store messages. `is_in_doubt`: an earlier attempt may have stored them, whatever this one's error says."""
        messages, pings = len(batch.records), batch.ping_count

        def answer(error: ServiceBusError | None) -> None:
            if error is None:
                self._count_sends(deliveries, messages, pings)
            self._settle(deliveries, error, is_in_doubt=is_in_doubt)

        try:
            if self.transfer_destination is not None and batch.records:
                assert isinstance(self._target, Queue)
                self._target.send_via(batch.records, self.transfer_destination, answer)
            else:
                self._target.send(batch, answer)
        except ServiceBusError as error:
            if len(deliveries) == 1 or error.is_retriable:
                self._settle(deliveries, error, is_in_doubt=is_in_doubt)
            else:
                self._send_each(deliveries)

    def _send_each(self, deliveries: list[IncomingDelivery], *, is_in_doubt: bool = False) -> None:
        """Store messages one by one: together they do not fit, and the first ones may.

        `is_in_doubt`: an earlier attempt may have stored them, so these are marked as possible duplicates.
        """
        now_ms = self._namespace.clock.wall_ms()
        for delivery in deliveries:
            parcel = IncomingBatch()
            self._namespace.intake.add_to(
                parcel, delivery.payload, delivery.message_format, now_ms, self._validation_policy
            )
            if is_in_doubt:
                parcel.mark_possible_duplicates()
            self._send(parcel, [delivery], is_in_doubt=is_in_doubt)

    def _settle(
        self, deliveries: list[IncomingDelivery], error: ServiceBusError | None, *, is_in_doubt: bool = False
    ) -> None:
        if error is None:
            self.link.settle(deliveries, ACCEPTED)
        else:
            if is_in_doubt:
                error = error.copy_with(may_have_happened=True)
            self._count_failed_sends(deliveries)
            rejected = Rejected(error=to_amqp_error(error))
            send_error(self, error, lambda: self.link.settle(deliveries, rejected))

    # --- what is counted ----------------------------------------------------------------------------------------------

    def _count_sends(self, deliveries: list[IncomingDelivery], message_count: int, ping_count: int) -> None:
        """So many messages and pings were accepted, in these deliveries: each may be a batch."""
        size, units = 0, message_count
        for delivery in deliveries:
            length = len(delivery.payload)
            size += length
            if length > CHARGE_UNIT_BYTES:
                units += extra_units(delivery.payload, delivery.message_format)
        counter = self._counter
        counter.sends += message_count
        counter.send_units += units
        counter.send_bytes += size
        counter.pings += ping_count

    def _count_failed_sends(self, deliveries: list[IncomingDelivery]) -> None:
        for delivery in deliveries:
            if looks_like_ping(delivery.payload):
                self._counter.failed_pings += 1
            else:
                self._counter.failed_sends += 1


class _FragmentBatch:
    """What goes to one fragment."""

    __slots__ = ("batch", "deliveries", "keyed_positions")

    def __init__(self) -> None:
        self.batch = IncomingBatch()
        self.deliveries: list[IncomingDelivery] = []
        self.keyed_positions: set[int] = set()
        """The places of deliveries whose keys lead here, and nowhere else."""


class _FragmentBatches:
    """What goes where, of messages that came in one read."""

    def __init__(self, target: Queue | Topic) -> None:
        self.by_fragment: dict[int, _FragmentBatch] = {}
        self._target = target

    def _batch_for(self, key: bytes | None) -> _FragmentBatch:
        return self.by_fragment.setdefault(self._target.partitioner.choose(key), _FragmentBatch())

    def add(self, delivery: IncomingDelivery, batch: IncomingBatch, key: bytes | None) -> None:
        """A delivery that is not divided."""
        portion = self._batch_for(key)
        if key is not None:
            portion.keyed_positions.add(len(portion.deliveries))
        portion.deliveries.append(delivery)
        portion.batch.extend(batch)

    def distribute(self, unkeyed: _FragmentBatch) -> None:
        """Single messages without keys: each fragment gets a share, of such as follow each other.

        They are answered in one frame; where each fragment got every sixteenth, each needed a frame for itself.
        """
        records, deliveries = unkeyed.batch.records, unkeyed.deliveries
        share = -(-len(deliveries) // FRAGMENT_COUNT)
        for start in range(0, len(deliveries), share or 1):
            portion = self._batch_for(None)
            portion.batch.records += records[start : start + share]
            portion.deliveries += deliveries[start : start + share]


class PartitionedIncomingLink(IncomingLink):
    """Messages from one link to one partitioned queue or topic."""

    def on_deliveries(self, deliveries: list[IncomingDelivery]) -> None:
        """Messages that came in one read: those of a fragment are stored together."""
        target, namespace = self._target, self._namespace
        self.last_used_s, now_ms = namespace.clock.monotonic_s(), namespace.clock.wall_ms()
        target.accessed_ms, target.last_used_s = now_ms, self.last_used_s
        add_to, terms = namespace.intake.add_to, target.validation_policy
        portions, free = _FragmentBatches(target), _FragmentBatch()
        parcel = free.batch
        keys, keep = parcel.partition_keys, free.deliveries.append
        for delivery in deliveries:
            if delivery.state is not None:
                self._send_in_transaction(delivery)
                continue
            try:
                add_to(parcel, delivery.payload, delivery.message_format, now_ms, terms)
            except ServiceBusError as error:
                keys.clear()
                self._settle([delivery], error)
                continue
            if len(keys) == 1 and keys[0] is None and not parcel.ping_count:
                keys.clear()
                keep(delivery)
            else:
                self._assign(delivery, parcel.split_after(len(free.deliveries)), portions)
        portions.distribute(free)
        self._send_batches(portions)

    def _assign(self, delivery: IncomingDelivery, batch: IncomingBatch, fragment_batches: _FragmentBatches) -> None:
        """Messages with a key, or several that came as one delivery."""
        keys = batch.partition_keys or batch.ping_partition_keys
        if keys.count(keys[0]) == len(keys):
            fragment_batches.add(delivery, batch, keys[0])
            return
        self._send_batches(fragment_batches)  # what came before it is stored before it
        fragment_batches.by_fragment.clear()
        self._send(batch, [delivery])

    def _send_batches(self, fragment_batches: _FragmentBatches) -> None:
        for number, portion in fragment_batches.by_fragment.items():
            self._send_batch(number, portion)

    def _send_batch(self, fragment_number: int, fragment_batch: _FragmentBatch) -> None:
        target = self._target
        if fragment_batch.keyed_positions and target.send_order.must_wait_for(
            fragment_number
        ):  # a batch of its key came before it, and is being checked
            size = sum([len(record) for record in fragment_batch.batch.records])
            try:
                target.send_order.enqueue_ready(
                    fragment_number, size, partial(self._store_batch, fragment_number, fragment_batch)
                )
            except ServiceBusError as error:
                self._on_batch_failed(fragment_number, fragment_batch, error, is_in_doubt=False)
            return
        self._store_batch(fragment_number, fragment_batch)

    def _store_batch(self, fragment_number: int, fragment_batch: _FragmentBatch) -> None:
        target = self._target
        messages, pings = len(fragment_batch.batch.records), fragment_batch.batch.ping_count

        def answer(error: ServiceBusError | None) -> None:
            if error is None:
                self._count_sends(fragment_batch.deliveries, messages, pings)
                self._settle(fragment_batch.deliveries, None)
            else:
                self._on_batch_failed(fragment_number, fragment_batch, error, is_in_doubt=error.may_have_happened)

        try:
            self._target.check_send_enabled()
            target.parts[fragment_number].send(fragment_batch.batch, answer)
        except ServiceBusError as error:
            if error.is_retriable:
                self._on_batch_failed(fragment_number, fragment_batch, error, is_in_doubt=False)
            else:
                self._send_each(fragment_batch.deliveries)

    def _on_batch_failed(
        self, fragment_number: int, fragment_batch: _FragmentBatch, error: ServiceBusError, *, is_in_doubt: bool
    ) -> None:
        """Send messages without a key to another fragment; `is_in_doubt`: the first one may have stored them."""
        target = self._target
        places = list(enumerate(fragment_batch.deliveries))
        bound = [delivery for place, delivery in places if place in fragment_batch.keyed_positions]
        if bound:
            self._settle(bound, target.fragment_error(fragment_number, error))
        others = [delivery for place, delivery in places if place not in fragment_batch.keyed_positions]
        self._send_each(others, is_in_doubt=is_in_doubt)
