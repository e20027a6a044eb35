"""Queues, topics and subscriptions: what they have in common.

An entity consists of one or more *parts*, one for each of its fragments: a plain entity has one, a partitioned one 16.
Whether an entity is partitioned is a policy (`is_partitioned`): it says which rules hold for keys, batches,
transactions and the order of peeks.

Owns: an entity's name, times and status, its parts, its senders, and the outage that it may have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from twinbus.broker.ports.incoming import Terms
from twinbus.model.errors import EntityDisabled

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Clock
    from twinbus.broker.part import Part
    from twinbus.broker.ports.outage import Outage
    from twinbus.model.errors import ServiceBusError

NO_SENDING: Final = frozenset({"Disabled", "SendDisabled"})
NO_RECEIVING: Final = frozenset({"Disabled", "ReceiveDisabled"})


class Producer(Protocol):
    """A link that does not receive, as its entity knows it."""

    sends: bool
    """It is for sending messages."""

    def entity_gone(self, error: ServiceBusError) -> None:
        """The entity was deleted."""


class Entity:
    """One entity of a namespace."""

    def __init__(
        self, entity_id: int, path: str, status: str, *, is_partitioned: bool, created_ms: int, updated_ms: int
    ) -> None:
        """Made by the namespace, which adds the parts."""
        self.entity_id = entity_id
        self.path = path
        self.status = status
        self.is_partitioned = is_partitioned
        self.created_ms = created_ms
        self.updated_ms = updated_ms
        self.accessed_ms = created_ms
        self.used_s = 0.0
        """When it was last used, by the monotonic clock."""
        self.parts: list[Part] = []
        """By the numbers of their fragments."""
        self.terms = Terms()
        self.producers: set[Producer] = set()
        self.outage: Outage | None = None
        """A rehearsed outage: the entity refuses to work for a while."""

    @property
    def is_in_use(self) -> bool:
        """Whether a receiver or browser is attached, which keeps the entity from being idle."""
        return any(part.is_in_use for part in self.parts)

    def check_sends(self) -> None:
        """Raise EntityDisabled if it takes no messages, or the error of its outage."""
        if self.status in NO_SENDING:
            raise disabled(self.path, self.status, "sent to")
        self.check_outage()

    def check_outage(self) -> None:
        """Raise StoreUnavailable or ServerBusy while an outage is rehearsed."""
        if self.outage is not None:
            raise self.outage.refusal(self.path)

    def set_outage(self, outage: Outage | None) -> None:
        """Begin an outage, or end it (None)."""
        self.outage = outage

    def set_status(self, status: str) -> None:
        """Change the status; if sending is disabled, end all senders."""
        self.status = status
        if status in NO_SENDING:
            self.end_producers(disabled(self.path, status, "sent to"), senders_only=True)

    def end_producers(self, error: ServiceBusError, *, senders_only: bool = False) -> None:
        """Notify the links that do not receive that they cannot go on."""
        for producer in [producer for producer in self.producers if producer.sends or not senders_only]:
            producer.entity_gone(error)
            self.producers.discard(producer)

    def note_use(self, clock: Clock) -> None:
        """Note that the entity is used now: it is not idle."""
        self.accessed_ms, self.used_s = clock.wall_ms(), clock.monotonic_s()

    def load(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """Read what all parts hold from their stores, in parallel; `done` gets the first error, if there is one."""
        left = len(self.parts)
        first: ServiceBusError | None = None

        def loaded(error: ServiceBusError | None) -> None:
            nonlocal left, first
            left -= 1
            first = first or error
            if not left:
                done(first)

        for part in self.parts:
            part.load(loaded)

    def settled_down(self) -> None:
        """All entities are loaded: messages may be handed out and forwarded."""
        for part in self.parts:
            part.settled_down()

    def close(self, error: ServiceBusError) -> None:
        """The entity was deleted: notify all its users."""
        self.end_producers(error)
        for part in self.parts:
            part.close(error)


def disabled(path: str, status: str, what: str) -> EntityDisabled:
    """Return the error of an entity that is disabled for sending or receiving."""
    return EntityDisabled(f"'{path}' is {status}: it cannot be {what}. Set its status to Active first.")
