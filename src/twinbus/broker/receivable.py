"""An entity that messages are received from: a queue or a subscription.

Owns: its fragments and their dead-letter areas, who may receive, who has it for himself, and where its messages are
forwarded to. How messages come into it is for the two kinds to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from twinbus.broker.claim import Claim
from twinbus.broker.entity import NO_RECEIVING, Entity, disabled
from twinbus.broker.forwarding import Forwarder
from twinbus.broker.fragment import Policy
from twinbus.broker.holdings import Marks
from twinbus.broker.intake import Terms
from twinbus.broker.keys import MARKS, Area
from twinbus.broker.resubmission import Resubmission
from twinbus.model.errors import NotAllowed, StoreUnavailable
from twinbus.model.path import SubQueue
from twinbus.model.queue import QueueRuntime
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.kinds import Sendable
    from twinbus.broker.outage import Outage
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.queue import QueueDescription
    from twinbus.model.topic import SubscriptionDescription


class Rooms(Protocol):
    """What the namespace gives an entity."""

    main: Fragment
    dead_letters: Fragment

    def prefix(self, area: Area) -> bytes:
        """How the keys of a fragment of the entity start."""

    def make(self, area: Area) -> Fragment:
        """One more fragment of the entity."""

    def find(self, path: str) -> Sendable:
        """What messages can be sent to. EntityNotFound, NotAllowed."""

    def forwarded(self, path: str, count: int) -> None:
        """So many messages of the entity have arrived at another."""


class Receivable(Entity):
    """A queue or a subscription."""

    def __init__(
        self,
        entity_id: int,
        path: str,
        status: str,
        rooms: Rooms,
        *,
        created_ms: int,
        updated_ms: int,
    ) -> None:
        """Made by the namespace."""
        super().__init__(entity_id, path, status, created_ms=created_ms, updated_ms=updated_ms)
        self.main = rooms.main
        self.dead_letters = rooms.dead_letters
        self.transfer_dead_letters: Fragment | None = None
        """What could not be forwarded; made when it is needed for the first time."""
        self.transfers: Fragment | None = None
        """What is sent via it to other entities, until it is there; made when it is needed for the first time."""
        self._rooms = rooms
        self.terms = Terms()
        self.resubmission = Resubmission(self)
        self._claims = {sub_queue: Claim() for sub_queue in SubQueue}
        self.main.check_room = self.dead_letters.check_room = self.check_room

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """All that it has."""
        rare = (self.transfers, self.transfer_dead_letters)
        return (self.main, self.dead_letters, *[fragment for fragment in rare if fragment is not None])

    @property
    def is_in_use(self) -> bool:
        """Someone receives from it, or reads it."""
        return any(fragment.line.consumers or fragment.browsers for fragment in self.fragments)

    def check_receives(self) -> None:
        """EntityDisabled if nothing can be received from it; or what its outage is to show."""
        if self.status in NO_RECEIVING:
            raise disabled(self.path, self.status, "received from")
        self.check_outage()

    def set_status(self, status: str) -> None:
        """Whoever receives, and may not any more, is told."""
        super().set_status(status)
        if status in NO_RECEIVING:
            error = disabled(self.path, status, "received from")
            for fragment in self.fragments:
                fragment.end_receiving(error)

    def set_outage(self, outage: Outage | None) -> None:
        """Whoever receives gets nothing while it lasts, and what there is when it is over."""
        had, self.outage = self.outage, outage
        for fragment in self.fragments:
            fragment.is_held_back = outage is not None
            if had is not None and fragment.may_hand_out:
                fragment.settled_down()

    def fragments_of(self, sub_queue: SubQueue) -> list[Fragment]:
        """... one for each fragment."""
        return [self.fragment_of(sub_queue)]

    def fragment_of(self, sub_queue: SubQueue) -> Fragment:
        """Where a receiver of the entity, or of its dead-letter queue, takes messages from."""
        if sub_queue is SubQueue.MAIN:
            return self.main
        if sub_queue is SubQueue.DEAD_LETTER:
            return self.dead_letters
        return self.open_transfer_dead_letters()

    def check_open(self, sub_queue: SubQueue) -> None:
        """NotAllowed if its messages are forwarded: then nobody receives any."""
        forwarder = self.fragment_of(sub_queue).forwarder
        if forwarder is not None:
            raise NotAllowed(
                f"messages of '{self.path}{sub_queue.value}' are forwarded to '{forwarder.target}': receive them there"
            )

    def open_transfer_dead_letters(self) -> Fragment:
        """What could not be forwarded."""
        if self.transfer_dead_letters is None:
            self.transfer_dead_letters = self._make(Area.TRANSFER_DEAD_LETTER)
            self.transfer_dead_letters.policy = self.dead_letters.policy
        return self.transfer_dead_letters

    def open_transfers(self) -> Fragment:
        """What is sent via it to other entities."""
        if self.transfers is None:
            self.transfers = transfers = self._make(Area.TRANSFER)
            failed = self.open_transfer_dead_letters()
            transfers.forwarder = forwarder = Forwarder(transfers, None, self._rooms.find, failed, self._forwarded)
            forwarder.start()
        return self.transfers

    def held_bytes(self) -> int:
        """What all of it holds: messages, dead letters, session states, and messages on their way elsewhere."""
        held = self.main.holdings.size + self.dead_letters.holdings.size
        if self.transfers is not None:
            held += self.transfers.holdings.size
        if self.transfer_dead_letters is not None:
            held += self.transfer_dead_letters.holdings.size
        return held

    def check_room(self, size: int) -> None:
        """QuotaExceeded if so many bytes more do not fit."""
        raise NotImplementedError

    def _make(self, area: Area) -> Fragment:
        fragment = self._rooms.make(area)
        fragment.check_room = self.check_room
        fragment.is_held_back = self.outage is not None
        return fragment

    def forward(self, target: str | None, dead_letters_target: str | None) -> None:
        """Its messages, and its dead letters, go to these entities from now on, or stay."""
        self._forward(self.main, target, None)
        self._forward(self.dead_letters, dead_letters_target, self.path)

    def _forward(self, fragment: Fragment, target: str | None, dead_source: str | None) -> None:
        before = fragment.forwarder
        if before is not None and before.is_gone:  # the entity was disabled for a while
            before = fragment.forwarder = None
        if before is not None and before.target == target:
            return
        if before is not None:
            before.stop()
            fragment.forwarder = None
        if target is None:
            fragment.end_forwarding()
        else:
            fragment.line.close(NotAllowed(f"messages of '{self.path}' are forwarded to '{target}' from now on"))
            fragment.begin_forwarding()
            failed = self.open_transfer_dead_letters()
            fragment.forwarder = forwarder = Forwarder(
                fragment, target, self._rooms.find, failed, self._forwarded, dead_source
            )
            forwarder.start()

    def _forwarded(self, count: int) -> None:
        self._rooms.forwarded(self.path, count)

    def load(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """Read what it holds from the store."""
        rare = {Area.TRANSFER: self.open_transfers, Area.TRANSFER_DEAD_LETTER: self.open_transfer_dead_letters}

        def looked(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                done(StoreUnavailable(str(values)))
                return
            for value, open_it in zip(values, rare.values(), strict=True):
                if value is not None:
                    open_it()
            self._load_each(list(self.fragments), done)

        self.main.journal.get([self._rooms.prefix(area) + MARKS for area in rare], looked, Table.INDEX)

    def _load_each(self, fragments: list[Fragment], done: Callable[[ServiceBusError | None], None]) -> None:
        if not fragments:
            done(None)
            return
        fragments[0].load(lambda error: done(error) if error is not None else self._load_each(fragments[1:], done))

    def settled_down(self) -> None:
        """It and all others are loaded: what is to be forwarded can be."""
        for fragment in self.fragments:
            fragment.settled_down()

    def claim_of(self, sub_queue: SubQueue) -> Claim:
        """Who has the entity, or its dead-letter queue, for himself."""
        return self._claims[sub_queue]

    def close(self, error: ServiceBusError) -> None:
        """It was deleted: tell everyone who uses it."""
        self.end_producers(error)
        for fragment in self.fragments:
            fragment.close(error)

    def runtime(self) -> QueueRuntime:
        """What it holds now."""
        main, dead = self.main.holdings.shown, self.dead_letters.holdings.shown
        failed = self.transfer_dead_letters.holdings.shown if self.transfer_dead_letters is not None else Marks()
        transferred = self.transfers.holdings.shown if self.transfers is not None else Marks()
        is_forwarding = self.main.forwarder is not None
        return QueueRuntime(
            active_count=0 if is_forwarding else main.active_count,
            transfer_count=transferred.active_count + (main.active_count if is_forwarding else 0),
            transfer_dead_letter_count=failed.active_count,
            deferred_count=main.deferred_count + dead.deferred_count,
            scheduled_count=main.scheduled_count,
            dead_letter_count=dead.active_count,
            size_bytes=main.size + dead.size + failed.size + transferred.size,
            created_ms=self.created_ms,
            updated_ms=self.updated_ms,
            accessed_ms=self.accessed_ms,
            is_available=self.main.is_available,
        )


def policies(
    description: QueueDescription | SubscriptionDescription, limits: NamespaceLimits, *, duplicate_window_ms: int = 0
) -> tuple[Policy, Policy]:
    """What its fragment does with messages, and what its dead-letter area does: nothing is dead-lettered twice."""

    def policy(most: int | None, *, expired: bool) -> Policy:
        return Policy(
            lock_duration_ms=description.lock_duration_ms,
            max_delivery_count=most,
            max_locks=limits.max_locks,
            dead_letters_expired=expired,
            duplicate_window_ms=duplicate_window_ms,
            max_properties_bytes=limits.max_properties_bytes,
        )

    main = policy(description.max_delivery_count, expired=description.dead_lettering_on_expiration)
    return main, policy(None, expired=False)
