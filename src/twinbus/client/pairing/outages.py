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
from twinbus.client.pairing.events import EventKind
from twinbus.model.errors import OperationTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.model.errors import ServiceBusError


class Side(Enum):
    """A namespace of the pair, and the events of its outages."""

    PRIMARY = (EventKind.PRIMARY_LOST, EventKind.PRIMARY_BACK)
    SECONDARY = (EventKind.SECONDARY_LOST, EventKind.SECONDARY_BACK)

    @property
    def lost(self) -> EventKind:
        """Told at the beginning of an outage."""
        return self.value[0]

    @property
    def back(self) -> EventKind:
        """Told at its end."""
        return self.value[1]


def side_of(error: BaseException | None) -> Side | None:
    """Return the namespace that a pump, or a backlog queue, has lost with this error; None if it is no outage."""
    if isinstance(error, PrimaryLost):
        return Side.PRIMARY
    return Side.SECONDARY if isinstance(error, ConnectionFailed | ConnectionLost | OperationTimeout) else None


class Outages:
    """The outages of one pairing."""

    def __init__(self, tell: Callable[[EventKind, str], None], addresses: Mapping[Side, str]) -> None:
        """`tell` gets the kind of an event, and which namespace it is about and why."""
        self._tell = tell
        self._addresses = addresses
        self._waiting: dict[Side, set[str]] = {}
        """For each namespace that is lost: the backlog queues whose pumps wait for it."""

    def lose(self, side: Side, error: ServiceBusError, pump: str | None = None) -> None:
        """Note that a namespace is lost; a pump, if one is named, waits for it."""
        is_new = side not in self._waiting
        waiting = self._waiting.setdefault(side, set())
        if pump is not None:
            waiting.add(pump)
        if is_new:
            address, why = self._addresses[side], str(error.error if isinstance(error, PrimaryLost) else error)
            self._tell(side.lost, why if address in why else f"{address}: {why}")

    def end_wait(self, pump: str) -> None:
        """Note that a pump waits no longer: it drains again, or it failed for another reason."""
        for side, waiting in list(self._waiting.items()):
            if pump in waiting:
                waiting.discard(pump)
                self.reach(side)

    def reach(self, side: Side) -> None:
        """Note that a namespace answers. Its outage is over when no pump waits for it any more."""
        if side in self._waiting and not self._waiting[side]:
            del self._waiting[side]
            self._tell(side.back, self._addresses[side])
