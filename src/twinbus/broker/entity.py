"""What queues, topics and subscriptions have in common.

Owns: an entity's name and times, who uses it without receiving from it, whether anything can be sent to it, and the
outage that it may have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from twinbus.model.errors import EntityDisabled

if TYPE_CHECKING:
    from twinbus.broker.clock import Clock
    from twinbus.broker.outage import Outage
    from twinbus.model.errors import ServiceBusError

MEGABYTE: Final = 1_048_576
NO_SENDING: Final = frozenset({"Disabled", "SendDisabled"})
NO_RECEIVING: Final = frozenset({"Disabled", "ReceiveDisabled"})


class Producer(Protocol):
    """A link that does not receive, as the entity it is for knows it."""

    sends: bool
    """It is for sending messages."""

    def entity_gone(self, error: ServiceBusError) -> None:
        """The entity was deleted."""


class Entity:
    """One entity of a namespace."""

    def __init__(self, entity_id: int, path: str, status: str, *, created_ms: int, updated_ms: int) -> None:
        """Made by the namespace."""
        self.entity_id = entity_id
        self.path = path
        self.status = status
        self.created_ms = created_ms
        self.updated_ms = updated_ms
        self.accessed_ms = created_ms
        self.used_s = 0.0
        """When it was last used, by the monotonic clock."""
        self.producers: set[Producer] = set()
        self.outage: Outage | None = None
        """It refuses for a while, because somebody wants to see what becomes of that."""

    @property
    def is_in_use(self) -> bool:
        """Someone is there who keeps it from being idle, though he may not do anything."""
        return False

    def check_sends(self) -> None:
        """EntityDisabled if it takes no messages; or what its outage is to show."""
        if self.status in NO_SENDING:
            raise disabled(self.path, self.status, "sent to")
        self.check_outage()

    def check_outage(self) -> None:
        """StoreUnavailable or ServerBusy where an outage is rehearsed."""
        if self.outage is not None:
            raise self.outage.refusal(self.path)

    def set_outage(self, outage: Outage | None) -> None:
        """It has this outage from now on, or none."""
        self.outage = outage

    def set_status(self, status: str) -> None:
        """Whoever sends, and may not any more, is told."""
        self.status = status
        if status in NO_SENDING:
            self.end_producers(disabled(self.path, status, "sent to"), senders_only=True)

    def end_producers(self, error: ServiceBusError, *, senders_only: bool = False) -> None:
        """They cannot go on."""
        for producer in [one for one in self.producers if one.sends or not senders_only]:
            producer.entity_gone(error)
            self.producers.discard(producer)

    def note_use(self, clock: Clock) -> None:
        """It is being used: it is not idle now."""
        self.accessed_ms, self.used_s = clock.wall_ms(), clock.monotonic_s()


def disabled(path: str, status: str, what: str) -> EntityDisabled:
    """Why an entity cannot be used in a way."""
    return EntityDisabled(f"'{path}' is {status}: it cannot be {what}. Set its status to Active first.")
