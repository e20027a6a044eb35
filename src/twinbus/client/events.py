"""Events of a client: the publisher, and the events about messages.

    end = factory.events.listen(count, {Sent, SendFailed})

Owns the list of listeners and the events of senders and receivers. Pairs use the same publisher; the kinds of their
events are in `pairing.observe.events`. Listeners are called in the event loop and must not block. An event without a
listener is not created.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from twinbus.model.message import BrokeredMessage

Kind: TypeAlias = Enum | type
"""Kind of an event, by which listeners subscribe."""
log: Final = logging.getLogger(__name__)

FROM_SPOOL: Final = "from the spool"
"""Reason in the event for a message that was spooled when the application sent it."""


class PublishedEvent(Protocol):
    """An event that can be published."""

    @property
    def kind(self) -> Kind:
        """Kind of the event, by which listeners subscribe."""


class EventPublisher:
    """Publishes events to listeners."""

    def __init__(self) -> None:
        """Create a publisher without listeners."""
        self.listened_kinds: frozenset[Kind] = frozenset()
        """Kinds of events that have a listener."""
        self._listeners: list[tuple[Callable[[Any], None], Collection[Kind]]] = []

    def is_wanted(self, kind: Kind) -> bool:
        """Return whether events of this kind have a listener; if not, callers need not create the event."""
        return kind in self.listened_kinds

    def listen(self, listener: Callable[[Any], None], kinds: Collection[Kind]) -> Callable[[], None]:
        """Call `listener` with each event of these kinds, until the returned function is called."""
        entry = (listener, kinds)
        self._listeners.append(entry)
        self.listened_kinds |= frozenset(kinds)
        return lambda: self._remove(entry)

    def _remove(self, entry: tuple[Callable[[Any], None], Collection[Kind]]) -> None:
        if entry in self._listeners:
            self._listeners.remove(entry)
            self.listened_kinds = frozenset(kind for _, kinds in self._listeners for kind in kinds)

    def publish(self, event: PublishedEvent) -> None:
        """Call the listeners of this kind of event. If one raises, log the exception and call the other listeners."""
        for listener, kinds in list(self._listeners):
            if event.kind not in kinds:
                continue
            try:
                listener(event)
            except Exception:
                log.exception("a listener raised an exception for %s", getattr(event.kind, "value", event.kind))


class MessageEvent:
    """Base class of the events about messages. The class of an event is its kind."""

    __slots__ = ()
    kind: ClassVar[Kind]

    def __init_subclass__(cls) -> None:
        """Set the subclass as the kind of its events."""
        cls.kind = cls


@dataclass(slots=True)
class Sent(MessageEvent):
    """An entity accepted messages, which it may deliver later: at their scheduled time, or after a commit."""

    path: str
    messages: Sequence[BrokeredMessage]
    scheduled_sequence_numbers: Sequence[int] = ()
    """Sequence numbers of the messages, if they were scheduled."""
    transaction_key: str | None = None
    is_from_spool: bool = False
    """Whether the messages came from the spool, to which an earlier send wrote them."""


@dataclass(slots=True)
class SendFailed(MessageEvent):
    """A send failed."""

    path: str
    messages: Sequence[BrokeredMessage]
    error: BaseException


@dataclass(slots=True)
class Settled(MessageEvent):
    """A receiver settled a message, or failed to (with `error`)."""

    path: str
    message: BrokeredMessage
    settlement: str
    """Settlement, for example `completed` or `abandoned`."""
    transaction_key: str | None = None
    error: BaseException | None = None


@dataclass(slots=True)
class ReceiverOpened(MessageEvent):
    """A receiver is about to receive its first messages from an entity."""

    path: str


@dataclass(slots=True)
class SettledInBulk(MessageEvent):
    """One request deleted or completed several messages that the request did not name."""

    path: str
    settlement: str
    count: int


@dataclass(slots=True)
class ScheduleCancelled(MessageEvent):
    """Scheduled messages were cancelled."""

    path: str
    sequence_numbers: Sequence[int]


@dataclass(slots=True)
class TransactionEnded(MessageEvent):
    """A transaction was committed or rolled back, or its outcome is unknown."""

    transaction_key: str
    outcome: str


MESSAGE_EVENTS: Final = frozenset(MessageEvent.__subclasses__())
