"""A link on which a client sends messages to a partitioned entity.

Owns: which messages of one read go to which fragment. Those of one fragment are stored together; each is answered for
itself. One without a key that its fragment does not take is sent to another; one with a key is told which fragment that
is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from twinbus.broker.ports.incoming import IncomingBatch
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.errors import ServiceBusError
from twinbus.server.incoming import IncomingLink

if TYPE_CHECKING:
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.broker.namespace import Queue, Topic


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
