"""A queue: what is sent to it is received from it.

Owns: its description, and which fragment a message goes to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker import sending
from twinbus.broker.forwarding import addressed
from twinbus.broker.intake import Terms
from twinbus.broker.receivable import Receivable, policies

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.intake import Parcel
    from twinbus.broker.journal import Answered
    from twinbus.broker.receivable import Rooms
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.queue import QueueDescription


class Queue(Receivable):
    """One queue of a namespace."""

    def __init__(
        self,
        entity_id: int,
        path: str,
        description: QueueDescription,
        rooms: Rooms,
        *,
        created_ms: int,
        updated_ms: int,
    ) -> None:
        """Made by the namespace."""
        super().__init__(entity_id, path, description.status, rooms, created_ms=created_ms, updated_ms=updated_ms)
        self.description = description

    def part(self, _number: int) -> Queue:
        """What is of one fragment of it: it has one."""
        return self

    def send(
        self,
        parcel: Parcel,
        answer: Answered,
        numbers: list[int] | None = None,
        beside: Callable[[], None] | None = None,
    ) -> None:
        """As `sending.send`."""
        sending.send(self, parcel, answer, numbers, beside)

    def check_room(self, size: int) -> None:
        """QuotaExceeded if so many bytes more do not fit."""
        sending.check_size(self, size)

    def send_on(self, records: list[bytes], destination: str, answer: Answered) -> None:
        """Store messages that go from here to another entity, all or none. QuotaExceeded, StoreUnavailable."""
        self.check_sends()
        sending.check_room(self, records)
        self.open_transfers().enqueue([addressed(record, destination) for record in records], answer)

    def take_arrivals(self, source: bytes, items: list[tuple[int, bytes]], answer: Answered) -> None:
        """Messages that another entity forwards here, as `Arrivals.take`; `source` is how the keys of that start."""
        self.main.arrivals.take(source, items, self, answer)

    def describe(self, description: QueueDescription, limits: NamespaceLimits) -> None:
        """It is to be like this from now on; locks that are out keep the time they have."""
        self.description = description
        self.terms = Terms(
            ttl_ms=description.default_time_to_live_ms,
            requires_session=description.requires_session,
            detects_duplicates=description.requires_duplicate_detection,
            is_partitioned=description.enable_partitioning,
        )
        window_ms = description.duplicate_window_ms
        self.main.policy, self.dead_letters.policy = policies(description, limits, duplicate_window_ms=window_ms)
        self.forward(description.forward_to, description.forward_dead_lettered_to)
        self.set_status(description.status)
