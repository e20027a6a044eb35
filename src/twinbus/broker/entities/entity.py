"""Queues, topics and subscriptions: what they have in common.

An entity consists of one or more *parts*, one for each of its fragments: a plain entity has one, a partitioned one 16.
Whether an entity is partitioned is a policy (`is_partitioned`): it says which rules hold for keys, batches,
transactions and the order of peeks.

Owns: an entity's name, times and status, its parts, its senders, and the outage that it may have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from twinbus.broker.ports.exclusive_receiver import ExclusiveReceiver
from twinbus.broker.ports.incoming_batch import ValidationPolicy
from twinbus.model.errors import EntityDisabled, NotAllowed
from twinbus.model.path import SubQueue
from twinbus.model.queue import QueueRuntime

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Clock
    from twinbus.broker.entities.part import EntityPart
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.broker.ports.outage import Outage
    from twinbus.model.errors import ServiceBusError

SEND_DISABLED_STATUSES: Final = frozenset({"Disabled", "SendDisabled"})
RECEIVE_DISABLED_STATUSES: Final = frozenset({"Disabled", "ReceiveDisabled"})


class EntityLink(Protocol):
    """A link that does not receive, as its entity knows it."""

    is_sender: bool
    """It is for sending messages."""

    def force_detach(self, error: ServiceBusError) -> None:
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
        self.last_used_s = 0.0
        """When it was last used, by the monotonic clock."""
        self.parts: list[EntityPart] = []
        """By the numbers of their fragments."""
        self.validation_policy = ValidationPolicy()
        self.links: set[EntityLink] = set()
        self.outage: Outage | None = None
        """A rehearsed outage: the entity refuses to work for a while."""

    @property
    def is_in_use(self) -> bool:
        """Whether a receiver or browser is attached, which keeps the entity from being idle."""
        return any(part.is_in_use for part in self.parts)

    def check_send_enabled(self) -> None:
        """Raise EntityDisabled if it takes no messages, or the error of its outage."""
        if self.status in SEND_DISABLED_STATUSES:
            raise entity_disabled_error(self.path, self.status, "sent to")
        self.check_outage()

    def check_outage(self) -> None:
        """Raise StoreUnavailable or ServerBusy while an outage is rehearsed."""
        if self.outage is not None:
            raise self.outage.error_for(self.path)

    def set_outage(self, outage: Outage | None) -> None:
        """Begin an outage, or end it (None)."""
        self.outage = outage

    def set_status(self, status: str) -> None:
        """Change the status; if sending is disabled, end all senders."""
        self.status = status
        if status in SEND_DISABLED_STATUSES:
            self.detach_links(entity_disabled_error(self.path, status, "sent to"), senders_only=True)

    def detach_links(self, error: ServiceBusError, *, senders_only: bool = False) -> None:
        """Notify the links that do not receive that they cannot go on."""
        for producer in [producer for producer in self.links if producer.is_sender or not senders_only]:
            producer.force_detach(error)
            self.links.discard(producer)

    def record_access(self, clock: Clock) -> None:
        """Note that the entity is used now: it is not idle."""
        self.accessed_ms, self.last_used_s = clock.wall_ms(), clock.monotonic_s()

    def load(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Read what all parts hold from their stores, in parallel; `done` gets the first error, if there is one."""
        left = len(self.parts)
        first: ServiceBusError | None = None

        def loaded(error: ServiceBusError | None) -> None:
            nonlocal left, first
            left -= 1
            first = first or error
            if not left:
                on_done(first)

        for part in self.parts:
            part.load(loaded)

    def resume(self) -> None:
        """All entities are loaded: messages may be handed out and forwarded."""
        for part in self.parts:
            part.resume()

    def close(self, error: ServiceBusError) -> None:
        """The entity was deleted: notify all its users."""
        self.detach_links(error)
        for part in self.parts:
            part.close(error)


def entity_disabled_error(path: str, status: str, operation: str) -> EntityDisabled:
    """Return the error of an entity that is disabled for sending or receiving."""
    return EntityDisabled(f"'{path}' is {status}: it cannot be {operation}. Set its status to Active first.")


