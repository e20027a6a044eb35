"""The base classes of queues, topics and subscriptions.

An entity consists of *parts*, one for each of its fragments: a plain entity has one part, a partitioned entity has 16.
The flag `is_partitioned` decides which rules hold for keys, batches, transactions and the order of peeks.

Owns: the name, times and status of an entity, its parts, its links that do not receive, and its rehearsed outage.
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
    """A link that does not receive messages: a sender or a link for requests."""

    is_sender: bool
    """Whether the link sends messages."""

    def force_detach(self, error: ServiceBusError) -> None:
        """Detach the link with an error: the entity was deleted or disabled."""


class Entity:
    """A queue, topic or subscription of a namespace."""

    def __init__(
        self, entity_id: int, path: str, status: str, *, is_partitioned: bool, created_ms: int, updated_ms: int
    ) -> None:
        """Create an entity without parts; the namespace adds them."""
        self.entity_id = entity_id
        self.path = path
        self.status = status
        self.is_partitioned = is_partitioned
        self.created_ms = created_ms
        self.updated_ms = updated_ms
        self.accessed_ms = created_ms
        self.last_used_s = 0.0
        """The time of the last use, on the monotonic clock."""
        self.parts: list[EntityPart] = []
        """The parts, indexed by fragment number."""
        self.validation_policy = ValidationPolicy()
        self.links: set[EntityLink] = set()
        self.outage: Outage | None = None
        """The rehearsed outage during which the entity refuses requests, or None."""

    @property
    def is_in_use(self) -> bool:
        """Whether a receiver or browser is attached, in which case the entity is not idle."""
        return any(part.is_in_use for part in self.parts)

    def check_send_enabled(self) -> None:
        """Raise EntityDisabled if sending is disabled, or the error of a rehearsed outage."""
        if self.status in SEND_DISABLED_STATUSES:
            raise entity_disabled_error(self.path, self.status, "sent to")
        self.check_outage()

    def check_outage(self) -> None:
        """Raise StoreUnavailable or ServerBusy while an outage is rehearsed."""
        if self.outage is not None:
            raise self.outage.error_for(self.path)

    def set_outage(self, outage: Outage | None) -> None:
        """Begin a rehearsed outage, or end it (None)."""
        self.outage = outage

    def set_status(self, status: str) -> None:
        """Change the status; if sending is disabled, detach all senders."""
        self.status = status
        if status in SEND_DISABLED_STATUSES:
            self.detach_links(entity_disabled_error(self.path, status, "sent to"), senders_only=True)

    def detach_links(self, error: ServiceBusError, *, senders_only: bool = False) -> None:
        """Detach all links that do not receive, or only the senders, with an error."""
        for link in [link for link in self.links if link.is_sender or not senders_only]:
            link.force_detach(error)
            self.links.discard(link)

    def record_access(self, clock: Clock) -> None:
        """Record that the entity is used now."""
        self.accessed_ms, self.last_used_s = clock.wall_ms(), clock.monotonic_s()

    def load(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Load all parts from their stores, in parallel; `on_done` gets the first error, or None."""
        pending_count = len(self.parts)
        first_error: ServiceBusError | None = None

        def loaded(error: ServiceBusError | None) -> None:
            nonlocal pending_count, first_error
            pending_count -= 1
            first_error = first_error or error
            if not pending_count:
                on_done(first_error)

        for part in self.parts:
            part.load(loaded)

    def resume(self) -> None:
        """Begin to dispatch and forward messages; called when all entities are loaded."""
        for part in self.parts:
            part.resume()

    def close(self, error: ServiceBusError) -> None:
        """Detach all links of the entity, which was deleted."""
        self.detach_links(error)
        for part in self.parts:
            part.close(error)


def entity_disabled_error(path: str, status: str, operation: str) -> EntityDisabled:
    """Return the error for an operation that the status of an entity disables."""
    return EntityDisabled(f"'{path}' is {status}: it cannot be {operation}. Set its status to Active first.")


_MAX_PAGE_ENDS: Final = 1_000


class ReceivableEntity(Entity):
    """A queue or subscription: an entity that receivers attach to."""

    def __init__(
        self, entity_id: int, path: str, status: str, *, is_partitioned: bool, created_ms: int, updated_ms: int
    ) -> None:
        """Create an entity without parts; the namespace adds them."""
        super().__init__(
            entity_id, path, status, is_partitioned=is_partitioned, created_ms=created_ms, updated_ms=updated_ms
        )
        self._exclusive_receivers = {sub_queue: ExclusiveReceiver() for sub_queue in SubQueue}
        self.page_ends: dict[tuple[SubQueue, int], int] = {}
        """The enqueued time of the last message on each recent page, by sub-queue and sequence number, for peeks across
        several fragments. The next page starts after that message even if the message has been removed meanwhile."""

    def forward_target(self, sub_queue: SubQueue) -> str | None:
        """Return the path that messages in a sub-queue are forwarded to, or None."""
        raise NotImplementedError

    def fragments_of(self, sub_queue: SubQueue) -> list[FragmentPort]:
        """Return the fragments of a sub-queue, from which receivers get messages."""
        return [part.fragment_of(sub_queue) for part in self.parts]

    def check_receive_enabled(self) -> None:
        """Raise EntityDisabled if receiving is disabled, or the error of a rehearsed outage."""
        if self.status in RECEIVE_DISABLED_STATUSES:
            raise entity_disabled_error(self.path, self.status, "received from")
        self.check_outage()

    def check_not_forwarded(self, sub_queue: SubQueue) -> None:
        """Raise NotAllowed if the messages in a sub-queue are forwarded, and so cannot be received."""
        target = self.forward_target(sub_queue)
        if target is not None:
            raise NotAllowed(
                f"messages of '{self.path}{sub_queue.value}' are forwarded to '{target}': receive them there"
            )

    def exclusive_receiver_of(self, sub_queue: SubQueue) -> ExclusiveReceiver:
        """Return the claim of the exclusive receiver on a sub-queue."""
        return self._exclusive_receivers[sub_queue]

    def set_status(self, status: str) -> None:
        """Change the status; detach the senders and receivers that the new status disables."""
        super().set_status(status)
        if status in RECEIVE_DISABLED_STATUSES:
            error = entity_disabled_error(self.path, status, "received from")
            for part in self.parts:
                for fragment in part.fragments:
                    fragment.detach_receivers(error)

    def set_outage(self, outage: Outage | None) -> None:
        """Begin or end a rehearsed outage; during the outage, receivers get no messages."""
        previous, self.outage = self.outage, outage
        for part in self.parts:
            for fragment in part.fragments:
                fragment.is_suspended = outage is not None
                if previous is not None and fragment.can_deliver:
                    fragment.resume()

    def record_page_end(self, sub_queue: SubQueue, sequence: int, enqueued_ms: int) -> None:
        """Record that a page of a peek ends with the message that has this sequence number and enqueued time."""
        ends = self.page_ends
        ends[sub_queue, sequence] = enqueued_ms
        if len(ends) > _MAX_PAGE_ENDS:
            del ends[next(iter(ends))]

    def runtime(self) -> QueueRuntime:
        """Return the message counts and sizes of all parts together."""
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
