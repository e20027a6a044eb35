"""Events of a client: one way to publish them, and the events of single messages.

    end = factory.events.listen(count, {Sent, SendFailed})

Owns: the list of listeners, and what senders and receivers publish. The events of a pair are published in the same way;
`pairing.events` has their kinds. A listener is called in the loop and must not wait. Events that nobody listens for are
not made.
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
"""What listeners ask for."""
log: Final = logging.getLogger(__name__)

FROM_SPOOL: Final = "from the spool"
"""The reason of an event about a message that the application sent before: then it was spooled."""


class PublishedEvent(Protocol):
    """Whatever can be published."""

    @property
    def kind(self) -> Kind:
        """By which listeners ask for it."""


class EventPublisher:
    """The listeners of one publisher."""

    def __init__(self) -> None:
        """Nobody listens."""
        self.listened_kinds: frozenset[Kind] = frozenset()
        """The kinds that somebody listens for; empty if nobody listens."""
        self._listeners: list[tuple[Callable[[Any], None], Collection[Kind]]] = []

    def is_wanted(self, kind: Kind) -> bool:
        """Return whether an event of this kind has to be made: callers ask before each message moved."""
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
        """Call the listeners of this kind of event. If one raises, the others are called all the same."""
        for listener, kinds in list(self._listeners):
            if event.kind not in kinds:
                continue
            try:
                listener(event)
            except Exception:
                log.exception("a listener failed with %s", getattr(event.kind, "value", event.kind))


class MessageEvent:
    """Base of the events below. Listeners name the class: it is the kind."""

    __slots__ = ()
    kind: ClassVar[Kind]

    def __init_subclass__(cls) -> None:
        """Make the class the kind of its events."""
        cls.kind = cls


@dataclass(slots=True)
class Sent(MessageEvent):
    """An entity has messages: to be delivered later if they are scheduled, or once the transaction is committed."""

    path: str
    messages: Sequence[BrokeredMessage]
    scheduled_sequence_numbers: Sequence[int] = ()
    """The sequence numbers of scheduled messages."""
    transaction_key: str | None = None
    is_from_spool: bool = False
    """The application sent them before, and they were kept on the local disk."""


@dataclass(slots=True)
class SendFailed(MessageEvent):
    """A send was given up."""

    path: str
    messages: Sequence[BrokeredMessage]
    error: BaseException


@dataclass(slots=True)
class Settled(MessageEvent):
    """A receiver settled a message, or, with `error`, the settlement failed."""

    path: str
    message: BrokeredMessage
    settlement: str
    """completed, abandoned..."""
    transaction_key: str | None = None
    error: BaseException | None = None


@dataclass(slots=True)
class ReceiverOpened(MessageEvent):
    """A receiver begins to take messages of an entity."""

    path: str


@dataclass(slots=True)
class SettledInBulk(MessageEvent):
    """So many messages were deleted or completed by one request, which does not name them."""

    path: str
    settlement: str
    count: int


@dataclass(slots=True)
class ScheduleCancelled(MessageEvent):
    """Scheduled messages were taken back."""

    path: str
    sequence_numbers: Sequence[int]


@dataclass(slots=True)
class TransactionEnded(MessageEvent):
    """The sends and settlements of a transaction have happened, have not, or nobody knows."""

    transaction_key: str
    outcome: str


MESSAGE_EVENTS: Final = frozenset(MessageEvent.__subclasses__())
