"""A partitioned entity that messages are received from: a queue or a subscription.

Owns: what all its parts hold together, and who has all of them for himself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.claim import Claim
from twinbus.broker.partitioned.entity import Part, Partitioned
from twinbus.broker.receivable import Receivable
from twinbus.model.path import SubQueue
from twinbus.model.queue import QueueRuntime

if TYPE_CHECKING:
    from twinbus.broker.fragment import Fragment


class PartitionedReceivable(Partitioned[Part]):
    """A partitioned queue or subscription."""

    def __init__(
        self, entity_id: int, path: str, status: str, parts: list[Part], *, created_ms: int, updated_ms: int
    ) -> None:
        """Made by the namespace."""
        super().__init__(entity_id, path, status, parts, created_ms=created_ms, updated_ms=updated_ms)
        self._claims = {sub_queue: Claim() for sub_queue in SubQueue}

    @property
    def receivables(self) -> list[Receivable]:
        """Its parts, as what messages are received from."""
        return [part for part in self.parts if isinstance(part, Receivable)]

    def fragments_of(self, sub_queue: SubQueue) -> list[Fragment]:
        """Where a receiver of the entity, or of its dead-letter queue, takes messages from."""
        return [part.fragment_of(sub_queue) for part in self.receivables]

    def check_receives(self) -> None:
        """EntityDisabled if nothing can be received from it; or what its outage is to show."""
        self.receivables[0].check_receives()

    def check_open(self, sub_queue: SubQueue) -> None:
        """NotAllowed if its messages are forwarded: then nobody receives any."""
        self.receivables[0].check_open(sub_queue)

    def claim_of(self, sub_queue: SubQueue) -> Claim:
        """Who has the entity, or its dead-letter queue, for himself."""
        return self._claims[sub_queue]

    def runtime(self) -> QueueRuntime:
        """What it holds now."""
        parts = [part.runtime() for part in self.receivables]
        return QueueRuntime(
            active_count=sum(part.active_count for part in parts),
            dead_letter_count=sum(part.dead_letter_count for part in parts),
            scheduled_count=sum(part.scheduled_count for part in parts),
            deferred_count=sum(part.deferred_count for part in parts),
            transfer_count=sum(part.transfer_count for part in parts),
            transfer_dead_letter_count=sum(part.transfer_dead_letter_count for part in parts),
            size_bytes=sum(part.size_bytes for part in parts),
            created_ms=self.created_ms,
            updated_ms=self.updated_ms,
            accessed_ms=max([self.accessed_ms, *[part.accessed_ms for part in parts]]),
            is_available=all(part.is_available for part in parts),
        )
