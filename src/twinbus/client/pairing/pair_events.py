"""The publisher of a pair's events: it puts the time on each, writes its log record, and calls the listeners.

    async for event in pairing.events(): ...

Owns: the streams of applications, and the state of outages (`outages`), each of which is published once. A stream whose
reader does not keep up loses the oldest events, and says how many.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

from twinbus.client.events import Events, MessageEvent
from twinbus.client.pairing import logs
from twinbus.client.pairing.events import EVERY_KIND, EventKind, PairingEvent
from twinbus.client.pairing.outages import Outages, Side
from twinbus.client.pairing.rewriting import message_id_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.client.clock import Clock
    from twinbus.client.events import Kind
    from twinbus.client.pairing.parcel import Parcel

KEPT: Final = 10_000
"""Events that wait for the reader of one stream."""


class DeferralBegan(MessageEvent):
    """Parked messages of a destination begin to be deferred: for listeners that do not need an event of each."""


class About(TypedDict, total=False):
    """The fields of an event, beside its kind and time."""

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


class PairEvents(Events):
    """The events of one pair."""

    def __init__(self, clock: Clock, primary: str = "", secondary: str = "") -> None:
        """`primary` and `secondary` are the addresses of the namespaces."""
        super().__init__()
        self._clock = clock
        addresses = {Side.PRIMARY: primary, Side.SECONDARY: secondary}
        self.outages = Outages(lambda kind, reason: self.emit(kind, reason=reason), addresses)

    def wants(self, kind: Kind) -> bool:
        """Return whether somebody listens for such events, or the log has them."""
        return kind in self.wanted or (isinstance(kind, EventKind) and logs.is_wanted(kind))

    def emit(self, kind: EventKind, **about: Unpack[About]) -> None:
        """Publish an event that happened now."""
        event = PairingEvent(kind=kind, at_ms=self._clock.wall_ms(), **about)
        logs.write(event)
        self.publish(event)

    def emit_parcel(self, kind: EventKind, parcel: Parcel, backlog_queue: str, reason: str | None = None) -> None:
        """Publish what happened to a parked message, if somebody wants to know."""
        if self.wants(kind):
            restored = parcel.restored
            self.emit(
                kind,
                path=restored.path,
                backlog_queue=backlog_queue,
                session_id=restored.session_id,
                message_id=message_id_of(restored.payload),
                sequence_number=parcel.sequence_number,
                reason=reason,
            )

    async def stream(self) -> AsyncIterator[PairingEvent]:
        """Yield all events from now on."""
        waiting: deque[PairingEvent] = deque(maxlen=KEPT)
        arrived, lost = asyncio.Event(), 0

        def take(event: PairingEvent) -> None:
            nonlocal lost
            lost += len(waiting) == KEPT
            waiting.append(event)
            arrived.set()

        end = self.listen(take, EVERY_KIND)
        try:
            while True:
                await arrived.wait()
                arrived.clear()
                if lost:
                    missing, lost = lost, 0
                    yield PairingEvent(kind=EventKind.EVENTS_LOST, at_ms=waiting[0].at_ms, count=missing)
                while waiting:
                    yield waiting.popleft()
        finally:
            end()
