"""What the simulation knows of entities and messages: nouns, without rules. The rules are in `ledger`."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from twinbus.broker.keys import ACTIVE, Area, area_prefix

if TYPE_CHECKING:
    from tests.simulation.consumer import SimulatedConsumer
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.queue import Queue
    from twinbus.model.queue import QueueDescription


class Live(NamedTuple):
    """A message on a disk."""

    identity: int
    delivered: int
    """How often, as its record says."""
    size: int


class Shelf:
    """What one fragment holds."""

    def __init__(self, entity: Entity, area: Area) -> None:
        self.entity = entity
        self.area = area
        self.prefix = area_prefix(entity.id, 0, area) + ACTIVE
        """Of its messages, and of its marks."""
        self.fragment: Fragment
        self.consumers: list[SimulatedConsumer] = []
        self.submitted: dict[int, Live] = {}
        """By sequence number: as the store was asked to have it."""
        self.synced: dict[int, Live] = {}
        """... as it survives a crash."""
        self.visible: dict[int, Live] = {}
        """... as the store said that it has it, which is what anyone may see."""
        self.highest_submitted = 0
        self.highest_synced = 0
        self.latest_arrival = 0
        """The identity that was last stored."""
        self.least_shown = 0
        """What the counter must show at least, while the answers to one commit are given."""

    def __repr__(self) -> str:
        return f"{self.entity}/{self.area.name.lower()}"

    def lose_unsynced(self) -> None:
        self.submitted = self.synced.copy()
        self.visible = self.synced.copy()
        self.highest_submitted = self.highest_synced
        self.latest_arrival = 0


class Entity:
    """One life of a queue: created again, it is another."""

    def __init__(self, entity_id: int, path: str, store: int, description: QueueDescription) -> None:
        self.id = entity_id
        self.path = path
        self.store = store
        self.description = description
        self.queue: Queue
        self.main = Shelf(self, Area.MAIN)
        self.dead = Shelf(self, Area.DEAD_LETTER)
        self.mosts = {description.max_delivery_count}
        """Which max delivery counts held since the last commit: a message may have been judged by any of them."""
        self.is_deleted = False
        self.is_buried = False

    def __repr__(self) -> str:
        return f"{self.path}#{self.id}"

    @property
    def shelves(self) -> tuple[Shelf, Shelf]:
        return self.main, self.dead


class Kind(Enum):
    COMPLETE = "complete"
    ABANDON = "abandon"
    RELEASE = "release"
    DEAD_LETTER = "dead-letter"


class Lock:
    """What a consumer was given, and may still show long after it is void."""

    __slots__ = ("deadline_s", "message", "sequence", "shelf", "tag")

    def __init__(self, message: Message, shelf: Shelf, sequence: int, tag: bytes, deadline_s: float) -> None:
        self.message = message
        self.shelf = shelf
        self.sequence = sequence
        self.tag = tag
        self.deadline_s = deadline_s


class Settlement:
    """Something asked for locked messages together."""

    __slots__ = ("counts", "is_answered", "is_void", "kind", "messages", "shelf")

    def __init__(self, kind: Kind, shelf: Shelf, messages: list[Message]) -> None:
        self.kind = kind
        self.shelf = shelf
        self.messages = messages
        self.counts = [message.where.live.delivered for message in messages if message.where is not None]
        self.is_answered = False
        self.is_void = False
        """Its store failed meanwhile: it cannot succeed any more."""

    def __repr__(self) -> str:
        return f"{self.kind.value} of {[message.identity for message in self.messages]}"


class Sending:
    """Messages sent together."""

    __slots__ = ("entity", "identities", "is_answered", "is_void")

    def __init__(self, entity: Entity, identities: list[int]) -> None:
        self.entity = entity
        self.identities = identities
        self.is_answered = False
        self.is_void = False

    def __repr__(self) -> str:
        return f"send of {self.identities}"


class Place(NamedTuple):
    shelf: Shelf
    sequence: int
    live: Live


class Message:
    """One message, from its sending on."""

    __slots__ = (
        "changing",
        "handed",
        "identity",
        "is_gone",
        "is_lost",
        "is_refused",
        "lock",
        "seen_synced",
        "sending",
        "settlement",
        "was_synced",
        "where",
    )

    def __init__(self, identity: int, sending: Sending) -> None:
        self.identity = identity
        self.sending = sending
        self.was_synced = False
        self.seen_synced: set[tuple[bytes, int, int]] = set()
        """Each way in which a disk had it: prefix, sequence number, delivery count."""
        self.where: Place | None = None
        """On the synced disk."""
        self.lock: Lock | None = None
        self.settlement: Settlement | None = None
        """Not answered yet."""
        self.changing: Commit | None = None
        """A commit on its way that changes it."""
        self.handed: SimulatedConsumer | None = None
        self.is_refused = False
        """Who it was deleted for had no credit for it any more."""
        """Who receives and deletes it."""
        self.is_gone = False
        """It was answered that it is deleted, or it was received and deleted: it must not appear again."""
        self.is_lost = False
        """It was received and deleted by someone who could not be told before a failure: once, or never."""

    @property
    def is_idle(self) -> bool:
        """Nobody has it, and nothing is being done to it."""
        return self.lock is None and self.changing is None and self.settlement is None and self.handed is None

    def __repr__(self) -> str:
        found = [name for name in ("lock", "settlement", "changing", "handed") if getattr(self, name) is not None]
        return f"message {self.identity} ({', '.join(found) or 'idle'}, on disk {self.where})"


class Commit:
    """What one batch changes."""

    __slots__ = ("changes", "messages")

    def __init__(self) -> None:
        self.changes: list[tuple[Shelf, int, Live | None]] = []
        """Removals first."""
        self.messages: list[Message] = []
