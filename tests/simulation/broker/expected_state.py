"""What the simulation knows of entities and messages: nouns, without rules. The rules are in `ledger`."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from twinbus.broker.store_keys import ACTIVE, Area, area_prefix

if TYPE_CHECKING:
    from tests.simulation.broker.consumer import SimulatedConsumer
    from twinbus.broker.entities.queue import Queue
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.model.queue import QueueDescription


class StoredMessage(NamedTuple):
    """A message on a disk."""

    identity: int
    delivery_count: int
    """How often, as its record says."""
    size: int


class AreaState:
    """What one fragment holds."""

    def __init__(self, entity: Entity, area: Area) -> None:
        self.entity = entity
        self.area = area
        self.prefix = area_prefix(entity.id, 0, area) + ACTIVE
        """Of its messages, and of its marks."""
        self.fragment: Fragment
        self.consumers: list[SimulatedConsumer] = []
        self.submitted: dict[int, StoredMessage] = {}
        """By sequence number: as the store was asked to have it."""
        self.synced: dict[int, StoredMessage] = {}
        """... as it survives a crash."""
        self.visible: dict[int, StoredMessage] = {}
        """... as the store said that it has it, which is what anyone may see."""
        self.highest_submitted = 0
        self.highest_synced = 0
        self.latest_stored_identity = 0
        """The identity that was last stored."""
        self.min_shown_count = 0
        """What the counter must show at least, while the answers to one commit are given."""

    def __repr__(self) -> str:
        return f"{self.entity}/{self.area.name.lower()}"

    def lose_unsynced(self) -> None:
        self.submitted = self.synced.copy()
        self.visible = self.synced.copy()
        self.highest_submitted = self.highest_synced
        self.latest_stored_identity = 0


class Entity:
    """One life of a queue: created again, it is another."""

    def __init__(self, entity_id: int, path: str, store: int, description: QueueDescription) -> None:
        self.id = entity_id
        self.path = path
        self.store = store
        self.description = description
        self.queue: Queue
        self.main = AreaState(self, Area.MAIN)
        self.dead = AreaState(self, Area.DEAD_LETTER)
        self.recent_max_delivery_counts = {description.max_delivery_count}
        """Which max delivery counts held since the last commit: a message may have been judged by any of them."""
        self.is_deleted = False
        self.is_cleaned_up = False

    def __repr__(self) -> str:
        return f"{self.path}#{self.id}"

    @property
    def area_states(self) -> tuple[AreaState, AreaState]:
        return self.main, self.dead


class SettlementKind(Enum):
    COMPLETE = "complete"
    ABANDON = "abandon"
    RELEASE = "release"
    DEAD_LETTER = "dead-letter"


class Lock:
    """What a consumer was given, and may still show long after it is void."""

    __slots__ = ("area_state", "deadline_s", "message", "sequence", "tag")

    def __init__(self, message: Message, area_state: AreaState, sequence: int, tag: bytes, deadline_s: float) -> None:
        self.message = message
        self.area_state = area_state
        self.sequence = sequence
        self.tag = tag
        self.deadline_s = deadline_s


class SettlementOperation:
    """Something asked for locked messages together."""

    __slots__ = ("area_state", "delivery_counts", "is_answered", "is_void", "kind", "messages")

    def __init__(self, kind: SettlementKind, area_state: AreaState, messages: list[Message]) -> None:
        self.kind = kind
        self.area_state = area_state
        self.messages = messages
        self.delivery_counts = [
            message.location.stored.delivery_count for message in messages if message.location is not None
        ]
        self.is_answered = False
        self.is_void = False
        """Its store failed meanwhile: it cannot succeed any more."""

    def __repr__(self) -> str:
        return f"{self.kind.value} of {[message.identity for message in self.messages]}"


class SendOperation:
    """Messages sent together."""

    __slots__ = ("entity", "identities", "is_answered", "is_void")

    def __init__(self, entity: Entity, identities: list[int]) -> None:
        self.entity = entity
        self.identities = identities
        self.is_answered = False
        self.is_void = False

    def __repr__(self) -> str:
        return f"send of {self.identities}"


class StoredLocation(NamedTuple):
    area_state: AreaState
    sequence: int
    stored: StoredMessage


class Message:
    """One message, from its sending on."""

    __slots__ = (
        "deleting_consumer",
        "identity",
        "is_deleted",
        "is_lost",
        "is_refused",
        "location",
        "lock",
        "pending_commit",
        "send",
        "settlement",
        "synced_versions",
        "was_synced",
    )

    def __init__(self, identity: int, sending: SendOperation) -> None:
        self.identity = identity
        self.send = sending
        self.was_synced = False
        self.synced_versions: set[tuple[bytes, int, int]] = set()
        """Each way in which a disk had it: prefix, sequence number, delivery count."""
        self.location: StoredLocation | None = None
        """On the synced disk."""
        self.lock: Lock | None = None
        self.settlement: SettlementOperation | None = None
        """Not answered yet."""
        self.pending_commit: ExpectedCommit | None = None
        """A commit on its way that changes it."""
        self.deleting_consumer: SimulatedConsumer | None = None
        self.is_refused = False
        """Who it was deleted for had no credit for it any more."""
        """Who receives and deletes it."""
        self.is_deleted = False
        """It was answered that it is deleted, or it was received and deleted: it must not appear again."""
        self.is_lost = False
        """It was received and deleted by someone who could not be told before a failure: once, or never."""

    @property
    def is_idle(self) -> bool:
        """Nobody has it, and nothing is being done to it."""
        return (
            self.lock is None
            and self.pending_commit is None
            and self.settlement is None
            and self.deleting_consumer is None
        )

    def __repr__(self) -> str:
        found = [
            name
            for name in ("lock", "settlement", "pending_commit", "deleting_consumer")
            if getattr(self, name) is not None
        ]
        return f"message {self.identity} ({', '.join(found) or 'idle'}, on disk {self.location})"


class ExpectedCommit:
    """What one batch changes."""

    __slots__ = ("changes", "messages")

    def __init__(self) -> None:
        self.changes: list[tuple[AreaState, int, StoredMessage | None]] = []
        """Removals first."""
        self.messages: list[Message] = []
