"""A link on which a client sends messages to a partitioned entity.

Owns: which messages of one read go to which fragment. Those of one fragment are stored together; each is answered for
itself. One without a key that its fragment does not take is sent to another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.intake import Parcel
from twinbus.broker.partitioned.entity import Partitioned
from twinbus.model.errors import ServiceBusError
from twinbus.server.incoming import Incoming

if TYPE_CHECKING:
    from twinbus.amqp.delivery import IncomingDelivery


class _Portion:
    """What goes to one fragment."""

    __slots__ = ("deliveries", "keyed", "parcel")

    def __init__(self) -> None:
        self.parcel = Parcel()
        self.deliveries: list[IncomingDelivery] = []
        self.keyed: list[bool] = []
        """Of each delivery: its key leads here, and nowhere else."""


class SpreadIncoming(Incoming):
    """Messages from one link to one partitioned queue or topic."""

    def receive(self, deliveries: list[IncomingDelivery]) -> None:
        """Messages that came in one read: those of a fragment are stored together."""
        target, namespace = self._target, self._namespace
        assert isinstance(target, Partitioned)
        self.used_s, now_ms = namespace.clock.monotonic_s(), namespace.clock.wall_ms()
        target.accessed_ms, target.used_s = now_ms, self.used_s
        add_to, terms, choose = namespace.intake.add_to, target.terms, target.spread.choose
        portions: dict[int, _Portion] = {}
        for delivery in deliveries:
            if delivery.state is not None:
                self._send_later(delivery)
                continue
            parcel = Parcel()
            try:
                add_to(parcel, delivery.payload, delivery.message_format, now_ms, terms)
            except ServiceBusError as error:
                self._answer([delivery], error)
                continue
            keys = parcel.keys or parcel.ping_keys
            key = keys[0]
            if len(keys) > 1 and any(other != key for other in keys):
                self._send(parcel, [delivery])
                continue
            number = choose(key)
            portion = portions.get(number)
            if portion is None:
                portion = portions[number] = _Portion()
            portion.parcel.records += parcel.records
            portion.parcel.ids += parcel.ids
            portion.parcel.pings += parcel.pings
            portion.deliveries.append(delivery)
            portion.keyed.append(key is not None)
        for number, portion in portions.items():
            self._send_portion(number, portion)

    def _send_portion(self, number: int, portion: _Portion) -> None:
        target = self._target
        assert isinstance(target, Partitioned)

        def answer(error: ServiceBusError | None) -> None:
            if error is None:
                self._answer(portion.deliveries, None)
            else:
                self._stranded(portion, error)

        try:
            self._target.check_sends()
            target.parts[number].send(portion.parcel, answer)
        except ServiceBusError as error:
            if error.is_retriable:
                self._stranded(portion, error)
            else:
                self._send_each(portion.deliveries)

    def _stranded(self, portion: _Portion, error: ServiceBusError) -> None:
        """A fragment has not taken what was meant for it: what has no key goes to another."""
        free = [delivery for delivery, keyed in zip(portion.deliveries, portion.keyed, strict=True) if not keyed]
        bound = [delivery for delivery, keyed in zip(portion.deliveries, portion.keyed, strict=True) if keyed]
        if bound:
            self._answer(bound, error)
        self._send_each(free)