_MAX_PAGE_ENDS: Final = 1_000


class ReceivableEntity(Entity):
    """A queue or a subscription."""

    def __init__(
        self, entity_id: int, path: str, status: str, *, is_partitioned: bool, created_ms: int, updated_ms: int
    ) -> None:
        """Made by the namespace."""
        super().__init__(
            entity_id, path, status, is_partitioned=is_partitioned, created_ms=created_ms, updated_ms=updated_ms
        )
        self._exclusive_receivers = {sub_queue: ExclusiveReceiver() for sub_queue in SubQueue}
        self.page_ends: dict[tuple[SubQueue, int], int] = {}
        """When the messages were enqueued that ended the last pages of peeks over several fragments: the next page
        begins behind such a message even if that has been removed meanwhile."""

    def forward_target(self, sub_queue: SubQueue) -> str | None:
        """Return the path that messages are forwarded to, or None."""
        raise NotImplementedError

    def fragments_of(self, sub_queue: SubQueue) -> list[FragmentPort]:
        """Return where a receiver of the entity, or of one of its dead-letter queues, takes messages from."""
        return [part.fragment_of(sub_queue) for part in self.parts]

    def check_receive_enabled(self) -> None:
        """Raise EntityDisabled if nothing can be received from it, or the error of its outage."""
        if self.status in RECEIVE_DISABLED_STATUSES:
            raise entity_disabled_error(self.path, self.status, "received from")
        self.check_outage()

    def check_not_forwarded(self, sub_queue: SubQueue) -> None:
        """Raise NotAllowed if its messages are forwarded: then nobody can receive them."""
        target = self.forward_target(sub_queue)
        if target is not None:
            raise NotAllowed(
                f"messages of '{self.path}{sub_queue.value}' are forwarded to '{target}': receive them there"
            )

    def exclusive_receiver_of(self, sub_queue: SubQueue) -> ExclusiveReceiver:
        """Return the claim of the exclusive receiver on the entity, or on one of its dead-letter queues."""
        return self._exclusive_receivers[sub_queue]

    def set_status(self, status: str) -> None:
        """Change the status; end senders and receivers that are disabled by it."""
        super().set_status(status)
        if status in RECEIVE_DISABLED_STATUSES:
            error = entity_disabled_error(self.path, status, "received from")
            for part in self.parts:
                for fragment in part.fragments:
                    fragment.detach_receivers(error)

    def set_outage(self, outage: Outage | None) -> None:
        """Begin or end an outage: receivers get no messages while it lasts."""
        had, self.outage = self.outage, outage
        for part in self.parts:
            for fragment in part.fragments:
                fragment.is_suspended = outage is not None
                if had is not None and fragment.can_deliver:
                    fragment.resume()

    def record_page_end(self, sub_queue: SubQueue, sequence: int, enqueued_ms: int) -> None:
        """Note that a page of a peek ends with this message."""
        ends = self.page_ends
        ends[sub_queue, sequence] = enqueued_ms
        if len(ends) > _MAX_PAGE_ENDS:
            del ends[next(iter(ends))]

    def runtime(self) -> QueueRuntime:
        """Return what all parts hold now."""
        parts = [part.runtime() for part in self.parts]
        return QueueRuntime(
            active_count=sum([part.active_count for part in parts]),
            dead_letter_count=sum([part.dead_letter_count for part in parts]),
            scheduled_count=sum([part.scheduled_count for part in parts]),
            deferred_count=sum([part.deferred_count for part in parts]),
            transfer_count=sum([part.transfer_count for part in parts]),
            transfer_dead_letter_count=sum([part.transfer_dead_letter_count for part in parts]),
            size_bytes=sum([part.size_bytes for part in parts]),
            created_ms=self.created_ms,
            updated_ms=self.updated_ms,
            accessed_ms=max([self.accessed_ms, *[part.accessed_ms for part in parts]]),
            is_available=all(part.is_available for part in parts),
        )
