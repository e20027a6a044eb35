"""The description of a queue, to and from XML.

Owns: the names and the order of its elements. How they are read and written is in `form` and `parts`.
"""

from __future__ import annotations

from typing import Final

from twinbus.model.atom import kinds, parts
from twinbus.model.atom.authorization import AuthorizationRulesElement
from twinbus.model.atom.form import AUTHORIZATION_RULES, DescriptionCodec
from twinbus.model.atom.parts import MessageCountElement, SettingElement
from twinbus.model.queue import QueueDescription, QueueRuntime

QUEUE_CODEC: Final = DescriptionCodec(
    "QueueDescription",
    QueueDescription,
    QueueRuntime,
    {
        "LockDuration": SettingElement("lock_duration_ms", kinds.DURATION),
        "MaxSizeInMegabytes": SettingElement("max_size_mb", kinds.NUMBER),
        "RequiresDuplicateDetection": SettingElement("requires_duplicate_detection", kinds.BOOLEAN),
        "RequiresSession": SettingElement("requires_session", kinds.BOOLEAN),
        "DefaultMessageTimeToLive": SettingElement("default_time_to_live_ms", kinds.DURATION),
        "DeadLetteringOnMessageExpiration": SettingElement("dead_lettering_on_expiration", kinds.BOOLEAN),
        "DuplicateDetectionHistoryTimeWindow": SettingElement("duplicate_window_ms", kinds.DURATION),
        "MaxDeliveryCount": SettingElement("max_delivery_count", kinds.NUMBER),
        "EnableBatchedOperations": SettingElement("enable_batched_operations", kinds.BOOLEAN),
        "SizeInBytes": parts.SIZE,
        "MessageCount": MessageCountElement(),
        "IsAnonymousAccessible": parts.ALWAYS_FALSE,
        AUTHORIZATION_RULES: AuthorizationRulesElement(),
        "Status": SettingElement("status", kinds.STATUS),
        "CreatedAt": parts.CREATED_AT,
        "UpdatedAt": parts.UPDATED_AT,
        "AccessedAt": parts.ACCESSED_AT,
        "SupportOrdering": SettingElement("support_ordering", kinds.BOOLEAN),
        parts.COUNT_DETAILS: parts.MESSAGE_COUNTS,
        "AutoDeleteOnIdle": SettingElement("auto_delete_on_idle_ms", kinds.DURATION),
        "EnablePartitioning": parts.PARTITIONING,
        "EntityAvailabilityStatus": parts.AVAILABILITY,
        "EnableExpress": SettingElement("enable_express", kinds.BOOLEAN),
        "ForwardTo": SettingElement("forward_to", kinds.ENTITY_PATH),
        "UserMetadata": SettingElement("user_metadata", kinds.TEXT),
        "ForwardDeadLetteredMessagesTo": SettingElement("forward_dead_lettered_to", kinds.ENTITY_PATH),
        "MaxMessageSizeInKilobytes": SettingElement("max_message_kb", kinds.NUMBER),
    },
)
