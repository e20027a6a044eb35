"""A queue: what is sent to it is received from it.

Owns: its description, which fragment a message goes to, and how full the queue may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.entity import MEGABYTE
from twinbus.broker.forwarding import addressed
from twinbus.broker.intake import Terms
from twinbus.broker.receivable import Receivable, policies
from twinbus.model.errors import QuotaExceeded

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

    def send(
        self,
        parcel: Parcel,
        answer: Answered,
        numbers: list[int] | None = None,
        beside: Callable[[], None] | None = None,
    ) -> None:
        """Store messages, all or none; `answer` hears when they are on disk. QuotaExceeded, StoreUnavailable.

        `numbers` gets their sequence numbers, by the time of the answer; 0 for a duplicate, which is not stored.
        `beside` is called when they are put into a batch, and may put something into the same.
        """
        self.check_sends()
        records = parcel.records
        if not records:
            self.main.ping(answer)
            return
        self.check_room(records)
        if self.terms.detects_duplicates:
            self.main.duplicates.enqueue(records, parcel.ids, [] if numbers is None else numbers, answer, beside)
            return
        first = self.main.enqueue(records, answer)
        if beside is not None:
            beside()
        if numbers is not None:
            numbers.extend(range(first, first + len(records)))

    def check_room(self, records: list[bytes]) -> None:
        """QuotaExceeded if these do not fit."""
        size = sum([len(record) for record in records])
        limit = self.description.max_size_mb * MEGABYTE
        held = self.main.holdings.size + self.dead_letters.holdings.size
        if held + size > limit:
            raise full(self.path, held, limit, size)

    def send_on(self, records: list[bytes], destination: str, answer: Answered) -> None:
        """Store messages that go from here to another entity, all or none. QuotaExceeded, StoreUnavailable."""
        self.check_sends()
        self.check_room(records)
        self.open_transfers().enqueue([addressed(record, destination) for record in records], answer)

    def describe(self, description: QueueDescription, limits: NamespaceLimits) -> None:
        """It is to be like this from now on; locks that are out keep the time they have."""
        self.description = description
        self.terms = Terms(
            ttl_ms=description.default_time_to_live_ms,
            requires_session=description.requires_session,
            detects_duplicates=description.requires_duplicate_detection,
        )
        window_ms = description.duplicate_window_ms
        self.main.policy, self.dead_letters.policy = policies(description, limits, duplicate_window_ms=window_ms)
        self.forward(description.forward_to, description.forward_dead_lettered_to)
        self.set_status(description.status)


def full(path: str, held: int, limit: int, size: int) -> QuotaExceeded:
    """Why an entity takes no more."""
    return QuotaExceeded(
        f"The maximum entity size has been reached or exceeded for '{path}': it holds {held:,} bytes of {limit:,}, and "
        f"{size:,} more do not fit. Receive messages, also from its dead-letter queue, or make the entity larger."
    )
