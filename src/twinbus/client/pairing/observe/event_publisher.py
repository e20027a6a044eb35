"""Publishes the events of a pair: each event gets a time, is written to the log, and is passed to the listeners.

    async for event in pairing.events(): ...

Owns: the event streams of applications, and the record of outages (`outages`), so that each outage is published once. A
stream whose reader is too slow drops the oldest events and reports their number.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

from twinbus.client.events import EventPublisher, MessageEvent
from twinbus.client.pairing.backlog.rewriting import message_id_of
from twinbus.client.pairing.failover.entity_health import EntityState
from twinbus.client.pairing.failover.namespace_outages import NamespaceOutages, NamespaceRole
from twinbus.client.pairing.observe.events import ALL_KINDS, EventKind, PairingEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.client.clock import Clock
    from twinbus.client.events import Kind
    from twinbus.client.pairing.syphon.parked_message import ParkedMessage

log: Final = logging.getLogger("twinbus.client.pairing")

LOG_LEVELS: Final = {
    EventKind.SUSPECTED: logging.WARNING,
    EventKind.FAILED_OVER: logging.WARNING,
    EventKind.PARKED: logging.DEBUG,
    EventKind.PINGED: logging.DEBUG,
    EventKind.RESTORED: logging.INFO,
    EventKind.UNREACHABLE: logging.ERROR,
    EventKind.FRAGMENT_DOWN: logging.WARNING,
    EventKind.FRAGMENT_BACK: logging.INFO,
    EventKind.QUEUE_OUT: logging.WARNING,
    EventKind.QUEUE_BACK: logging.INFO,
    EventKind.SPOOLED: logging.DEBUG,
    EventKind.UNSPOOLED: logging.DEBUG,
    EventKind.SPOOL_REFUSED: logging.ERROR,
    EventKind.MOVED: logging.DEBUG,
    EventKind.DEFERRED: logging.DEBUG,
    EventKind.DESTINATION_REFUSES: logging.WARNING,
    EventKind.DESTINATION_ACCEPTS: logging.INFO,
    EventKind.DEAD_LETTERED: logging.WARNING,
    EventKind.PUMP_STARTED: logging.INFO,
    EventKind.PUMP_DISPLACED: logging.INFO,
    EventKind.PUMP_FAILED: logging.WARNING,
    EventKind.PRIMARY_LOST: logging.WARNING,
    EventKind.PRIMARY_BACK: logging.INFO,
    EventKind.SECONDARY_LOST: logging.WARNING,
    EventKind.SECONDARY_BACK: logging.INFO,
    EventKind.ALARM: logging.ERROR,
    EventKind.ALARM_OVER: logging.INFO,
    EventKind.FACTORY_FAULTED: logging.ERROR,
    EventKind.UNPROTECTED: logging.ERROR,
    EventKind.PROTECTED: logging.INFO,
    EventKind.EVENTS_LOST: logging.WARNING,
}
STATE_BY_EVENT: Final = {
    EventKind.RESTORED: EntityState.HEALTHY,
    EventKind.SUSPECTED: EntityState.SUSPECT,
    EventKind.FAILED_OVER: EntityState.FAILED_OVER,
    EventKind.UNREACHABLE: EntityState.UNREACHABLE,
}
"""The entity state that each state-change event leads to."""


def is_logged(kind: EventKind) -> bool:
    """Return whether events of this kind are written to the log."""
    return log.isEnabledFor(LOG_LEVELS.get(kind, logging.INFO))


def write_log_record(event: PairingEvent) -> None:
    """Write the log record for an event."""
    level = logging.DEBUG if event.is_outage else LOG_LEVELS.get(event.kind, logging.INFO)
    if not log.isEnabledFor(level):
        return
    state = STATE_BY_EVENT.get(event.kind)
    fields = {
        "event": event.kind.value,
        "path": event.path,
        "fragment": event.fragment,
        "backlog_queue": event.backlog_queue,
        "state": None if state is None else state.value,
        "reason": event.reason,
        "message_id": None if event.message_id is None else str(event.message_id),
        "session_id": event.session_id,
        "sequence_number": event.sequence_number,
    }
    log.log(level, "%s", _log_text(event), extra={name: value for name, value in fields.items() if value is not None})


def _log_text(event: PairingEvent) -> str:
    state = STATE_BY_EVENT.get(event.kind)
    text = event.kind.value if state is None else f"'{event.path}' is {state.value}"
    if state is None and event.path is not None:
        text += f", '{event.path}'"
    if event.fragment is not None:
        text += f", fragment {event.fragment}"
    if event.backlog_queue is not None:
        text += f", backlog queue '{event.backlog_queue}'"
    return text if event.reason is None else f"{text}: {event.reason}"


MAX_BUFFERED_EVENTS: Final = 10_000
"""The maximum number of events buffered for the reader of one stream."""


class DeferralBegan(MessageEvent):
    """The event for a destination that began to defer messages, for listeners that do not need an event per message."""


class EventFields(TypedDict, total=False):
    """The fields of an event besides its kind and time."""

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
    """The publisher of one pair's events."""

    def __init__(self, clock: Clock, primary: str = "", secondary: str = "") -> None:
        """Create a publisher; `primary` and `secondary` are the addresses of the namespaces."""
        super().__init__()
        self._clock = clock
        addresses = {NamespaceRole.PRIMARY: primary, NamespaceRole.SECONDARY: secondary}
        self.outages = NamespaceOutages(lambda kind, reason: self.emit(kind, reason=reason), addresses)

    def is_wanted(self, kind: Kind) -> bool:
        """Return whether a listener or the log wants events of this kind."""
        return kind in self.listened_kinds or (isinstance(kind, EventKind) and is_logged(kind))

    def emit(self, kind: EventKind, **fields: Unpack[EventFields]) -> None:
        """Publish an event with the current time."""
        event = PairingEvent(kind=kind, at_ms=self._clock.wall_ms(), **fields)
        write_log_record(event)
        self.publish(event)

    def emit_message(
        self, kind: EventKind, message: ParkedMessage, backlog_queue: str, reason: str | None = None
    ) -> None:
        """Publish an event about a parked message, if a listener or the log wants it."""
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
        buffered: deque[PairingEvent] = deque(maxlen=MAX_BUFFERED_EVENTS)
        arrived, lost = asyncio.Event(), 0

        def take(event: PairingEvent) -> None:
            nonlocal lost
            lost += len(buffered) == MAX_BUFFERED_EVENTS
            buffered.append(event)
            arrived.set()

        unsubscribe = self.listen(take, ALL_KINDS)
        try:
            while True:
                await arrived.wait()
                arrived.clear()
                if lost:
                    lost_count, lost = lost, 0
                    yield PairingEvent(kind=EventKind.EVENTS_LOST, at_ms=buffered[0].at_ms, count=lost_count)
                while buffered:
                    yield buffered.popleft()
        finally:
            unsubscribe()
