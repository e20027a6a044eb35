"""Forwarding: messages that go on by themselves to another entity, exactly once.

A *transfer* is made in three steps, of which each is one batch of one store, and may be the last before a crash:

    source       has the message, under its sequence number n
    destination  writes the message, and "seen n from this source", together
    source       deletes the message

A message is taken from its source in order, so that one number says how far the destination has seen. What is offered
again after a crash is known by that number, and not written twice.

Owns: the way from one fragment to its destination, and what becomes of messages that cannot go there: they are moved to
the transfer dead-letter queue of the source. What is unavailable, or too busy, is tried again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from twinbus.broker.intake import DESTINATION
from twinbus.broker.ports.settlement import reasons
from twinbus.broker.record import (
    ACTIVE_STATE,
    Parts,
    annotation_pairs_of,
    change_record,
    expires_ms,
    hops_of,
    make_record,
    numbered,
    session_in,
    take_apart,
    with_hops,
    with_ttl,
    without_annotations,
)
from twinbus.model.annotations import DEADLETTER_SOURCE
from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import (
    CallerError,
    EntityDisabled,
    EntityNotFound,
    NotAllowed,
    QuotaExceeded,
    ServiceBusError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Timer
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.locks import Lock
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.queue import Queue
    from twinbus.broker.topic import Topic

    Find = Callable[[str], Queue | Topic]
    Forwarded = Callable[[int], None]

AT_ONCE: Final = 200
MAX_HOPS: Final = 4
RETRY_S: Final = (0.05, 0.2, 1.0, 5.0)
OTHERS_S: Final = 0.2
"""How often it is looked whether others still have messages, where forwarding begins."""
REASONS: Final = {
    EntityNotFound: "The destination does not exist.",
    EntityDisabled: "The destination is disabled.",
    QuotaExceeded: "The destination is full.",
}
"""Of being moved to the transfer dead-letter queue."""


class TooManyHops(CallerError):
    """A message goes round in a circle, or through too many entities."""


class Forwarder:
    """Takes all messages of one fragment to another entity, some at a time. To the fragment it is a consumer."""

    def __init__(
        self,
        fragment: Fragment,
        target: str | None,
        find: Find,
        failed: Fragment,
        forwarded: Forwarded,
        dead_source: str | None = None,
    ) -> None:
        """`target` is a path; None if each message says its own. `failed` is for messages that cannot go there.

        `forwarded` hears how many have arrived. `dead_source` is the path of the entity whose dead letters these are,
        if they are.
        """
        self._forwarded = forwarded
        self.deletes = False
        self.is_gone = False
        self.target = target
        self._fragment = fragment
        self._find = find
        self._failed = failed
        self._dead_source = dead_source
        self._held: deque[tuple[Lock, bytes]] = deque()
        """What it has, in order."""
        self._size = AT_ONCE
        """How many of them it tries at a time: less, where one of them is refused, to find out which."""
        self._is_busy = False
        """Some of it is offered to the destination, or being removed: nothing else is done meanwhile."""
        self._attempts = 0
        self._timer: Timer | None = None

    def start(self) -> None:
        """Take what there is."""
        self._fragment.line.add(self)
        self._begin()

    def _begin(self) -> None:
        """What others still have may come back, and would be taken for seen if a later message had gone before it."""
        self._timer = None
        if self._fragment.out.locks:
            when_s = self._fragment.clock.monotonic_s() + OTHERS_S
            self._timer = self._fragment.timers.call_at(when_s, self._begin)
        else:
            self._fragment.line.feed(self)

    # --- as a consumer ------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """It takes the next ones when the last are gone."""
        return 0 if self._held or self._is_busy or self.is_gone else AT_ONCE

    def take(self, held: list[tuple[Lock, bytes]]) -> None:
        """Messages to be forwarded, which nobody else has."""
        self._held.extend(held)
        self._go_on()

    def reserve(self, count: int) -> None:
        """It never has messages deleted before it gets them."""

    def deliver(self, deliveries: list[Delivery]) -> int:
        """It gets messages as they are stored (`take`)."""
        raise AssertionError(deliveries)

    def feed(self) -> None:
        """It reserves no room that it could have back."""

    def entity_gone(self, error: ServiceBusError) -> None:  # noqa: ARG002
        """The entity was deleted or disabled: what was not forwarded stays."""
        self.stop()

    def session_lost(self, error: ServiceBusError) -> None:
        """It has none."""

    def store_lost(self) -> None:
        """What it has is void: the source's store failed. It takes what there is when that is there again."""
        self._held.clear()
        self._is_busy = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fragment.line.feed(self)

    def stop(self) -> None:
        """Nothing more is forwarded but what is on its way."""
        self.is_gone = True
        if self._timer is not None:
            self._timer.cancel()
            self._give_back()
        self._fragment.line.remove(self)

    # --- forwarding ---------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        self._timer, self._is_busy = None, False
        if not self._held:
            if not self.is_gone:
                self._fragment.line.feed(self)
            return
        if self.is_gone:
            self._give_back()
            return
        target = self._target_of(self._held[0][1])
        some: list[tuple[Lock, bytes]] = []
        for held in self._held:
            if len(some) == self._size or self._target_of(held[1]) != target:
                break
            some.append(held)
        self._is_busy, life = True, self._fragment.life

        def answered(error: ServiceBusError | None) -> None:
            if life == self._fragment.life:
                self._answered(some, error)

        try:
            destination = self._find(target)
            destination.check_sends()
            items = [(lock.sequence, self._prepared(lock, record, destination)) for lock, record in some]
            destination.take_arrivals(self._fragment.holdings.prefix, items, answered)
        except ServiceBusError as error:
            self._answered(some, error)

    def _target_of(self, record: bytes) -> str:
        return self.target if self.target is not None else destination_of(record)

    def _answered(self, some: list[tuple[Lock, bytes]], error: ServiceBusError | None) -> None:
        if error is None:
            self._attempts, self._size = 0, min(2 * self._size, AT_ONCE)
            self._forwarded(len(some))
            self._drop(len(some))
            self._remove([lock for lock, _ in some])
        elif error.is_retriable:
            wait_s = RETRY_S[min(self._attempts, len(RETRY_S) - 1)]
            self._attempts += 1
            when_s = self._fragment.clock.monotonic_s() + wait_s
            self._timer = self._fragment.timers.call_at(when_s, self._go_on)
        elif len(some) > 1:
            self._size = len(some) // 2
            self._go_on()
        else:
            self._drop(1)
            self._fail(*some[0], error)

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._held.popleft()

    def _remove(self, locks: list[Lock]) -> None:
        for lock in locks:
            self._fragment.locks.by_number.pop(lock.number, None)
        life = self._fragment.life

        def removed(_error: ServiceBusError | None) -> None:
            if life == self._fragment.life:  # also where the disk was silent for long: it will be done
                self._go_on()

        self._fragment.remove(locks, removed)

    def _fail(self, lock: Lock, record: bytes, error: ServiceBusError) -> None:
        """Move a message to those that could not be forwarded."""
        reason = next((text for kind, text in REASONS.items() if isinstance(error, kind)), type(error).__name__)
        if isinstance(error, TooManyHops):
            reason = "MaxTransferHopCountExceeded"
        parts = take_apart(change_record(record, properties=reasons(reason, str(error))))
        parts = without_annotations(parts, (DESTINATION,))
        self._failed.take_in(make_record(parts._replace(alarm_ms=0, session=None, shared=0, state=ACTIVE_STATE)))
        self._remove([lock])

    def _give_back(self) -> None:
        held, self._held = list(self._held), deque()
        for lock, record in held:
            self._fragment.locks.by_number.pop(lock.number, None)
            self._fragment.bring_back(lock, record)
        self._fragment.line.dispatch()

    def _prepared(self, lock: Lock, record: bytes, destination: Queue | Topic) -> bytes:
        """A message as it arrives at its destination: as if it had just been sent there."""
        parts = numbered(take_apart(record), lock.sequence)
        hops = hops_of(parts.envelope)
        if hops >= MAX_HOPS:
            raise TooManyHops(f"the message was forwarded {hops} times already, which is the limit")
        terms, envelope, session = destination.terms, with_hops(parts.envelope, hops + 1), None
        if terms.requires_session:
            session = session_in(parts.bare)
            if session is None:
                raise NotAllowed(f"'{destination.path}' requires sessions, and the message names none")
        if terms.ttl_ms < FOREVER_MS:
            envelope = with_ttl(envelope, terms.ttl_ms)
        now_ms = self._fragment.clock.wall_ms()
        parts = without_annotations(parts, (DEADLETTER_SOURCE, DESTINATION))
        arrived = Parts(
            envelope,
            parts.bare,
            now_ms,
            expires_ms(envelope, now_ms),
            session=session,
            annotation_count=parts.annotation_count,
            annotations=parts.annotations,
            delivery_annotation_count=parts.delivery_annotation_count,
            delivery_annotations=parts.delivery_annotations,
        )
        if self._dead_source is not None:
            return change_record(make_record(arrived), annotations={DEADLETTER_SOURCE: self._dead_source})
        return make_record(arrived)


def addressed(record: bytes, destination: str) -> bytes:
    """A message that is to go to another entity than the one it is sent to."""
    return change_record(record, annotations={DESTINATION: destination})


def destination_of(record: bytes) -> str:
    """Where it is to go."""
    return next(str(value) for key, value, _ in annotation_pairs_of(take_apart(record)) if key == DESTINATION)
