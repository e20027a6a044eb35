"""Expected state of entities and messages, without rules. The rules are in `checker`."""

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
    """A message in a store."""

    identity: int
    delivery_count: int
    """Delivery count in its record."""
    size: int


class AreaState:
    """Expected content of a fragment."""

    def __init__(self, entity: Entity, area: Area) -> None:
        self.entity = entity
        self.area = area
        self.prefix = area_prefix(entity.id, 0, area) + ACTIVE
        """Key prefix of its messages and counters."""
        self.fragment: Fragment
        self.consumers: list[SimulatedConsumer] = []
        self.submitted: dict[int, StoredMessage] = {}
        """Messages by sequence number: content of the store after all submitted commits."""
        self.synced: dict[int, StoredMessage] = {}
        """Content that survives a crash."""
        self.visible: dict[int, StoredMessage] = {}
        """Content that the store has confirmed, which clients may see."""
        self.highest_submitted = 0
        self.highest_synced = 0
        self.latest_stored_identity = 0
        """Identity of the message that was stored last."""
        self.min_shown_count = 0
        """Minimum that the counter must show while the callbacks of a commit run."""

    def __repr__(self) -> str:
        return f"{self.entity}/{self.area.name.lower()}"

    def lose_unsynced(self) -> None:
        self.submitted = self.synced.copy()
        self.visible = self.synced.copy()
        self.highest_submitted = self.highest_synced
        self.latest_stored_identity = 0


class Entity:
    """A queue from its creation to its deletion; a queue created again is another entity."""

    def __init__(self, entity_id: int, path: str, store: int, description: QueueDescription) -> None:
        self.id = entity_id
        self.path = path
        self.store = store
        self.description = description
        self.queue: Queue
        self.main = AreaState(self, Area.MAIN)
        self.dead = AreaState(self, Area.DEAD_LETTER)
        self.recent_max_delivery_counts = {description.max_delivery_count}
        """Max delivery counts since the last commit: the broker may have applied any of them."""
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
    """A lock given to a consumer, which may still present it long after it is void."""

    __slots__ = ("area_state", "deadline_s", "message", "sequence", "tag")

    def __init__(self, message: Message, area_state: AreaState, sequence: int, tag: bytes, deadline_s: float) -> None:
        self.message = message
        self.area_state = area_state
        self.sequence = sequence
        self.tag = tag
        self.deadline_s = deadline_s


class SettlementOperation:
    """A settlement of several locked messages."""

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
        """Whether its store has failed since: it cannot succeed any more."""

    def __repr__(self) -> str:
        return f"{self.kind.value} of {[message.identity for message in self.messages]}"


class SendOperation:
    """Messages sent in one batch."""

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
    """A message that was sent."""

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

    def __init__(self, identity: int, send: SendOperation) -> None:
        self.identity = identity
        self.send = send
        self.was_synced = False
        self.synced_versions: set[tuple[bytes, int, int]] = set()
        """All versions that were ever synced: key prefix, sequence number, delivery count."""
        self.location: StoredLocation | None = None
        """Location on the synced disk."""
        self.lock: Lock | None = None
        self.settlement: SettlementOperation | None = None
        """Settlement without an outcome yet."""
        self.pending_commit: ExpectedCommit | None = None
        """Submitted commit that changes the message, until it is visible."""
        self.deleting_consumer: SimulatedConsumer | None = None
        """Consumer in receive-and-delete mode for which the message is being deleted."""
        self.is_refused = False
        """Whether that consumer had no credit for it any more."""
        self.is_deleted = False
        """Whether its completion was confirmed, or it was received and deleted: it must not appear again."""
        self.is_lost = False
        """Whether it was deleted for a consumer that a failure may have kept from it: received once or never."""

    @property
    def is_idle(self) -> bool:
        """Whether it is neither locked nor being changed."""
        return (
            self.lock is None
            and self.pending_commit is None
            and self.settlement is None
            and self.deleting_consumer is None
        )

    def __repr__(self) -> str:
        pending = [
            name
            for name in ("lock", "settlement", "pending_commit", "deleting_consumer")
            if getattr(self, name) is not None
        ]
        return f"message {self.identity} ({', '.join(pending) or 'idle'}, on disk {self.location})"


class ExpectedCommit:
    """Expected changes of a commit."""

    __slots__ = ("changes", "messages")

    def __init__(self) -> None:
        self.changes: list[tuple[AreaState, int, StoredMessage | None]] = []
        """Changes by area and sequence number, None for a removal; removals come first."""
        self.messages: list[Message] = []
