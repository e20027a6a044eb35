"""The publisher of a pair's events: it puts the time on each, writes its log record, and calls the listeners.

    async for event in pairing.events(): ...

Owns: the streams of applications, and the state of outages (`outages`), each of which is published once. A stream whose
reader does not keep up loses the oldest events, and says how many.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

from twinbus.client.events import EventPublisher, MessageEvent
from twinbus.client.pairing import logs
from twinbus.client.pairing.events import ALL_KINDS, EventKind, PairingEvent
from twinbus.client.pairing.outages import NamespaceOutages, NamespaceRole
from twinbus.client.pairing.rewriting import message_id_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.client.clock import Clock
    from twinbus.client.events import Kind
    from twinbus.client.pairing.parcel import ParkedMessage

MAX_BUFFERED_EVENTS: Final = 10_000
"""Events that wait for the reader of one stream."""


class DeferralBegan(MessageEvent):
    """Parked messages of a destination begin to be deferred: for listeners that do not need an event of each."""


class EventFields(TypedDict, total=False):
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


class PairEventPublisher(EventPublisher):
    """The events of one pair."""

    def __init__(self, clock: Clock, primary: str = "", secondary: str = "") -> None:
        """`primary` and `secondary` are the addresses of the namespaces."""
        super().__init__()
        self._clock = clock
        addresses = {NamespaceRole.PRIMARY: primary, NamespaceRole.SECONDARY: secondary}
        self.outages = NamespaceOutages(lambda kind, reason: self.emit(kind, reason=reason), addresses)

    def is_wanted(self, kind: Kind) -> bool:
        """Return whether somebody listens for such events, or the log has them."""
        return kind in self.listened_kinds or (isinstance(kind, EventKind) and logs.is_logged(kind))

    def emit(self, kind: EventKind, **fields: Unpack[EventFields]) -> None:
        """Publish an event that happened now."""
        event = PairingEvent(kind=kind, at_ms=self._clock.wall_ms(), **fields)
        logs.write_log_record(event)
        self.publish(event)

    def emit_message(
        self, kind: EventKind, message: ParkedMessage, backlog_queue: str, reason: str | None = None
    ) -> None:
        """Publish what happened to a parked message, if somebody wants to know."""
        if self.is_wanted(kind):
            restored = message.restored
            self.emit(
                kind,
                path=restored.path,
                backlog_queue=backlog_queue,
                session_id=restored.session_id,
                message_id=message_id_of(restored.payload),
                sequence_number=message.sequence_number,
                reason=reason,
            )

    async def stream(self) -> AsyncIterator[PairingEvent]:
        """Yield all events from now on."""
        waiting: deque[PairingEvent] = deque(maxlen=MAX_BUFFERED_EVENTS)
        arrived, lost = asyncio.Event(), 0

        def take(event: PairingEvent) -> None:
            nonlocal lost
            lost += len(waiting) == MAX_BUFFERED_EVENTS
            waiting.append(event)
            arrived.set()

        end = self.listen(take, ALL_KINDS)
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
