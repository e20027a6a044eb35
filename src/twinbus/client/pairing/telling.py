"""How the parts of a pairing tell what happens: one call, with the time put on it.

Owns: the line to the events and to the log. Knows nothing of who listens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

from twinbus.client.pairing import logs
from twinbus.client.pairing.events import PairingEvent
from twinbus.client.pairing.outages import Outages, Side
from twinbus.client.pairing.rewriting import message_id_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.client.clock import Clock
    from twinbus.client.pairing.events import EventKind, Events
    from twinbus.client.pairing.parcel import Parcel


class About(TypedDict, total=False):
    """What an event can be about."""

    path: str | None
    fragment: int | None
    backlog_queue: str | None
    message_id: object
    session_id: str | None
    sequence_number: int | None
    count: int
    time_to_live_ms: int | None
    reason: str | None
    is_outage: bool


class Telling:
    """Of one pairing."""

    def __init__(self, events: Events, clock: Clock, primary: str = "", secondary: str = "") -> None:
        """Events and clock are the pairing's; `primary` and `secondary` are the addresses of its namespaces."""
        self.on_deferral: Callable[[], None] | None = None
        """Called when messages begin to be deferred: for who does not want to hear of each."""
        self._events = events
        self._clock = clock
        addresses = {Side.PRIMARY: primary, Side.SECONDARY: secondary}
        self.outages = Outages(lambda kind, reason: self.tell(kind, reason=reason), addresses)

    def wants(self, kind: EventKind) -> bool:
        """Somebody hears of such events, or reads of them."""
        return self._events.wants(kind) or logs.is_wanted(kind)

    def tell_parcel(self, kind: EventKind, parcel: Parcel, backlog_queue: str, reason: str | None = None) -> None:
        """It happened to a parked message."""
        if self.wants(kind):
            restored = parcel.restored
            self.tell(
                kind,
                path=restored.path,
                backlog_queue=backlog_queue,
                session_id=restored.session_id,
                message_id=message_id_of(restored.payload),
                sequence_number=parcel.sequence_number,
                reason=reason,
            )

    def tell(self, kind: EventKind, **about: Unpack[About]) -> None:
        """It happened now."""
        event = PairingEvent(kind=kind, at_ms=self._clock.wall_ms(), **about)
        logs.write(event)
        self._events.tell(event)
