"""What happens in a pair, in the application's log: one record for each event, with its parts as fields.

    WARNING twinbus.client.pairing 'orders' is failed over: contoso did not answer for 30 s

Owns: the level and the sentence of each kind of event. In the outage of a namespace each pump fails; the log says once
that the namespace is lost, and tells of the pumps at DEBUG. No record holds a body, a property or a key; what happens
to each single message is told at DEBUG.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from twinbus.client.pairing.events import EventKind
from twinbus.client.pairing.failover import EntityState

if TYPE_CHECKING:
    from twinbus.client.pairing.events import PairingEvent

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
"""Events that are a change of an entity's state."""


def is_logged(kind: EventKind) -> bool:
    """A record of such an event would be written."""
    return log.isEnabledFor(LOG_LEVELS.get(kind, logging.INFO))


def write_log_record(event: PairingEvent) -> None:
    """Write the record of an event."""
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
    what = event.kind.value if state is None else f"'{event.path}' is {state.value}"
    if state is None and event.path is not None:
        what += f", '{event.path}'"
    if event.fragment is not None:
        what += f", fragment {event.fragment}"
    if event.backlog_queue is not None:
        what += f", backlog queue '{event.backlog_queue}'"
    return what if event.reason is None else f"{what}: {event.reason}"
