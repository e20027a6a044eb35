"""Entities that messages are received from: queues and subscriptions.

Owns: who may receive, who is the exclusive receiver, and what all parts hold together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.entity import RECEIVE_DISABLED_STATUSES, Entity, entity_disabled_error
from twinbus.broker.ports.claim import ExclusiveReceiver
from twinbus.model.errors import NotAllowed
from twinbus.model.path import SubQueue
from twinbus.model.queue import QueueRuntime

if TYPE_CHECKING:
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.broker.ports.outage import Outage

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
