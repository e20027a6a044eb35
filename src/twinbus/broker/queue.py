"""A queue: its description, its fragments and their dead-letter areas.

Owns: which fragment a message goes to, and how full the queue may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from twinbus.broker.fragment import Policy
from twinbus.model.errors import NotAllowed, QuotaExceeded
from twinbus.model.path import SubQueue
from twinbus.model.queue import QueueRuntime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.journal import Answered
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.queue import QueueDescription

_MEGABYTE = 1_048_576


class Producer(Protocol):
    """A sending link, as the queue it sends to knows it."""

    def entity_gone(self, error: ServiceBusError) -> None:
        """The queue was deleted."""


class Queue:
    """One queue of a namespace."""

    def __init__(
        self,
        entity_id: int,
        path: str,
        description: QueueDescription,
        main: Fragment,
        dead_letters: Fragment,
        *,
        created_ms: int,
        updated_ms: int,
    ) -> None:
        """Made by the namespace."""
        self.entity_id = entity_id
        self.path = path
        self.description = description
        self.main = main
        self.dead_letters = dead_letters
        self.created_ms = created_ms
        self.updated_ms = updated_ms
        self.accessed_ms = created_ms
        self.producers: set[Producer] = set()

    def send(self, records: Sequence[bytes], answer: Answered) -> None:
        """Store messages, all or none; `answer` hears when they are on disk. QuotaExceeded, StoreUnavailable."""
        size = sum([len(record) for record in records])
        limit = self.description.max_size_mb * _MEGABYTE
        held = self.main.pending_bytes + self.dead_letters.pending_bytes
        if held + size > limit:
            raise QuotaExceeded(
                f"The maximum entity size has been reached or exceeded for '{self.path}': it holds {held:,} bytes of "
                f"{limit:,}, and {size:,} more do not fit. Receive messages, also from its dead-letter queue, or make "
                "the queue larger."
            )
        self.main.enqueue(records, answer)

    def fragment_of(self, sub_queue: SubQueue) -> Fragment:
        """Where a receiver of the queue, or of its dead-letter queue, takes messages from."""
        if sub_queue is SubQueue.MAIN:
            return self.main
        if sub_queue is SubQueue.DEAD_LETTER:
            return self.dead_letters
        raise NotAllowed(f"'{self.path}' has no transfer dead-letter queue in this version")

    def close(self, error: ServiceBusError) -> None:
        """It was deleted: tell everyone who uses it."""
        for producer in list(self.producers):
            producer.entity_gone(error)
        self.producers.clear()
        for fragment in (self.main, self.dead_letters):
            fragment.close(error)

    def runtime(self) -> QueueRuntime:
        """What it holds now."""
        return QueueRuntime(
            active_count=self.main.count,
            dead_letter_count=self.dead_letters.count,
            size_bytes=self.main.bytes + self.dead_letters.bytes,
            created_ms=self.created_ms,
            updated_ms=self.updated_ms,
            accessed_ms=self.accessed_ms,
            is_available=self.main.is_loaded,
        )


def policies(description: QueueDescription, limits: NamespaceLimits) -> tuple[Policy, Policy]:
    """What its fragment does with messages, and what its dead-letter area does: nothing is dead-lettered twice."""
    duration_ms, most = description.lock_duration_ms, description.max_delivery_count
    main = Policy(lock_duration_ms=duration_ms, max_delivery_count=most, max_locks=limits.max_locks)
    return main, Policy(lock_duration_ms=duration_ms, max_delivery_count=None, max_locks=limits.max_locks)
