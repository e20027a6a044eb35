"""Limits of a namespace, with the defaults of Service Bus.

Owns the limits on messages and entities. `amqp.settings` has the limits on a connection.
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
"""Shortest duplicate detection window in Microsoft's emulator, whose configuration file may set shorter windows than
Service Bus allows."""
DUPLICATE_WINDOW_MAX_MS: Final = 604_800_000
AUTO_DELETE_MIN_MS: Final = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceLimits:
    """Limits of one namespace."""

    max_message_bytes: int = 262_144
    """Maximum encoded size of a message or of a batch of messages."""
    max_batch_messages: int = 10_000
    """Maximum number of messages in a batch, which bounds the cost of a batch of tiny messages."""
    max_properties_bytes: int = 65_536
    """Maximum size of all properties and annotations of a message together."""
    max_property_bytes: int = 32_768
    """Maximum size of a single property or annotation."""
    max_id_characters: int = 128
    """Maximum length of MessageId, SessionId and PartitionKey."""
    max_entities: int = 10_000
    max_partitioned: int = 100
    """Maximum number of partitioned queues and topics, which also count as entities."""
    max_rules: int = 2_000
    """Maximum number of rules per subscription."""
    max_rule_cost: int = 10_000
    """Maximum cost of one rule for the largest message, roughly in microseconds. While a process evaluates a rule, it
    does nothing else."""
    max_topic_rule_cost: int = 500_000
    """Maximum cost of all rules on a topic together."""
    max_topic_actions: int = 100
    """Maximum number of rules with an action on a topic. Each action may create a separate copy of a message's body."""
    max_locks: int = 10_000
    """Maximum number of locked messages per fragment."""
    max_pending_bytes: int = 268_435_456
    """Maximum size of pending writes to a store; beyond this size, sends fail with ServerBusy."""
