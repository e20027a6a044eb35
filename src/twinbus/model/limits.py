"""What a namespace allows: settings, with the defaults of Service Bus.

Owns: the numbers of messages and entities. What one connection may do is in `amqp.settings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_DELIVERY_COUNT_MAX: Final = 2_147_483_647
LOCK_DURATION_MIN_MS: Final = 5_000
LOCK_DURATION_MAX_MS: Final = 300_000
ENTITY_PATH_MAX_CHARACTERS: Final = 260
SUBSCRIPTION_NAME_MAX_CHARACTERS: Final = 50
USER_METADATA_MAX_CHARACTERS: Final = 1024
DUPLICATE_WINDOW_MIN_MS: Final = 20_000
EMULATOR_WINDOW_MIN_MS: Final = 5_000
"""The shortest window of Microsoft's emulator: its configuration file may ask for less than Service Bus allows."""
DUPLICATE_WINDOW_MAX_MS: Final = 604_800_000
AUTO_DELETE_MIN_MS: Final = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceLimits:
    """The numbers of one namespace."""

    max_message_bytes: int = 262_144
    """One message, or one batch of them, as it is encoded."""
    max_batch_messages: int = 10_000
    """In one batch: what a batch costs should be bounded by more than its size."""
    max_properties_bytes: int = 65_536
    """All properties and annotations of a message."""
    max_property_bytes: int = 32_768
    """One of them."""
    max_id_characters: int = 128
    """MessageId, SessionId, PartitionKey."""
    max_entities: int = 10_000
    max_partitioned: int = 100
    """Partitioned queues and topics; each counts as one of the entities, too."""
    max_rules: int = 2_000
    """Of one subscription."""
    max_rule_cost: int = 10_000
    """Of one rule, for the largest message: about microseconds. A rule is evaluated without a pause."""
    max_topic_rule_cost: int = 500_000
    """Of all rules of one topic together."""
    max_topic_actions: int = 100
    """Rules of one topic that have an action: each may make a copy of a message, which is not shared."""
    max_locks: int = 10_000
    """Messages of one fragment that are out under a lock at the same time."""
    max_pending_bytes: int = 268_435_456
    """What waits to be written to one store; above it sends are answered with ServerBusy."""
