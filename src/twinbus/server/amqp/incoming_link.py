"""A link on which a client sends messages to an entity.

Owns: messages from transfer until accepted or rejected. A message is accepted when the broker reports that it is on
disk. An error in one message rejects only that message.
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
"""A link property: the entity to which messages are forwarded."""
SEND_CREDIT: Final = 2_000
"""How many unsettled messages a client may have; the connection limits their total size."""


class IncomingLink:
    """The server's end of a link on which a client sends messages to one queue or topic."""

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
        """Accept the link and grant credit at once, because some clients need it to continue.

        If `transfer_destination` is set, `target` is a queue, from which messages are forwarded to that entity.
        Operations are counted in `counter`.
        """
        self._counter = counter or UsageCounter()
        self.link = link
        self.is_sender = True
        self.message_count = 0
        """Messages accepted on this link."""
        self.path = target.path
        self.last_used_s = namespace.clock.monotonic_s()
        self._namespace = namespace
        self._target = target
        self._transactions = transactions
        self.transfer_destination = transfer_destination
        properties: dict[str, object] | None = (
            {Symbol(TRANSFER_DESTINATION): transfer_destination} if transfer_destination is not None else None
        )
        link.accept(max_message_size=target.description.max_message_kb * 1024, properties=properties)
        link.keep_credit(SEND_CREDIT)
        target.links.add(self)

    @property
    def _validation_policy(self) -> ValidationPolicy:
        """The requirements for messages. Messages to another entity need not meet the requirements of `target`."""
        return self._target.validation_policy if self.transfer_destination is None else ValidationPolicy()

    @property
    def is_busy(self) -> bool:
        """Whether any received message is unsettled."""
        return self.link.unanswered_count > 0

    def force_detach(self, error: ServiceBusError) -> None:
        """Detach the link with an error, for example because the entity was deleted."""
        self.link.detach(error=to_amqp_error(error))

    def on_detached(self) -> None:
        """Remove the detached link from its entity."""
        self._target.links.discard(self)

    def on_deliveries(self, deliveries: list[IncomingDelivery]) -> None:
        """Store messages that arrived in one read together, and settle them together."""
        clock = self._namespace.clock
        self.last_used_s, now_ms = clock.monotonic_s(), clock.wall_ms()
        self._target.accessed_ms, self._target.last_used_s = now_ms, self.last_used_s
        add_to, policy = self._namespace.intake.add_to, self._validation_policy
        batch = IncomingBatch()
        accepted: list[IncomingDelivery] = []
        for delivery in deliveries:
            if delivery.state is not None:
                self._send_in_transaction(delivery)
                continue
            try:
                add_to(batch, delivery.payload, delivery.message_format, now_ms, policy)
            except ServiceBusError as error:
                self._settle([delivery], error)
            else:
                accepted.append(delivery)
        if accepted:
            self._send(batch, accepted)

    def _send_in_transaction(self, delivery: IncomingDelivery) -> None:
        """Add a message to its transaction, and accept it provisionally."""
        try:
            transaction, state = self._transactions.join(delivery.state, len(delivery.payload))
            transaction.send_to(self._target, delivery.payload, delivery.message_format, self.transfer_destination)
        except ServiceBusError as error:
            self._settle([delivery], error)
        else:
            self._count_sends([delivery], len(split_batch(delivery.payload, delivery.message_format)), 0)
            self.link.settle([delivery], state)

    def _send(self, batch: IncomingBatch, deliveries: list[IncomingDelivery], *, is_in_doubt: bool = False) -> None:
        """Store messages. If `is_in_doubt` is True, a failed earlier attempt may have stored these messages."""
        messages, pings = len(batch.records), batch.ping_count

        def on_stored(error: ServiceBusError | None) -> None:
            if error is None:
                self._count_sends(deliveries, messages, pings)
            self._settle(deliveries, error, is_in_doubt=is_in_doubt)

        try:
            if self.transfer_destination is not None and batch.records:
                assert isinstance(self._target, Queue)
                self._target.send_via(batch.records, self.transfer_destination, on_stored)
            else:
                self._target.send(batch, on_stored)
        except ServiceBusError as error:
            if len(deliveries) == 1 or error.is_retriable:
                self._settle(deliveries, error, is_in_doubt=is_in_doubt)
            else:
                self._send_each(deliveries)

    def _send_each(self, deliveries: list[IncomingDelivery], *, is_in_doubt: bool = False) -> None:
        """Store messages one by one, because the batch failed as a whole and some of them may still fit.

        If `is_in_doubt` is True, an earlier attempt may have stored the messages, so they are marked as possible
        duplicates.
        """
        now_ms = self._namespace.clock.wall_ms()
        for delivery in deliveries:
            batch = IncomingBatch()
            self._namespace.intake.add_to(
                batch, delivery.payload, delivery.message_format, now_ms, self._validation_policy
            )
            if is_in_doubt:
                batch.mark_possible_duplicates()
            self._send(batch, [delivery], is_in_doubt=is_in_doubt)

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

    # --- usage --------------------------------------------------------------------------------------------------------

    def _count_sends(self, deliveries: list[IncomingDelivery], message_count: int, ping_count: int) -> None:
        """Count accepted messages and pings; a delivery may be a batch of several messages."""
        size, units = 0, message_count
        for delivery in deliveries:
            length = len(delivery.payload)
            size += length
            if length > CHARGE_UNIT_BYTES:
                units += extra_units(delivery.payload, delivery.message_format)
        counter = self._counter
        self.message_count += message_count
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
    """The deliveries for one fragment."""

    __slots__ = ("batch", "deliveries", "keyed_positions")

    def __init__(self) -> None:
        self.batch = IncomingBatch()
        self.deliveries: list[IncomingDelivery] = []
        self.keyed_positions: set[int] = set()
        """The positions of deliveries whose partition keys bind them to this fragment."""


