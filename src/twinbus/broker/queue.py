"""A queue: its description, its fragments and their dead-letter areas.

Owns: which fragment a message goes to, how full the queue may be, who may use it, and when it was last used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from twinbus.broker.claim import Claim
from twinbus.broker.fragment import Policy
from twinbus.broker.intake import Terms
from twinbus.broker.resubmission import Resubmission
from twinbus.model.errors import EntityDisabled, NotAllowed, QuotaExceeded
from twinbus.model.path import SubQueue
from twinbus.model.queue import QueueRuntime

if TYPE_CHECKING:
    from twinbus.broker.clock import Clock
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.intake import Parcel
    from twinbus.broker.journal import Answered
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.queue import QueueDescription

_MEGABYTE = 1_048_576
NO_SENDING = frozenset({"Disabled", "SendDisabled"})
NO_RECEIVING = frozenset({"Disabled", "ReceiveDisabled"})


class Producer(Protocol):
    """A link that does not receive, as the queue it is for knows it."""

    sends: bool
    """It is for sending messages."""

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
        self.used_s = 0.0
        """When it was last used, by the monotonic clock."""
        self.terms = Terms()
        self.producers: set[Producer] = set()
        self.resubmission = Resubmission(self)
        self._claims = {sub_queue: Claim() for sub_queue in SubQueue}

    def send(self, parcel: Parcel, answer: Answered, numbers: list[int] | None = None) -> None:
        """Store messages, all or none; `answer` hears when they are on disk. QuotaExceeded, StoreUnavailable.

        `numbers` gets their sequence numbers, by the time of the answer; 0 for a duplicate, which is not stored.
        """
        self.check_sends()
        records = parcel.records
        if not records:
            self.main.ping(answer)
            return
        size = sum([len(record) for record in records])
        limit = self.description.max_size_mb * _MEGABYTE
        held = self.main.holdings.size + self.dead_letters.holdings.size
        if held + size > limit:
            raise QuotaExceeded(
                f"The maximum entity size has been reached or exceeded for '{self.path}': it holds {held:,} bytes of "
                f"{limit:,}, and {size:,} more do not fit. Receive messages, also from its dead-letter queue, or make "
                "the queue larger."
            )
        if self.terms.detects_duplicates:
            self.main.duplicates.enqueue(records, parcel.ids, [] if numbers is None else numbers, answer)
            return
        first = self.main.enqueue(records, answer)
        if numbers is not None:
            numbers.extend(range(first, first + len(records)))

    def check_sends(self) -> None:
        """EntityDisabled if nothing can be sent to it."""
        if self.description.status in NO_SENDING:
            raise disabled(self.path, self.description.status, "sent to")

    def check_receives(self) -> None:
        """EntityDisabled if nothing can be received from it."""
        if self.description.status in NO_RECEIVING:
            raise disabled(self.path, self.description.status, "received from")

    def describe(self, description: QueueDescription, limits: NamespaceLimits) -> None:
        """It is to be like this from now on; locks that are out keep the time they have."""
        self.description = description
        self.terms = Terms(
            ttl_ms=description.default_time_to_live_ms,
            requires_session=description.requires_session,
            detects_duplicates=description.requires_duplicate_detection,
        )
        self.main.policy, self.dead_letters.policy = policies(description, limits)
        if description.status in NO_SENDING:
            error = disabled(self.path, description.status, "sent to")
            for producer in [one for one in self.producers if one.sends]:
                producer.entity_gone(error)
                self.producers.discard(producer)
        if description.status in NO_RECEIVING:
            error = disabled(self.path, description.status, "received from")
            for fragment in (self.main, self.dead_letters):
                fragment.end_receiving(error)

    @property
    def is_in_use(self) -> bool:
        """Someone receives from it, or reads it."""
        return any(fragment.line.consumers or fragment.browsers for fragment in (self.main, self.dead_letters))

    def fragment_of(self, sub_queue: SubQueue) -> Fragment:
        """Where a receiver of the queue, or of its dead-letter queue, takes messages from."""
        if sub_queue is SubQueue.MAIN:
            return self.main
        if sub_queue is SubQueue.DEAD_LETTER:
            return self.dead_letters
        raise NotAllowed(f"'{self.path}' has no transfer dead-letter queue in this version")

    def claim_of(self, sub_queue: SubQueue) -> Claim:
        """Who has the queue, or its dead-letter queue, for itself."""
        return self._claims[sub_queue]

    def note_use(self, clock: Clock) -> None:
        """It is being used: it is not idle now."""
        self.accessed_ms, self.used_s = clock.wall_ms(), clock.monotonic_s()

    def close(self, error: ServiceBusError) -> None:
        """It was deleted: tell everyone who uses it."""
        for producer in list(self.producers):
            producer.entity_gone(error)
        self.producers.clear()
        for fragment in (self.main, self.dead_letters):
            fragment.close(error)

    def runtime(self) -> QueueRuntime:
        """What it holds now."""
        main, dead = self.main.holdings.shown, self.dead_letters.holdings.shown
        return QueueRuntime(
            active_count=main.active_count,
            deferred_count=main.deferred_count + dead.deferred_count,
            scheduled_count=main.scheduled_count,
            dead_letter_count=dead.active_count,
            size_bytes=main.size + dead.size,
            created_ms=self.created_ms,
            updated_ms=self.updated_ms,
            accessed_ms=self.accessed_ms,
            is_available=self.main.is_loaded,
        )


def disabled(path: str, status: str, what: str) -> EntityDisabled:
    """Why a queue cannot be used in a way."""
    return EntityDisabled(f"'{path}' is {status}: it cannot be {what}. Set its status to Active first.")


def policies(description: QueueDescription, limits: NamespaceLimits) -> tuple[Policy, Policy]:
    """What its fragment does with messages, and what its dead-letter area does: nothing is dead-lettered twice."""

    def policy(most: int | None, *, expired: bool) -> Policy:
        return Policy(
            lock_duration_ms=description.lock_duration_ms,
            max_delivery_count=most,
            max_locks=limits.max_locks,
            dead_letters_expired=expired,
            duplicate_window_ms=description.duplicate_window_ms,
            max_properties_bytes=limits.max_properties_bytes,
        )

    main = policy(description.max_delivery_count, expired=description.dead_lettering_on_expiration)
    return main, policy(None, expired=False)
