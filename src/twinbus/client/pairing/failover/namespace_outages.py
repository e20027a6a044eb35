"""Outages of a whole namespace, each reported once when it begins and once when it ends.

If a namespace is down, every pump and every backlog queue notices the outage separately, and again with each attempt.
Owns: the record of the current outages. The failure of each pump or queue is also published as an event, with a flag
that it is part of an outage, so that the log does not repeat the outage.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from twinbus.client.errors import ConnectionFailed, ConnectionLost
from twinbus.client.pairing.errors import PrimaryLost
from twinbus.client.pairing.observe.events import EventKind
from twinbus.model.errors import OperationTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.model.errors import ServiceBusError


class NamespaceRole(Enum):
    """A namespace of the pair, with the events of its outages."""

    PRIMARY = (EventKind.PRIMARY_LOST, EventKind.PRIMARY_BACK)
    SECONDARY = (EventKind.SECONDARY_LOST, EventKind.SECONDARY_BACK)

    @property
    def lost_event(self) -> EventKind:
        """The event at the beginning of an outage."""
        return self.value[0]

    @property
    def back_event(self) -> EventKind:
        """The event at the end of an outage."""
        return self.value[1]


def lost_namespace(error: BaseException | None) -> NamespaceRole | None:
    """Return the namespace that is down according to this error of a pump or a backlog queue, or None."""
    if isinstance(error, PrimaryLost):
        return NamespaceRole.PRIMARY
    return NamespaceRole.SECONDARY if isinstance(error, ConnectionFailed | ConnectionLost | OperationTimeout) else None


class NamespaceOutages:
    """The namespace outages of one pairing."""

    def __init__(self, emit: Callable[[EventKind, str], None], addresses: Mapping[NamespaceRole, str]) -> None:
        """Create a record without outages; `emit` gets an event kind, and a text with the namespace and the reason."""
        self._emit = emit
        self._addresses = addresses
        self._waiting_pumps: dict[NamespaceRole, set[str]] = {}
        """The backlog queues whose pumps wait, for each lost namespace."""

    def note_lost(self, role: NamespaceRole, error: ServiceBusError, pump: str | None = None) -> None:
        """Note that a namespace is lost. `pump` is the backlog queue of a pump that waits for the namespace, if any."""
        is_new = role not in self._waiting_pumps
        waiting = self._waiting_pumps.setdefault(role, set())
        if pump is not None:
            waiting.add(pump)
        if is_new:
            address, reason = self._addresses[role], str(error.error if isinstance(error, PrimaryLost) else error)
            self._emit(role.lost_event, reason if address in reason else f"{address}: {reason}")

    def note_pump_resumed(self, pump: str) -> None:
        """Note that a pump no longer waits, because it drains again or has failed for another reason."""
        for role, waiting in list(self._waiting_pumps.items()):
            if pump in waiting:
                waiting.discard(pump)
                self.note_reached(role)

    def note_reached(self, role: NamespaceRole) -> None:
        """Note that a namespace responds. Its outage ends when no pump waits for that namespace any more."""
        if role in self._waiting_pumps and not self._waiting_pumps[role]:
            del self._waiting_pumps[role]
            self._emit(role.back_event, self._addresses[role])
