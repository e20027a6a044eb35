"""Parts of entities that another process has.

Owns: what they are sent, which is carried to their owner. Their descriptions, rules and status are known here as there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from twinbus.broker.forwarding import Forwarder
from twinbus.broker.queue import Queue
from twinbus.broker.remote.calls import Arrive, Numbers, Send, SendOn
from twinbus.broker.remote.journal import RemoteJournal
from twinbus.broker.subscription import Subscription
from twinbus.broker.topic import Topic
from twinbus.model.errors import ServiceBusError
from twinbus.model.queue import QueueRuntime
from twinbus.model.topic import TopicRuntime

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.intake import Parcel
    from twinbus.broker.journal import Answered
    from twinbus.broker.remote.calls import Answer, Call

_NOTHING: Final = QueueRuntime(
    active_count=0, dead_letter_count=0, size_bytes=0, created_ms=0, updated_ms=0, accessed_ms=0
)
_NOTHING_PUBLISHED: Final = TopicRuntime(
    scheduled_count=0, size_bytes=0, subscription_count=0, created_ms=0, updated_ms=0, accessed_ms=0
)


def is_remote(part: Queue | Topic | Subscription) -> bool:
    """Another process has it."""
    return isinstance(part.main.journal, RemoteJournal)


def _carry(part: Queue | Topic, call: Call, size: int, answer: Answered, numbers: list[int] | None = None) -> None:
    """Have something stored by its owner; `answer` hears when it is on disk."""
    journal = part.main.journal
    assert isinstance(journal, RemoteJournal)
    journal.check_takes_sends()

    def told(outcome: Answer | ServiceBusError) -> None:
        journal.pending_bytes -= size
        if isinstance(outcome, ServiceBusError):
            answer(outcome)
            return
        if numbers is not None and isinstance(outcome, Numbers):
            numbers.extend(outcome.numbers)
        answer(None)

    journal.owner.ask(call, told)
    journal.pending_bytes += size


def _send(part: Queue | Topic, parcel: Parcel, answer: Answered, numbers: list[int] | None) -> None:
    part.check_sends()
    part.main.check_loaded()
    records = parcel.records
    call = Send(part.entity_id, part.main.number, records, parcel.ids)
    _carry(part, call, sum([len(record) for record in records]), answer, numbers)


def _take_arrivals(part: Queue | Topic, source: bytes, items: list[tuple[int, bytes]], answer: Answered) -> None:
    call = Arrive(part.entity_id, part.main.number, source, items)
    _carry(part, call, sum([len(record) for _, record in items]), answer)


class RemoteQueue(Queue):
    """A queue, or a part of one, that another process has."""

    known: QueueRuntime = _NOTHING
    """What it held when its owner was last asked."""

    def send(
        self,
        parcel: Parcel,
        answer: Answered,
        numbers: list[int] | None = None,
        beside: Callable[[], None] | None = None,
    ) -> None:
        """Store messages, all or none; as `sending.send`."""
        assert beside is None
        _send(self, parcel, answer, numbers)

    def send_on(self, records: list[bytes], destination: str, answer: Answered) -> None:
        """Store messages that go from here to another entity, all or none."""
        self.check_sends()
        call = SendOn(self.entity_id, self.main.number, records, destination)
        _carry(self, call, sum([len(record) for record in records]), answer)

    def take_arrivals(self, source: bytes, items: list[tuple[int, bytes]], answer: Answered) -> None:
        """Messages that another entity forwards here."""
        _take_arrivals(self, source, items, answer)

    def held_bytes(self) -> int:
        """How full it is is for its owner to say."""
        return 0

    def load(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """There is nothing to be read here."""
        done(None)

    def _forward(self, fragment: Fragment, target: str | None, dead_source: str | None) -> None:
        _note_forwarding(fragment, target, dead_source)

    def runtime(self) -> QueueRuntime:
        """What it held when its owner was last asked."""
        return _as_known(self, self.known)


class RemoteSubscription(Subscription):
    """A subscription, or a part of one, that another process has."""

    known: QueueRuntime = _NOTHING
    """What it held when its owner was last asked."""

    def load(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """There is nothing to be read here."""
        done(None)

    def _forward(self, fragment: Fragment, target: str | None, dead_source: str | None) -> None:
        _note_forwarding(fragment, target, dead_source)

    def runtime(self) -> QueueRuntime:
        """What it held when its owner was last asked."""
        return _as_known(self, self.known)


class RemoteTopic(Topic):
    """A topic, or a part of one, that another process has."""

    known: TopicRuntime = _NOTHING_PUBLISHED
    """What it held when its owner was last asked."""

    def send(
        self,
        parcel: Parcel,
        answer: Answered,
        numbers: list[int] | None = None,
        beside: Callable[[], None] | None = None,
    ) -> None:
        """Publish messages, all or none; as `sending.send`."""
        assert beside is None
        _send(self, parcel, answer, numbers)

    def take_arrivals(self, source: bytes, items: list[tuple[int, bytes]], answer: Answered) -> None:
        """Messages that another entity forwards here."""
        _take_arrivals(self, source, items, answer)

    def held_bytes(self) -> int:
        """How full it is is for its owner to say."""
        return 0

    def load(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """There is nothing to be read here."""
        done(None)

    def runtime(self) -> TopicRuntime:
        """What it held when its owner was last asked."""
        return replace(
            self.known,
            subscription_count=len(self.subscriptions),
            created_ms=self.created_ms,
            updated_ms=self.updated_ms,
            accessed_ms=max(self.accessed_ms, self.known.accessed_ms),
            is_available=self.known.is_available and self.main.is_available,
        )


def _note_forwarding(fragment: Fragment, target: str | None, dead_source: str | None) -> None:
    """Its messages go elsewhere: that is done by its owner, and known here, so that nobody receives them."""
    fragment.forwarder = None
    if target is not None:
        fragment.forwarder = Forwarder(fragment, target, _never, fragment, _ignore, dead_source)


def _ignore(_count: int) -> None:
    """Its owner counts them."""


def _never(path: str) -> Queue:
    raise AssertionError(path)


def _as_known(part: RemoteQueue | RemoteSubscription, known: QueueRuntime) -> QueueRuntime:
    return replace(
        known,
        created_ms=part.created_ms,
        updated_ms=part.updated_ms,
        accessed_ms=max(part.accessed_ms, known.accessed_ms),
        is_available=known.is_available and part.main.is_available,
    )
