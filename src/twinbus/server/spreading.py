"""A link on which a client sends messages to a partitioned entity.

Owns: which messages of one read go to which fragment. Those of one fragment are stored together; each is answered for
itself. One without a key that its fragment does not take is sent to another; one with a key is told which fragment that
is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from twinbus.broker.ports.incoming import Parcel
from twinbus.model.description import FRAGMENTS
from twinbus.model.errors import ServiceBusError
from twinbus.server.incoming import Incoming

if TYPE_CHECKING:
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.broker.namespace import Queue, Topic


class _Portion:
    """What goes to one fragment."""

    __slots__ = ("deliveries", "keyed", "parcel")

    def __init__(self) -> None:
        self.parcel = Parcel()
        self.deliveries: list[IncomingDelivery] = []
        self.keyed: set[int] = set()
        """The places of deliveries whose keys lead here, and nowhere else."""


class _Portions:
    """What goes where, of messages that came in one read."""

    def __init__(self, target: Queue | Topic) -> None:
        self.by_number: dict[int, _Portion] = {}
        self._target = target

    def _find(self, key: bytes | None) -> _Portion:
        return self.by_number.setdefault(self._target.spread.choose(key), _Portion())

    def add(self, delivery: IncomingDelivery, parcel: Parcel, key: bytes | None) -> None:
        """A delivery that is not divided."""
        portion = self._find(key)
        if key is not None:
            portion.keyed.add(len(portion.deliveries))
        portion.deliveries.append(delivery)
        portion.parcel.take(parcel)

    def share_out(self, free: _Portion) -> None:
        """Single messages without keys: each fragment gets a share, of such as follow each other.

        They are answered in one frame; where each fragment got every sixteenth, each needed a frame for itself.
        """
        records, deliveries = free.parcel.records, free.deliveries
        share = -(-len(deliveries) // FRAGMENTS)
        for start in range(0, len(deliveries), share or 1):
            portion = self._find(None)
            portion.parcel.records += records[start : start + share]
            portion.deliveries += deliveries[start : start + share]


class SpreadIncoming(Incoming):
    """Messages from one link to one partitioned queue or topic."""

    def receive(self, deliveries: list[IncomingDelivery]) -> None:
        """Messages that came in one read: those of a fragment are stored together."""
        target, namespace = self._target, self._namespace
        self.used_s, now_ms = namespace.clock.monotonic_s(), namespace.clock.wall_ms()
        target.accessed_ms, target.used_s = now_ms, self.used_s
        add_to, terms = namespace.intake.add_to, target.terms
        portions, free = _Portions(target), _Portion()
        parcel = free.parcel
        keys, keep = parcel.keys, free.deliveries.append
        for delivery in deliveries:
            if delivery.state is not None:
                self._send_later(delivery)
                continue
            try:
                add_to(parcel, delivery.payload, delivery.message_format, now_ms, terms)
            except ServiceBusError as error:
                keys.clear()
                self._answer([delivery], error)
                continue
            if len(keys) == 1 and keys[0] is None and not parcel.pings:
                keys.clear()
                keep(delivery)
            else:
                self._divide(delivery, parcel.split(len(free.deliveries)), portions)
        portions.share_out(free)
        self._send_portions(portions)

    def _divide(self, delivery: IncomingDelivery, parcel: Parcel, portions: _Portions) -> None:
        """Messages with a key, or several that came as one delivery."""
        keys = parcel.keys or parcel.ping_keys
        if keys.count(keys[0]) == len(keys):
            portions.add(delivery, parcel, keys[0])
            return
        self._send_portions(portions)  # what came before it is stored before it
        portions.by_number.clear()
        self._send(parcel, [delivery])

    def _send_portions(self, portions: _Portions) -> None:
        for number, portion in portions.by_number.items():
            self._send_portion(number, portion)

    def _send_portion(self, number: int, portion: _Portion) -> None:
        target = self._target
        if portion.keyed and target.order.holds_one(number):  # a batch of its key came before it, and is being checked
            size = sum([len(record) for record in portion.parcel.records])
            try:
                target.order.enter_one(number, size, partial(self._store_portion, number, portion))
            except ServiceBusError as error:
                self._stranded(number, portion, error, is_in_doubt=False)
            return
        self._store_portion(number, portion)

    def _store_portion(self, number: int, portion: _Portion) -> None:
        target = self._target
        messages, pings = len(portion.parcel.records), portion.parcel.pings

        def answer(error: ServiceBusError | None) -> None:
            if error is None:
                self._count(portion.deliveries, messages, pings)
                self._answer(portion.deliveries, None)
            else:
                self._stranded(number, portion, error, is_in_doubt=error.may_have_happened)

        try:
            self._target.check_sends()
            target.parts[number].send(portion.parcel, answer)
        except ServiceBusError as error:
            if error.is_retriable:
                self._stranded(number, portion, error, is_in_doubt=False)
            else:
                self._send_each(portion.deliveries)

    def _stranded(self, number: int, portion: _Portion, error: ServiceBusError, *, is_in_doubt: bool) -> None:
        """Send messages without a key to another fragment; `is_in_doubt`: the first one may have stored them."""
        target = self._target
        places = list(enumerate(portion.deliveries))
        bound = [delivery for place, delivery in places if place in portion.keyed]
        if bound:
            self._answer(bound, target.refusal_of(number, error))
        others = [delivery for place, delivery in places if place not in portion.keyed]
        self._send_each(others, is_in_doubt=is_in_doubt)
