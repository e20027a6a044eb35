"""The description of a topic, to and from XML.

Owns: the names and the order of its elements, and what is counted of a topic. How they are read and written is in
`form` and `parts`.
"""

from __future__ import annotations

from typing import Final

from twinbus.model.atom import kinds, parts
from twinbus.model.atom.authorization import AuthorizationRules
from twinbus.model.atom.form import RULES, Form
from twinbus.model.atom.parts import Counts, Reading, Setting
from twinbus.model.topic import TopicDescription, TopicRuntime

MESSAGE_COUNTS: Final = Counts(
    {
        "ActiveMessageCount": None,
        "DeadLetterMessageCount": None,
        "ScheduledMessageCount": "scheduled_count",
        "TransferMessageCount": None,
        "TransferDeadLetterMessageCount": None,
    }
)
"""Only what is for later is held by the topic itself."""

TOPIC: Final = Form(
    "TopicDescription",
    TopicDescription,
    TopicRuntime,
    {
        "DefaultMessageTimeToLive": Setting("default_time_to_live_ms", kinds.DURATION),
        "MaxSizeInMegabytes": Setting("max_size_mb", kinds.NUMBER),
        "RequiresDuplicateDetection": Setting("requires_duplicate_detection", kinds.BOOLEAN),
        "DuplicateDetectionHistoryTimeWindow": Setting("duplicate_window_ms", kinds.DURATION),
        "EnableBatchedOperations": Setting("enable_batched_operations", kinds.BOOLEAN),
        "SizeInBytes": parts.SIZE,
        "FilteringMessagesBeforePublishing": Setting("filtering_messages_before_publishing", kinds.BOOLEAN),
        "IsAnonymousAccessible": parts.NO,
        RULES: AuthorizationRules(),
        "Status": Setting("status", kinds.STATUS),
        "CreatedAt": parts.CREATED_AT,
        "UpdatedAt": parts.UPDATED_AT,
        "AccessedAt": parts.ACCESSED_AT,
        "SupportOrdering": Setting("support_ordering", kinds.BOOLEAN),
        parts.COUNT_DETAILS: MESSAGE_COUNTS,
        "SubscriptionCount": Reading("subscription_count", kinds.NUMBER),
        "SqlFilterCount": Reading("sql_filter_count", kinds.NUMBER, since=kinds.FILTER_COUNTS_SINCE),
        "CorrelationFilterCount": Reading("correlation_filter_count", kinds.NUMBER, since=kinds.FILTER_COUNTS_SINCE),
        "AutoDeleteOnIdle": Setting("auto_delete_on_idle_ms", kinds.DURATION),
        "EnablePartitioning": parts.PARTITIONING,
        "EntityAvailabilityStatus": parts.AVAILABILITY,
        "EnableSubscriptionPartitioning": parts.NO,
        "EnableExpress": Setting("enable_express", kinds.BOOLEAN),
        "UserMetadata": Setting("user_metadata", kinds.TEXT),
        "MaxMessageSizeInKilobytes": Setting("max_message_kb", kinds.NUMBER),
    },
)