class _FragmentBatches:
    """The deliveries of one read, grouped by fragment."""

    def __init__(self, target: Queue | Topic) -> None:
        self.by_fragment: dict[int, _FragmentBatch] = {}
        self._target = target

    def _batch_for(self, key: bytes | None) -> _FragmentBatch:
        return self.by_fragment.setdefault(self._target.partitioner.choose(key), _FragmentBatch())

    def add(self, delivery: IncomingDelivery, batch: IncomingBatch, key: bytes | None) -> None:
        """Add a delivery whose messages all have the same partition key."""
        fragment_batch = self._batch_for(key)
        if key is not None:
            fragment_batch.keyed_positions.add(len(fragment_batch.deliveries))
        fragment_batch.deliveries.append(delivery)
        fragment_batch.batch.extend(batch)

    def distribute(self, unkeyed: _FragmentBatch) -> None:
        """Distribute single messages without keys: each fragment gets a run of consecutive messages.

        The messages in a run are settled in one frame. If each fragment got every sixteenth message, each message would
        need a frame of its own.
        """
        records, deliveries = unkeyed.batch.records, unkeyed.deliveries
        share = -(-len(deliveries) // FRAGMENT_COUNT)
        for start in range(0, len(deliveries), share or 1):
            fragment_batch = self._batch_for(None)
            fragment_batch.batch.records += records[start : start + share]
            fragment_batch.deliveries += deliveries[start : start + share]


class PartitionedIncomingLink(IncomingLink):
    """The server's end of a link on which a client sends messages to one partitioned queue or topic."""

    def on_deliveries(self, deliveries: list[IncomingDelivery]) -> None:
        """Store messages that arrived in one read, grouped by fragment."""
        target, namespace = self._target, self._namespace
        self.last_used_s, now_ms = namespace.clock.monotonic_s(), namespace.clock.wall_ms()
        target.accessed_ms, target.last_used_s = now_ms, self.last_used_s
        add_to, policy = namespace.intake.add_to, target.validation_policy
        fragment_batches, unkeyed = _FragmentBatches(target), _FragmentBatch()
        batch = unkeyed.batch
        keys, keep_unkeyed = batch.partition_keys, unkeyed.deliveries.append
        for delivery in deliveries:
            if delivery.state is not None:
                self._send_in_transaction(delivery)
                continue
            try:
                add_to(batch, delivery.payload, delivery.message_format, now_ms, policy)
            except ServiceBusError as error:
                keys.clear()
                self._settle([delivery], error)
                continue
            if len(keys) == 1 and keys[0] is None and not batch.ping_count:
                keys.clear()
                keep_unkeyed(delivery)
            else:
                self._assign(delivery, batch.split_after(len(unkeyed.deliveries)), fragment_batches)
        fragment_batches.distribute(unkeyed)
        self._send_batches(fragment_batches)

    def _assign(self, delivery: IncomingDelivery, batch: IncomingBatch, fragment_batches: _FragmentBatches) -> None:
        """Assign a delivery with a partition key, or one that contains several messages, to a fragment."""
        keys = batch.partition_keys or batch.ping_partition_keys
        if keys.count(keys[0]) == len(keys):
            fragment_batches.add(delivery, batch, keys[0])
            return
        self._send_batches(fragment_batches)  # earlier messages must be stored first
        fragment_batches.by_fragment.clear()
        self._send(batch, [delivery])

    def _send_batches(self, fragment_batches: _FragmentBatches) -> None:
        for number, fragment_batch in fragment_batches.by_fragment.items():
            self._send_batch(number, fragment_batch)

    def _send_batch(self, fragment_number: int, fragment_batch: _FragmentBatch) -> None:
        target = self._target
        if fragment_batch.keyed_positions and target.send_order.must_wait_for(
            fragment_number
        ):  # an earlier batch with the same key is still being checked
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

        def on_stored(error: ServiceBusError | None) -> None:
            if error is None:
                self._count_sends(fragment_batch.deliveries, messages, pings)
                self._settle(fragment_batch.deliveries, None)
            else:
                self._on_batch_failed(fragment_number, fragment_batch, error, is_in_doubt=error.may_have_happened)

        try:
            self._target.check_send_enabled()
            target.parts[fragment_number].send(fragment_batch.batch, on_stored)
        except ServiceBusError as error:
            if error.is_retriable:
                self._on_batch_failed(fragment_number, fragment_batch, error, is_in_doubt=False)
            else:
                self._send_each(fragment_batch.deliveries)

    def _on_batch_failed(
        self, fragment_number: int, fragment_batch: _FragmentBatch, error: ServiceBusError, *, is_in_doubt: bool
    ) -> None:
        """Reject messages with a key, and send messages without a key to another fragment.

        If `is_in_doubt` is True, the first fragment may have stored the messages.
        """
        target = self._target
        numbered = list(enumerate(fragment_batch.deliveries))
        keyed = [delivery for position, delivery in numbered if position in fragment_batch.keyed_positions]
        if keyed:
            self._settle(keyed, target.fragment_error(fragment_number, error))
        unkeyed = [delivery for position, delivery in numbered if position not in fragment_batch.keyed_positions]
        self._send_each(unkeyed, is_in_doubt=is_in_doubt)
