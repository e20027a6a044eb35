"""The description of a topic, to and from XML.

Owns: the names and the order of its elements, and what is counted of a topic. How they are read and written is in
`form` and `parts`.
"""

from __future__ import annotations

from typing import Final

from twinbus.model.atom import kinds, parts
from twinbus.model.atom.authorization import AuthorizationRulesElement
from twinbus.model.atom.form import AUTHORIZATION_RULES, DescriptionCodec
from twinbus.model.atom.parts import CountDetailsElement, RuntimeValueElement, SettingElement
from twinbus.model.topic import TopicDescription, TopicRuntime

TOPIC_MESSAGE_COUNTS: Final = CountDetailsElement(
    {
        "ActiveMessageCount": None,
        "DeadLetterMessageCount": None,
        "ScheduledMessageCount": "scheduled_count",
        "TransferMessageCount": None,
        "TransferDeadLetterMessageCount": None,
    }
)
"""Only what is for later is held by the topic itself."""

TOPIC_CODEC: Final = DescriptionCodec(
    "TopicDescription",
    TopicDescription,
    TopicRuntime,
    {
        "DefaultMessageTimeToLive": SettingElement("default_time_to_live_ms", kinds.DURATION),
        "MaxSizeInMegabytes": SettingElement("max_size_mb", kinds.NUMBER),
        "RequiresDuplicateDetection": SettingElement("requires_duplicate_detection", kinds.BOOLEAN),
        "DuplicateDetectionHistoryTimeWindow": SettingElement("duplicate_window_ms", kinds.DURATION),
        "EnableBatchedOperations": SettingElement("enable_batched_operations", kinds.BOOLEAN),
        "SizeInBytes": parts.SIZE,
        "FilteringMessagesBeforePublishing": SettingElement("filtering_messages_before_publishing", kinds.BOOLEAN),
        "IsAnonymousAccessible": parts.ALWAYS_FALSE,
        AUTHORIZATION_RULES: AuthorizationRulesElement(),
        "Status": SettingElement("status", kinds.STATUS),
        "CreatedAt": parts.CREATED_AT,
        "UpdatedAt": parts.UPDATED_AT,
        "AccessedAt": parts.ACCESSED_AT,
        "SupportOrdering": SettingElement("support_ordering", kinds.BOOLEAN),
        parts.COUNT_DETAILS: TOPIC_MESSAGE_COUNTS,
        "SubscriptionCount": RuntimeValueElement("subscription_count", kinds.NUMBER),
        "SqlFilterCount": RuntimeValueElement(
            "sql_filter_count", kinds.NUMBER, since_version=kinds.FILTER_COUNTS_SINCE
        ),
        "CorrelationFilterCount": RuntimeValueElement(
            "correlation_filter_count", kinds.NUMBER, since_version=kinds.FILTER_COUNTS_SINCE
        ),
        "AutoDeleteOnIdle": SettingElement("auto_delete_on_idle_ms", kinds.DURATION),
        "EnablePartitioning": parts.PARTITIONING,
        "EntityAvailabilityStatus": parts.AVAILABILITY,
        "EnableSubscriptionPartitioning": parts.ALWAYS_FALSE,
        "EnableExpress": SettingElement("enable_express", kinds.BOOLEAN),
        "UserMetadata": SettingElement("user_metadata", kinds.TEXT),
        "MaxMessageSizeInKilobytes": SettingElement("max_message_kb", kinds.NUMBER),
    },
)
