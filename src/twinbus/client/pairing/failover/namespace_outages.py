"""Outages of a whole namespace, as the parts of a pairing meet them.

If a namespace is gone, every pump and every backlog queue finds out by itself, and again with each attempt. Owns: that
an outage is told once at its beginning and once at its end. What each part meets is an event of its own as well, which
says that it follows from an outage, so that the log does not repeat it.
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
    """A namespace of the pair, and the events of its outages."""

    PRIMARY = (EventKind.PRIMARY_LOST, EventKind.PRIMARY_BACK)
    SECONDARY = (EventKind.SECONDARY_LOST, EventKind.SECONDARY_BACK)

    @property
    def lost_event(self) -> EventKind:
        """Told at the beginning of an outage."""
        return self.value[0]

    @property
    def back_event(self) -> EventKind:
        """Told at its end."""
        return self.value[1]


def lost_namespace(error: BaseException | None) -> NamespaceRole | None:
    """Return the namespace that a pump, or a backlog queue, has lost with this error; None if it is no outage."""
    if isinstance(error, PrimaryLost):
        return NamespaceRole.PRIMARY
    return NamespaceRole.SECONDARY if isinstance(error, ConnectionFailed | ConnectionLost | OperationTimeout) else None


class NamespaceOutages:
    """The outages of one pairing."""

    def __init__(self, emit: Callable[[EventKind, str], None], addresses: Mapping[NamespaceRole, str]) -> None:
        """`tell` gets the kind of an event, and which namespace it is about and why."""
        self._emit = emit
        self._addresses = addresses
        self._waiting_pumps: dict[NamespaceRole, set[str]] = {}
        """For each namespace that is lost: the backlog queues whose pumps wait for it."""

    def note_lost(self, role: NamespaceRole, error: ServiceBusError, pump: str | None = None) -> None:
        """Note that a namespace is lost; a pump, if one is named, waits for it."""
        is_new = role not in self._waiting_pumps
        waiting = self._waiting_pumps.setdefault(role, set())
        if pump is not None:
            waiting.add(pump)
        if is_new:
            address, why = self._addresses[role], str(error.error if isinstance(error, PrimaryLost) else error)
            self._emit(role.lost_event, why if address in why else f"{address}: {why}")

    def note_pump_resumed(self, pump: str) -> None:
        """Note that a pump waits no longer: it drains again, or it failed for another reason."""
        for side, waiting in list(self._waiting_pumps.items()):
            if pump in waiting:
                waiting.discard(pump)
                self.note_reached(side)

    def note_reached(self, role: NamespaceRole) -> None:
        """Note that a namespace answers. Its outage is over when no pump waits for it any more."""
        if role in self._waiting_pumps and not self._waiting_pumps[role]:
            del self._waiting_pumps[role]
            self._emit(role.back_event, self._addresses[role])
